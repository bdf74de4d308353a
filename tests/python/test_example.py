#!/usr/bin/env python3
"""The training example: it learns, it resumes to the same losses, and replicas are the same training as
one. And of the frameworks' examples what needs no framework, with stand-ins for its modules."""

import os
import re
import socket
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

import numpy as np

import equipoise

from support import ROOT

EXAMPLE = ROOT / "sim/python/examples/train_packed.py"
sys.path.insert(0, str(EXAMPLE.parent))


def started(*arguments, **environment):
    command = [sys.executable, str(EXAMPLE), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**os.environ, **environment}, **pipes)


def losses_of(process):
    printed, errors = process.communicate()
    if process.returncode != 0:
        raise AssertionError(errors)
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss ([\d.]+)", printed)}


def train(*arguments):
    return losses_of(started(*arguments))


class Example(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.losses = train("--steps", 12)

    def test_it_learns(self):
        # Uniform guesses of 64 tokens cost ln 64 = 4.16.
        self.assertLess(self.losses[12], 4.0)
        self.assertLess(self.losses[12], self.losses[5])

    def test_a_resumed_run_goes_on_as_if_it_had_not_ended(self):
        # An epoch is 8 steps and a tail, so 10 is inside the second one.
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = Path(folder) / "run.pt"
            train("--steps", 10, "--checkpoint", checkpoint)
            rest = train("--steps", 12, "--resume", checkpoint)
        self.assertEqual(rest, {12: self.losses[12]})

    def test_two_replicas_train_as_one(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        ranks = [
            started("--steps", 5, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE="2", RANK=str(rank))
            for rank in range(2)
        ]
        losses, nothing = map(losses_of, ranks)
        self.assertAlmostEqual(losses[5], self.losses[5], places=3)
        self.assertEqual(nothing, {})

    def test_every_policy_of_whole_documents_trains(self):
        for policy in ("karmarkar-karp", "fixed-greedy"):
            self.assertIn(2, train("--steps", 2, "--policy", policy), policy)


class Held:
    """Any class of a framework: what it is given are its attributes."""

    def __init__(self, *values, **named):
        self.values = values
        self.__dict__.update(named)


def stand_ins(**modules):
    """The modules of a framework that an example imports, by dotted names with _ in place of the dots."""
    return mock.patch.dict(sys.modules, {name.replace("__", "."): types.SimpleNamespace(**names) for name, names in modules.items()})


class WithoutFrameworks(unittest.TestCase):
    def test_megatrons_forward_step(self):
        """The borders reach the attention, and the loss is of the tokens that count."""
        import torch  # before the stand-ins, with which all that they import goes

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.tensor(2.0))

            def forward(self, tokens, positions, attention_mask, labels, packed_seq_params):
                self.packed = packed_seq_params
                return self.weight * positions  # as if each token's loss

        modules = {
            **{name: {} for name in ("megatron", "megatron__core", "megatron__core__datasets")},
            "megatron__core__datasets__indexed_dataset": {"IndexedDataset": Held, "IndexedDatasetBuilder": Held},
            "megatron__core__packed_seq_params": {"PackedSeqParams": Held},
        }
        with stand_ins(**modules):
            import megatron_loop
        documents = [np.arange(1, 11), np.arange(20, 23)]
        sampler = equipoise.BatchSampler([10, 3], "lpt", documents_per_step=2, accumulate=1)
        loader = megatron_loop.Loader(documents, sampler, form=megatron_loop.megatron, length=16)
        model = Model()
        losses, loss_of = megatron_loop.forward_step(iter(loader), model)
        loss, tokens, logged = loss_of(losses)
        self.assertEqual((model.packed.cu_seqlens_q.tolist(), model.packed.qkv_format, model.packed.max_seqlen_kv), ([0, 10, 13, 16], "thd", 10))
        counted = sum(range(9)) + sum(range(2))
        self.assertEqual((float(loss), int(tokens), logged["lm loss"].tolist()), (2 * counted, 9 + 2, [2 * counted, 11]))
        loss.backward()
        self.assertEqual(float(model.weight.grad), counted)

    def test_verl_asks_for_its_partition(self):
        import verl_balance

        theirs = mock.Mock(return_value="verl's own")
        balancing = types.SimpleNamespace(get_seqlen_balanced_partitions=theirs)
        with stand_ins(verl={}, verl__utils={"seqlen_balancing": balancing}):
            self.assertIs(verl_balance.use_policy("lpt", cost="quadratic"), theirs)
        lengths = [300, 500, 400]
        dealt = balancing.get_seqlen_balanced_partitions([24576 * n + n * n for n in lengths], 2, False)
        self.assertEqual(sorted(dealt), [[0, 2], [1]])  # 300^2 + 400^2 = 500^2
        self.assertEqual(balancing.get_seqlen_balanced_partitions(lengths, 2, True), "verl's own")  # over ranks
        self.assertEqual(balancing.get_seqlen_balanced_partitions([24577], 2, False), "verl's own")  # fewer than parts
        theirs.assert_has_calls([mock.call(lengths, 2, True), mock.call([24577], 2, False)])


if __name__ == "__main__":
    unittest.main(verbosity=2)

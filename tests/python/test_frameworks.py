#!/usr/bin/env python3
"""test_frameworks.py megatron|trl|verl: the example of a training framework, run with that framework."""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
from support import ROOT

import equipoise

EXAMPLES = ROOT / "sim/python/examples"
sys.path.insert(0, str(EXAMPLES))


def printed(example, *arguments):
    done = subprocess.run([sys.executable, str(EXAMPLES / example), *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr[-3000:])
    return done.stdout


def check_forward_step(case, example, data):
    """Megatron's forward step: the borders reach the attention, and the loss is of the tokens that count."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, tokens, positions, attention_mask, labels, packed_seq_params):
            self.packed = packed_seq_params
            return self.weight * (labels != tokens.roll(-1, 1)).float() + self.weight * positions  # as if each token's loss

    model, loader = Model(), torch.utils.data.DataLoader(data, batch_size=1)
    batch = next(iter(loader))
    losses, loss_of = example.forward_step(iter(loader), model)
    loss, tokens, logged = loss_of(losses)
    ends = batch["cu_seqlens"][0].tolist()
    case.assertEqual((model.packed.cu_seqlens_q.tolist(), model.packed.cu_seqlens_kv.tolist(), model.packed.qkv_format), (ends, ends, "thd"))
    case.assertEqual((model.packed.max_seqlen_q, model.packed.max_seqlen_kv), 2 * (max(np.diff(ends)),))
    counted = batch["loss_mask"] * batch["position_ids"]
    case.assertEqual((float(loss), int(tokens)), (2 * float(counted.sum()), int(batch["loss_mask"].sum())))
    case.assertEqual(logged["lm loss"].tolist(), [float(loss), float(tokens)])
    loss.backward()
    case.assertEqual(float(model.weight.grad), float(counted.sum()))


class Megatron(unittest.TestCase):
    """Megatron-Core's dataset, by its own builder from its own files."""

    def setUp(self):
        import megatron_dataset

        self.example = megatron_dataset
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.prefix = Path(folder.name) / "documents"
        self.lengths = np.clip(equipoise.draw_trace("wlb-128k", 120, 1) // 64, 8, 1024)
        self.example.write_documents(self.prefix, self.lengths)
        self.keys = {"sequence_length": 1024, "data_parallel": 2, "micro_batches": 2, "policy": "fixed-greedy",
                     "options": {"sequences_per_step": 4, "oversize": "split", "pack_window": 2}}

    def test_ranks_get_their_lanes_and_every_token_once(self):
        data = self.example.build(self.prefix, **self.keys)
        plan = equipoise.pack(self.lengths, "fixed-greedy", lanes=2, micro_batches=4, context_window=1024, **self.keys["options"])
        for place in range(len(data)):
            step, rest = divmod(place, 4)
            lane = plan.steps[step][rest % 2]
            expected = lane[rest // 2] if rest // 2 < len(lane) else []
            self.assertEqual([tuple(piece) for piece in data.samples[place]], [tuple(piece) for piece in expected])
        tokens = {}
        for sample in data.samples:
            for document, begin, end in sample:
                tokens[document] = tokens.get(document, 0) + end - begin
        self.assertEqual(tokens, dict(enumerate(self.lengths.tolist())))

    def test_a_sample_keeps_documents_apart(self):
        data = self.example.build(self.prefix, **self.keys)
        own = self.example.IndexedDataset(str(self.prefix))
        for place in range(0, len(data), 7):
            item, pieces = data[place], data.samples[place]
            self.assertEqual([len(item[key]) for key in ("tokens", "labels", "loss_mask", "position_ids")], [1024] * 4)
            ends = item["cu_seqlens"].tolist()
            self.assertEqual((ends[0], ends[-1]), (0, 1024))
            for (document, begin, end), first, last in zip(pieces, ends, ends[1:]):
                np.testing.assert_array_equal(item["tokens"][first:last].numpy(), own.get(document, begin, end - begin))
                np.testing.assert_array_equal(item["labels"][first : last - 1].numpy(), own.get(document, begin, end - begin)[1:])
                self.assertEqual(item["position_ids"][first:last].tolist(), list(range(last - first)))
                self.assertEqual(item["loss_mask"][first:last].tolist(), [1.0] * (last - first - 1) + [0.0])
            self.assertEqual(float(item["loss_mask"].sum()), sum(end - begin - 1 for _, begin, end in pieces))

    def test_a_micro_batch_goes_through_a_model(self):
        check_forward_step(self, self.example, self.example.build(self.prefix, **self.keys))

    def test_it_runs(self):
        self.assertRegex(printed("megatron_dataset.py"), r"micro-batches of 2048 tokens hold \d+ documents")


class Trl(unittest.TestCase):
    def test_the_trainer_trains_on_the_plan(self):
        with tempfile.TemporaryDirectory() as folder:
            for policy in ("wlb", "lpt"):
                losses = re.findall(r"step (\d+): loss ([\d.]+)", printed("trl_trainer.py", "--steps", 3, "--out", folder, "--policy", policy))
                self.assertEqual([int(step) for step, _ in losses], [1, 2, 3])
                self.assertTrue(all(3 < float(loss) < 6 for _, loss in losses), losses)  # ln 66 = 4.19: nothing to learn


class Verl(unittest.TestCase):
    def test_lengths_come_back_from_workloads(self):
        import verl_balance

        lengths = [1, 2, 1000, 131072, 1 << 20]
        self.assertEqual([verl_balance.length_of(24576 * n + n * n) for n in lengths], lengths)

    def test_verl_asks_for_its_partition(self):
        self.assertRegex(printed("verl_balance.py"), r"\d+ micro-batches by verl, \d+ by lpt")


if __name__ == "__main__":
    cases = {"megatron": Megatron, "trl": Trl, "verl": Verl}
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(cases[sys.argv[1]])
    sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())

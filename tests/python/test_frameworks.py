#!/usr/bin/env python3
"""test_frameworks.py megatron|torchtitan|trl|accelerate|deepspeed|verl: the example of a training framework, run by that framework on
CPU ranks. The weights after some steps are compared with those of plain PyTorch that trains on each document alone."""

import itertools
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
from support import PROGRAM, ROOT, STUDY

EXAMPLES = ROOT / "sim/python/examples"
sys.path.insert(0, str(EXAMPLES))
TOLERANCE = 1e-6  # float32: sums over documents in another order
MOST_SECONDS = 600  # of a run that takes a minute or two


def printed(script, *arguments, ranks=1):
    """What rank 0 of a script prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
             "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(EXAMPLES)}
    started = [
        subprocess.Popen([sys.executable, str(script), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         env={**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(ranks)
    ]
    found = [ended(process, started) for process in started]
    failed = [f"rank {rank}: {errors[-3000:]}" for rank, (process, (_, errors)) in enumerate(zip(started, found)) if process.returncode != 0]
    if failed:
        raise AssertionError("\n".join(failed))
    return found[0][0]


def ended(process, ranks):
    """What a rank has printed at its end. Where it does not end all ranks are killed, because they wait for each other."""
    try:
        return process.communicate(timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        for rank in ranks:
            rank.kill()
        output, errors = process.communicate()
        return output, f"{errors}\nno end within {MOST_SECONDS} s"


def exported(target, folder, **changes):
    """The file of `export` for micro-batches of 256 tokens, 3 of each rank in a step."""
    study = {**STUDY, "framework": target, "model": "qwen2.5-0.5b", "parallel": {}, "policies": ["plain"], **changes}
    ranks = study["parallel"].get("data", 1)
    study["batch"] = {"context_window": 256, "sequences_per_step": 3 * ranks, "steps": 2}
    path = Path(folder) / "study.json"
    path.write_text(json.dumps(study))
    done = subprocess.run([PROGRAM, "export", path, "--for", target, "--quiet"], capture_output=True, text=True, timeout=MOST_SECONDS)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    config = Path(folder) / f"config.{target}"
    config.write_text(done.stdout)
    return config


class Framework(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def assert_equal_weights(self, found, expected):
        import torch

        self.assertEqual(list(found), list(expected))
        for name, value in expected.items():
            self.assertLess(float((found[name] - value).detach().abs().max()), TOLERANCE, name)
        self.assertTrue(all(torch.isfinite(value).all() for value in found.values()))


class WithTransformers:
    """Two ranks of an example that trains Transformers' Qwen2."""

    script, resumed_steps, arguments = "", 2, ()

    def check(self, policy):
        import tiny
        import torch

        data = tiny.documents()
        state, save = self.folder / f"state-{policy}", self.folder / "weights.pt"
        run = (EXAMPLES / self.script, "--policy", policy, "--state", state, "--save", save, "--workers", 2, *self.arguments)
        for steps, taken in ((2, 2), (4, self.resumed_steps)):  # the second run goes on inside an epoch of 3 steps, and into the next
            losses = re.findall(r"loss ([\d.]+)", printed(*run, "--steps", taken, ranks=2))
            self.assertTrue(losses and all(2 < float(loss) < 6 for loss in losses), losses)  # ln 66 = 4.19 of guesses

            def loss(model, tokens):
                batch = {"input_ids": tokens, "position_ids": torch.arange(tokens.shape[1])[None], "labels": tokens.roll(-1, 1)}
                batch["labels"][0, -1] = -100
                return tiny.loss_sum(model, batch)

            lanes = [tiny.sampler(data, policy, lanes=2, lane=lane) for lane in range(2)]
            alone = tiny.alone(tiny.model(), data, lanes, loss, steps)
            self.assert_equal_weights(torch.load(save), dict(alone.named_parameters()))

    def test_weights_are_those_of_each_document_alone(self):
        self.check("lpt")

    def test_lanes_that_have_fewer_micro_batches_than_are_counted(self):
        self.check("ffd")


class Accelerate(WithTransformers, Framework):
    script = "accelerate_loop.py"


class Trl(WithTransformers, Framework):
    script, resumed_steps = "trl_trainer.py", 4  # its steps are counted from the first run's


class DeepSpeed(WithTransformers, Framework):
    script = "deepspeed_engine.py"

    def setUp(self):
        super().setUp()
        self.config = exported("deepspeed", self.folder, parallel={"data": 2, "zero": 1})
        self.arguments = ("--config", self.config, "--plain")

    def test_the_exported_config_as_it_is(self):
        losses = re.findall(r"loss ([\d.]+)", printed(EXAMPLES / self.script, "--config", self.config, "--steps", 1, ranks=2))
        self.assertTrue(len(losses) == 1 and 4 < float(losses[0]) < 4.5, losses)


class Torchtitan(Framework):
    def trained(self, steps, *options):
        import torch

        save = self.folder / "found.pt"
        where = ("--job.dump_folder", self.folder, "--checkpoint.enable", "--checkpoint.interval", 2, "--lr_scheduler.warmup_steps", 1)
        printed(ROOT / "tests/python/torchtitan_on_cpu.py", exported("torchtitan", self.folder), save, "--training.steps", steps, *where, *options)
        return torch.load(save)

    def test_it_trains_on_the_plan_and_resumes(self):
        import tiny

        whole = self.trained(5)
        self.assert_equal_weights(whole["gradients"], whole["alone"])
        steps = len(tiny.sampler(tiny.documents()).rest())
        self.assertEqual((whole["place"]["epoch"], whole["place"]["step"]), divmod(5, steps))
        (self.folder / "checkpoint/step-5").rename(self.folder / "step-5")
        rest = self.trained(5, "--checkpoint.load_step", 2)
        self.assertEqual(rest["place"], whole["place"])
        self.assert_equal_weights(rest["weights"], whole["weights"])


class Megatron(Framework):
    """Megatron-Core's files, model and schedule. An attention of PyTorch is in the place of Transformer Engine's, which needs a GPU."""

    def setUp(self):
        super().setUp()
        import megatron_loop
        import tiny

        self.example, self.tiny = megatron_loop, tiny
        self.data = tiny.documents()
        self.prefix = self.folder / "documents"
        self.example.write_documents(self.prefix, [document["input_ids"] for document in self.data])

    def test_ranks_get_their_lanes(self):
        import equipoise

        options = {"context_window": 128, "sequences_per_step": 4, "oversize": "split", "pack_window": 2}
        lengths = [len(document["input_ids"]) for document in self.data]
        plan = equipoise.pack(lengths, "fixed-greedy", lanes=2, micro_batches=6, **options)
        for rank in range(2):
            loader = self.example.loader_of(self.prefix, "fixed-greedy", 2, rank, accumulate=3, length=128, **options)
            expected = [m for step in plan.steps for m in step[rank] + [[]] * (3 - len(step[rank]))]
            self.assertEqual(len(loader), len(expected))
            for pieces, batch in zip(expected, itertools.islice(loader, len(loader))):
                tokens = [t for document, begin, end in pieces for t in self.data[document]["input_ids"][begin:end]]
                self.assertEqual(batch["tokens"].tolist(), [tokens + [0] * (128 - len(tokens))])
                borders = np.cumsum([0] + [end - begin for _, begin, end in pieces] + ([128 - len(tokens)] if len(tokens) < 128 else []))
                self.assertEqual(batch["cu_seqlens"].tolist(), borders.tolist())
                self.assertEqual(int(batch["loss_mask"].sum()), sum(end - begin - 1 for _, begin, end in pieces))

    def test_weights_are_those_of_each_document_alone(self):
        import torch
        from megatron.core import parallel_state
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.models.gpt.gpt_model import GPTModel
        from megatron.core.packed_seq_params import PackedSeqParams
        from megatron.core.pipeline_parallel import get_forward_backward_func
        from megatron.core.transformer.dot_product_attention import DotProductAttention
        from megatron.core.transformer.transformer_config import TransformerConfig
        from torch.overrides import TorchFunctionMode

        class ByDocument(DotProductAttention):
            def forward(self, query, key, value, attention_mask, packed_seq_params=None, **_):
                sizes = packed_seq_params.cu_seqlens_q.diff().tolist()
                apart = zip(*(x.transpose(0, 1).split(sizes, dim=1) for x in (query, key, value)))
                return torch.cat([torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=True) for qkv in apart], dim=1).transpose(0, 1)

        class OnCpu(TorchFunctionMode):  # because the schedule counts tokens on "cuda"
            def __torch_function__(self, function, types, args=(), kwargs=None):
                return function(*args, **{key: "cpu" if value == "cuda" else value for key, value in (kwargs or {}).items()})

        def model_of():
            torch.manual_seed(0)
            config = TransformerConfig(
                num_layers=2, hidden_size=32, num_attention_heads=2, use_cpu_initialization=True, calculate_per_token_loss=True, hidden_dropout=0,
                attention_dropout=0, gradient_accumulation_fusion=False, bias_dropout_fusion=False, persist_layer_norm=False)
            config.finalize_model_grads_func = lambda models, tokens, **_: [p.grad.div_(tokens) for p in models[0].parameters()]
            spec = get_gpt_layer_local_spec()
            spec.submodules.self_attention.submodules.core_attention = ByDocument
            return GPTModel(config, spec, vocab_size=self.tiny.WORDS + 2, max_sequence_length=256)

        def loss(model, tokens):
            count = tokens.shape[1]
            ends = torch.tensor([0, count], dtype=torch.int32)
            packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=count, max_seqlen_kv=count)
            return model(tokens, torch.arange(count)[None], None, labels=tokens.roll(-1, 1), packed_seq_params=packed)[0, :-1].sum()

        torch.distributed.init_process_group("gloo", init_method=f"file://{self.folder}/meet", rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        parallel_state.initialize_model_parallel()
        def loader_of():
            return self.example.Loader(
                self.data, self.tiny.sampler(self.data, multiple=8), form=self.example.megatron, length=256, endless=True, num_workers=2)

        model, loader = model_of(), loader_of()
        optimizer, batches = torch.optim.SGD(model.parameters(), lr=self.tiny.RATE), iter(loader)
        for step in range(4):
            if step == 2:  # goes on inside an epoch of 3 steps, and into the next
                state, loader = loader.state_dict(), loader_of()
                loader.load_state_dict(state)
                batches = iter(loader)
            optimizer.zero_grad()
            with OnCpu():
                get_forward_backward_func()(
                    forward_step_func=self.example.forward_step, data_iterator=batches, model=model, num_microbatches=self.tiny.MICRO_BATCHES,
                    seq_length=256, micro_batch_size=1, forward_only=False)
            optimizer.step()
        alone = self.tiny.alone(model_of(), self.data, [self.tiny.sampler(self.data, multiple=8)], loss, 4)
        self.assert_equal_weights(dict(model.named_parameters()), dict(alone.named_parameters()))

    def test_it_runs(self):
        self.assertEqual(len(re.findall(r"step \d+: 3 micro-batches of 256 tokens with \d+ labels", printed(EXAMPLES / "megatron_loop.py"))), 3)


class Verl(unittest.TestCase):
    def test_lengths_come_back_from_workloads(self):
        import verl_balance

        lengths = [1, 2, 1000, 131072, 1 << 20]
        self.assertEqual([verl_balance.length_of(24576 * n + n * n) for n in lengths], lengths)

    def test_verl_asks_for_its_partition(self):
        self.assertRegex(printed(EXAMPLES / "verl_balance.py"), r"\d+ micro-batches by verl, \d+ by lpt")


if __name__ == "__main__":
    cases = {"megatron": Megatron, "torchtitan": Torchtitan, "trl": Trl, "accelerate": Accelerate, "deepspeed": DeepSpeed, "verl": Verl}
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(cases[sys.argv[1]])
    sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())

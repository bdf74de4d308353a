#!/usr/bin/env python3
"""import_job: scripts and log heads of Megatron-LM, TOML of torchtitan, and what `equipoise export` prints."""

import json
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import PROGRAM

import equipoise

SCRIPT = r"""#!/bin/bash
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-4}   # of the job
TP=2
# --num-layers 99
DISTRIBUTED_ARGS=(--nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES --master_port 6000)
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --swiglu --untie-embeddings-and-output-weights --vocab-size 128256
    --seq-length 8192 --normalization RMSNorm --rotary-base 500000
)
TRAINING_ARGS="--micro-batch-size 2 --global-batch-size 128 --bf16 --lr 3e-4 --recompute-granularity full \
    --recompute-method block --recompute-num-layers 2"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} \
    --tensor-model-parallel-size ${TP} --sequence-parallel --pipeline-model-parallel-size 2 \
    --num-layers-per-virtual-pipeline-stage 4 --context-parallel-size 2 --cp-comm-type a2a \
    --use-distributed-optimizer --overlap-grad-reduce --frobnicate 3 --tensorboard-dir /x > log.txt 2>&1
"""
HEAD = """using world size: 16, data-parallel size: 4
------------------------ arguments ------------------------
  context_parallel_size ........................... 1
  global_batch_size ............................... 64
  hidden_size ..................................... 2048
  frobnicate ...................................... True
  group_query_attention ........................... False
  lr .............................................. 0.0003
  num_attention_heads ............................. 16
  num_layers ...................................... 24
  num_query_groups ................................ 1
  pipeline_model_parallel_size .................... 2
  seq_length ...................................... 4096
  swiglu .......................................... False
  tensor_model_parallel_size ...................... 2
  use_distributed_optimizer ....................... True
  virtual_pipeline_model_parallel_size ............ None
  bf16 ............................................ True
  padded_vocab_size ............................... 50304
  world_size ...................................... 16
-------------------- end of arguments ---------------------
"""
TITAN = """
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "70B"
converters = ["quantize.linear.float8"]
[training]
seq_len = 8192
local_batch_size = 2
dataset = "c4"
[parallelism]
tensor_parallel_degree = 8
data_parallel_shard_degree = -1
frobnicate = true
[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
"""


class Importing(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def job(self, text, name="job.sh", **options):
        path = self.folder / name
        path.write_text(text)
        return equipoise.import_job(path, **options)

    def runs(self, job):
        study = {**job.study, "batch": {**job.study["batch"], "steps": 1}, "cluster": {"profile": "h100-sxm", "memory_GB": 10000}}
        self.assertEqual(equipoise.study(study).frame()["status"].tolist(), ["ok"])

    def test_a_script_of_megatron(self):
        job = self.job(SCRIPT)
        self.assertEqual(job.framework, "Megatron-LM")
        self.assertEqual(job.unknown, ["frobnicate"])
        self.assertEqual(
            job.study["parallel"],
            {"tensor": 2, "context": 2, "pipeline": 2, "data": 4, "virtual_pipeline": 4, "context_comm": "ulysses",
             "zero": 1, "recompute": {"layers": 16}})
        self.assertEqual(job.study["batch"]["sequences_per_step"], 128)
        self.assertEqual(job.study["batch"]["micro_batch_size"], 2)
        self.assertEqual(job.study["model"]["kv_heads"], 8)
        self.assertEqual(job.study["framework"]["overlap_grad_reduce"], True)
        self.runs(job)
        self.assertEqual(self.job(SCRIPT, gpus=64).study["parallel"]["data"], 8)
        with self.assertRaisesRegex(ValueError, "gpus: expected a multiple of the 8 of a replica, found 12"):
            self.job(SCRIPT, gpus=12)

    def test_the_head_of_a_log(self):
        job = self.job(HEAD, "train.log")
        self.assertEqual(job.unknown, ["frobnicate"])
        self.assertEqual(job.study["parallel"], {"tensor": 2, "context": 1, "pipeline": 2, "data": 4, "zero": 1})
        model = job.study["model"]
        self.assertEqual((model["kv_heads"], model["ffn"], model["vocab"], model["gated_ffn"]), (16, 8192, 50304, False))
        self.runs(job)

    def test_a_file_of_torchtitan(self):
        job = self.job(TITAN, "llama3_70b.toml", gpus=64)
        self.assertEqual(job.framework, "torchtitan")
        self.assertEqual(job.unknown, ["parallelism.frobnicate"])
        self.assertEqual(
            job.study["parallel"],
            {"tensor": 8, "context": 1, "pipeline": 1, "data": 8, "zero": 3, "recompute": {"layers": 40}})
        self.assertEqual(job.study["precision"], "fp8")
        self.assertEqual(job.study["batch"]["sequences_per_step"], 16)
        self.runs(job)

    def test_values_that_mean_nothing_are_refused_or_named(self):
        for old, new, says in (("--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 0", "pipeline_model_parallel_size: expected an integer from 1"),
                               ("--context-parallel-size 2", "--context-parallel-size -2", "context_parallel_size: expected an integer from 1")):
            self.assertIn(old, SCRIPT)
            with self.assertRaisesRegex(ValueError, says):
                self.job(SCRIPT.replace(old, new))
        job = self.job(TITAN.replace("frobnicate = true", "pipeline_parallel_degree = 2\npipeline_parallel_schedule = \"Bogus\""), "llama3_70b.toml", gpus=64)
        self.assertIn("parallelism.pipeline_parallel_schedule", job.unknown)

    def test_what_is_no_job_is_refused(self):
        for text, name in (("hello", "a.txt"), ("[parallelism\n", "b.toml"), ("x = 1\n", "c.toml")):
            with self.assertRaisesRegex(ValueError, re.escape(name)):
                self.job(text, name)
        with self.assertRaisesRegex(ValueError, "framework: expected"):
            self.job(SCRIPT, framework="jax")

    def test_what_export_prints_comes_back(self):
        study = {
            "trace": {"uniform": 8192}, "model": "llama3.1-8b", "framework": "megatron",
            "parallel": {"tensor": 2, "context": 2, "pipeline": 2, "data": 2, "virtual_pipeline": 2, "zero": 1, "recompute": {"layers": 8},
                         "context_comm": "ulysses"},
            "batch": {"context_window": 8192, "sequences_per_step": 16, "micro_batch_size": 1, "steps": 1}, "policies": ["plain"],
        }
        file = self.folder / "study.json"
        for framework, changes in (("megatron", {}), ("torchtitan", {"zero": 2, "context_comm": "all-gather", "recompute": "full"})):
            with self.subTest(framework):
                parallel = {**study["parallel"], **changes}
                file.write_text(json.dumps({**study, "parallel": parallel, "framework": framework}))
                printed = subprocess.run([PROGRAM, "export", file, "--for", framework], capture_output=True, text=True)
                self.assertEqual(printed.returncode, 0, printed.stderr)
                named = printed.stdout + ('[model]\nname = "llama3"\nflavor = "8B"\n' if framework == "torchtitan" else "")
                job = self.job(named, "job.toml" if framework == "torchtitan" else "job.sh", gpus=16)
                self.assertEqual(job.unknown, [])
                self.assertEqual(job.study["parallel"], parallel)
                self.assertEqual(job.study["batch"]["sequences_per_step"], 16)
                self.assertEqual(job.study["batch"]["context_window"], 8192)


if __name__ == "__main__":
    unittest.main()

"""`equipoise import`: a job of each framework becomes a study that runs, and what `export` prints comes back."""

import json
import os
import random
import re
import subprocess
import sys
import unittest
from pathlib import Path

from support import PROGRAM, Case, run

IMPORTER = Path(__file__).resolve().parents[2] / "sim/python/equipoise"
sys.path.append(str(IMPORTER))
from importing import FORMATS, import_job  # noqa: E402
from importing.job import Table, of_tables  # noqa: E402
from importing.models import known_model, plain_name  # noqa: E402

MEGATRON = r"""#!/bin/bash
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
BRIDGE = r"""RECIPE=${RECIPE:-"llama3_8b_pretrain_config"}
torchrun --nproc_per_node=8 run_recipe.py --recipe ${RECIPE} \
    model.tensor_model_parallel_size=2 model.sequence_parallel=True model.context_parallel_size=2 \
    model.cp_comm_type=a2a dataset.seq_length=16384 train.global_batch_size=8 train.micro_batch_size=1 \
    optimizer.lr=3e-4 ddp.use_distributed_optimizer=True comm_overlap.tp_comm_overlap=True \
    model.recompute_granularity=selective mixed_precision=bf16_with_fp8_current_scaling_mixed model.frobnicate=1
"""
NEMO = """
trainer: {num_nodes: 2, devices: 8, precision: bf16, max_steps: 100}
exp_manager: {name: x}
model:
  micro_batch_size: 1
  global_batch_size: 32
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 2
  encoder_seq_length: 4096
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 11008
  num_attention_heads: 32
  activation: fast-swiglu
  share_embeddings_and_output_weights: false
  sequence_parallel: true
  activations_checkpoint_granularity: full
  activations_checkpoint_method: block
  activations_checkpoint_num_layers: 2
  frobnicate: 3
  optim: {name: distributed_fused_adam, lr: 1e-4, overlap_grad_sync: true}
  data: {seq_length: "${model.encoder_seq_length}", num_workers: 2}
"""
AUTOMODEL = """
recipe: TrainFinetuneRecipeForNextTokenPrediction
model: {pretrained_model_name_or_path: Qwen/Qwen3-8B, torch_dtype: bf16}
distributed: {strategy: fsdp2, tp_size: 2, cp_size: 1, dp_size: none, activation_checkpointing: true, frobnicate: 1}
step_scheduler: {global_batch_size: 32, local_batch_size: 2, max_steps: 10}
dataset: {seq_length: 4096}
packed_sequence: {packed_sequence_size: 4096}
peft: {dim: 16, target_modules: "*_proj"}
"""
VERL = r"""
python3 -m verl.trainer.main_ppo data.max_prompt_length=1024 data.max_response_length=3072 data.train_batch_size=256 \
    actor_rollout_ref.model.path="${MODEL_PATH:-"Qwen/Qwen2.5-7B-Instruct"}" actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.frobnicate=7 \
    trainer.n_gpus_per_node=8 trainer.nnodes=2 algorithm.adv_estimator=grpo
"""
DEEPSPEED = """{"train_batch_size": 128, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto",
 "bf16": {"enabled": true}, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "overlap_comm": true},
 "frobnicate": 1, "steps_per_print": 10}"""
TRL = """
model_name_or_path: meta-llama/Llama-3.2-1B-Instruct
max_length: 4096
packing: true
bf16: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
gradient_checkpointing: true
use_peft: true
lora_r: 32
lora_target_modules: [q_proj, k_proj, v_proj, o_proj]
learning_rate: 1.0e-4
frobnicate: 1
"""
AXOLOTL = """
base_model: NousResearch/Meta-Llama-3.1-8B
sequence_len: 8192
sample_packing: true
micro_batch_size: 1
gradient_accumulation_steps: 2
bf16: auto
gradient_checkpointing: true
context_parallel_size: 2
dp_shard_size: 4
fsdp_version: 2
fsdp_config: {reshard_after_forward: false, state_dict_type: FULL_STATE_DICT}
frobnicate: yes
"""
LLAMAFACTORY = """
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
finetuning_type: full
deepspeed: examples/ds_z3_config.json
cutoff_len: 2048
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
bf16: true
learning_rate: 1.0e-5
frobnicate: 1
"""
# Each has its format, file, text, options, what the study has, and what was not understood.
JOBS = [
    ("megatron", "job.sh", MEGATRON, [], {
        "parallel": {"tensor": 2, "context": 2, "pipeline": 2, "data": 4, "virtual_pipeline": 4, "context_comm": "ulysses", "zero": 1,
                     "recompute": {"layers": 16}},
        "batch": {"context_window": 8192, "sequences_per_step": 128, "micro_batch_size": 2}, "precision": "bf16"}, ["frobnicate"]),
    ("megatron", "train.log", HEAD, [], {
        "parallel": {"tensor": 2, "context": 1, "pipeline": 2, "data": 4, "zero": 1},
        "model": {"kv_heads": 16, "ffn": 8192, "vocab": 50304, "gated_ffn": False}}, ["frobnicate"]),
    ("torchtitan", "llama3_70b.toml", TITAN, ["--gpus", 64], {
        "parallel": {"tensor": 8, "context": 1, "pipeline": 1, "data": 8, "zero": 3, "recompute": {"layers": 40}},
        "batch": {"sequences_per_step": 16}, "precision": "fp8", "model": "llama3.1-70b"}, ["parallelism.frobnicate"]),
    ("bridge", "recipe.sh", BRIDGE, [], {
        "model": "llama3.1-8b", "precision": "fp8", "framework": {"preset": "megatron", "tp_overlap": True},
        "parallel": {"tensor": 2, "context": 2, "pipeline": 1, "data": 2, "context_comm": "ulysses", "zero": 1, "recompute": "selective"},
        "batch": {"context_window": 16384, "sequences_per_step": 8}}, ["model.frobnicate"]),
    ("nemo", "llama.yaml", NEMO, [], {
        "parallel": {"tensor": 4, "context": 1, "pipeline": 2, "data": 2, "virtual_pipeline": 2, "zero": 1, "recompute": {"layers": 8}},
        "model": {"layers": 32, "kv_heads": 32, "gated_ffn": True, "tied_embeddings": False},
        "framework": {"overlap_grad_reduce": True}, "batch": {"context_window": 4096, "sequences_per_step": 32}}, ["model.frobnicate"]),
    ("nemo", "auto.yaml", AUTOMODEL, ["--gpus", 8], {
        "model": "qwen3-8b", "parallel": {"tensor": 2, "data": 4, "zero": 3, "recompute": "full"}, "lora": {"dim": 16},
        "policies": [{"name": "longalign-packing"}], "batch": {"sequences_per_step": 32, "micro_batch_size": 2}}, ["distributed.frobnicate"]),
    ("verl", "grpo.sh", VERL, [], {
        "model": "qwen2.5-7b", "parallel": {"context": 2, "data": 8, "context_comm": "ulysses", "zero": 3, "recompute": "full"},
        "batch": {"documents_per_step": 256}, "trace": {"uniform": 4096},
        "policies": [{"name": "karmarkar-karp", "tokens_per_micro_batch": 32768}]}, ["actor_rollout_ref.actor.frobnicate"]),
    ("deepspeed", "ds.json", DEEPSPEED, ["--model", "qwen3-0.6b", "--gpus", 8], {
        "framework": "deepspeed", "parallel": {"data": 8, "zero": 2, "optimizer_offload": 1.0},
        "batch": {"documents_per_step": 128, "micro_batch_size": 2, "micro_batches": 64}, "policies": [{"name": "padded"}]}, ["frobnicate"]),
    ("trl", "sft.yaml", TRL, ["--gpus", 4, "--gpu", "h200"], {
        "parallel": {"data": 4, "zero": 0, "recompute": "full"}, "lora": {"dim": 32, "target_modules": ["linear_qkv", "linear_proj"]},
        "batch": {"sequences_per_step": 32, "micro_batch_size": 2, "context_window": 4096}, "policies": [{"name": "bfd"}],
        "cluster": {"profile": "h200-sxm"}}, ["frobnicate"]),
    ("axolotl", "ax.yml", AXOLOTL, [], {
        "model": "llama3.1-8b", "parallel": {"context": 2, "data": 4, "context_comm": "ring", "zero": 2, "recompute": "full"},
        "batch": {"sequences_per_step": 8}, "policies": [{"name": "ffd"}]}, ["frobnicate"]),
    ("llamafactory", "lf.yaml", LLAMAFACTORY, ["--gpus", 8], {
        "model": "qwen2.5-7b", "framework": "deepspeed", "parallel": {"data": 8, "zero": 3, "recompute": "full"},
        "batch": {"documents_per_step": 64, "micro_batches": 16, "micro_batch_size": 4}, "policies": [{"name": "padded"}]}, ["frobnicate"]),
]


class Import(Case):
    def test_experts_without_graphs_of_whole_layers_are_eager(self):
        def job(flags):
            study, said = self.imported("job.sh", MEGATRON.replace("--frobnicate 3", flags))
            framework = study["framework"]
            self.assertEqual(any("megatron-eager" in line for line in said), framework["preset"] == "megatron-eager")
            return framework["preset"], framework.get("graphs")

        for graphs, chosen in (("", ("megatron-eager", None)), ("--cuda-graph-impl local", ("megatron", "layer")),
                               ("--cuda-graph-impl none", ("megatron-eager", None)), ("--enable-cuda-graph", ("megatron", "layer")),
                               ("--cuda-graph-impl local --cuda-graph-scope full_iteration", ("megatron", "full")),
                               ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router", ("megatron-eager", "attention")),
                               ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn moe", ("megatron", "layer"))):
            for spread in ("", "--expert-model-parallel-size 4 "):
                with self.subTest(graphs=graphs, spread=spread):
                    self.assertEqual(job("--num-experts 8 " + spread + graphs), chosen)
        self.assertEqual(job(""), ("megatron", None))
        self.assertEqual(job("--cuda-graph-impl transformer_engine --cuda-graph-scope attn mlp"), ("megatron", "layer"))

    def test_adapters_without_graphs_of_whole_layers_are_eager(self):
        job = "torchrun --nproc_per_node=8 run_recipe.py --recipe llama3_8b_peft_config train.global_batch_size=16\n"
        study, _ = self.imported("peft.sh", job, "--as", "bridge")
        self.assertEqual((study["framework"]["preset"], study["lora"]["dim"]), ("megatron-eager", 32))

    def imported(self, name, text, *options):
        """The study that is printed, and the lines on stderr."""
        done = run("import", self.write(name, text), *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout), done.stderr.splitlines()

    def holds(self, found, expected, where):
        for key, value in expected.items():
            if isinstance(value, dict) and isinstance(found[key], dict):
                self.holds(found[key], value, f"{where}.{key}")
            elif isinstance(value, list) and value and isinstance(value[0], dict):
                self.holds(found[key][0], value[0], f"{where}.{key}.0")
            else:
                self.assertEqual(found[key], value, f"{where}.{key}")

    def test_a_job_of_each_framework(self):
        for framework, name, text, options, expected, unknown in JOBS:
            with self.subTest(framework=framework, file=name):
                study, notes = self.imported(name, text, *options)
                self.holds(study, expected, name)
                self.assertEqual([line.removeprefix("not understood: ") for line in notes if line.startswith("not ")], unknown)
                self.assertTrue(any(line.startswith("assumed: documents of ") for line in notes), notes)
                self.assertEqual(self.imported(name, text, *options, "--as", framework)[0], study)
                path = self.write("study.json", study)
                result = json.loads(self.ok("study", path, "--set", "batch.steps=1", "--set", "cluster.memory_GB=100000", "--quiet", "--format", "json"))
                self.assertEqual([row["status"] for row in result["policies"]], ["ok"], result["policies"][0].get("reason"))
        self.assertEqual({job[0] for job in JOBS}, set(FORMATS))

    def test_where_the_study_goes(self):
        job, out = self.write("lf.yaml", LLAMAFACTORY), self.folder / "out.json"
        self.assertEqual(self.ok("import", job, "--gpus", 8, "--out", out, "--quiet"), "")
        self.assertEqual(json.loads(out.read_text()), json.loads(self.ok("import", job, "--gpus", 8)))
        self.assertIn("parallel.zero", self.ok("import", job, "--format", "table"))
        self.refused("import", job, "--out", job, says=["--out", "expected another file"])
        self.assertEqual(job.read_text(), LLAMAFACTORY)
        self.refused("import", job, "--out", self.folder / "no/such", says=["--out", "cannot be written"])

    def test_gpus_that_nobody_counted_are_assumed(self):
        study, notes = self.imported("lf.yaml", LLAMAFACTORY)
        self.assertEqual(study["parallel"]["data"], 8)
        self.assertTrue(any("8 GPUs" in line and "--gpus" in line for line in notes), notes)

    def test_what_is_refused(self):
        for text, name, options, says in (
            ("hello", "a.txt", [], ["a.txt", "none of their settings"]),
            ("[parallelism\n", "b.toml", [], ["b.toml", "expected TOML"]),
            ("a: [1\n", "c.yaml", [], ["c.yaml", "expected YAML"]),
            (MEGATRON, "j.sh", ["--as", "jax"], ["--as", "found jax"]),
            (MEGATRON, "j.sh", ["--gpus", 12], ["gpus: expected a multiple of the 8 of a replica, found 12"]),
            (MEGATRON.replace("size 2 \\", "size 0 \\"), "j.sh", [], ["pipeline_model_parallel_size: expected an integer from 1"]),
            (DEEPSPEED, "ds.json", [], ["--model"]),
            (TRL.replace("meta-llama/Llama-3.2-1B-Instruct", "some/model"), "t.yaml", [], ["model_name_or_path", "some/model", "--model"]),
            (TRL, "t.yaml", ["--gpu", "tpu"], ["--gpu", "found tpu"]),
            (DEEPSPEED.replace('_gpu": 2', '_gpu": 3'), "ds.json", ["--model", "qwen3-0.6b", "--gpus", 8], ["train_batch_size: expected a multiple of the 24"]),
        ):
            with self.subTest(name=name, options=options):
                self.refused("import", self.write(name, text), *options, says=says)

    def test_damaged_files_are_refused_or_read(self):
        """Whatever a file holds, the importer ends with a study or one line."""
        draws = random.Random(61)
        for at in range(300):
            _, name, text, options, _, _ = draws.choice(JOBS)
            if draws.random() < 0.5:
                other = ("0", "-1", "99999999999", "1.5", "none", "[1, 2]", '"x"', "true", "1e9")
                damaged = re.sub(r"\d+", lambda found: draws.choice((found[0], *other)) if draws.random() < 0.3 else found[0], text)
            else:
                damaged = text[:draws.randrange(len(text))]
            path = self.write(name, damaged)
            with self.subTest(case=at, file=name):
                try:
                    import_job(path, gpus=draws.choice([None, 8, 64]), model=draws.choice([None, "qwen3-0.6b"]))
                except ValueError as error:
                    self.assertTrue(str(error).startswith(str(path)), error)

    def test_a_config_json_says_the_shape(self):
        config = self.write("config.json", {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "intermediate_size": 4096,
                                            "vocab_size": 32000, "num_key_value_heads": 4, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "hidden_act": "silu",
                                            "tie_word_embeddings": False})
        named = TRL.replace("meta-llama/Llama-3.2-1B-Instruct", str(self.folder))
        for text, options in ((TRL, ["--model", config]), (named, [])):
            study, _ = self.imported("t.yaml", text, "--gpus", 4, *options)
            self.assertEqual(study["model"], {"hf_config": str(config.resolve())})

    def test_what_export_prints_comes_back(self):
        base = {"trace": {"uniform": 8192}, "model": "llama3.1-8b", "policies": [{"name": "plain"}],
                "batch": {"context_window": 8192, "sequences_per_step": 16, "micro_batch_size": 1, "steps": 1}, "cluster": {"memory_GB": 10000}}
        layouts = [{"tensor": 2, "context": 2, "pipeline": 2, "data": 2}, {"tensor": 1, "context": 1, "pipeline": 1, "data": 16}, {"tensor": 8, "context": 1, "pipeline": 1, "data": 2},
                   {"tensor": 1, "context": 1, "pipeline": 4, "data": 4}]
        own = {
            "megatron": [{"zero": 1, "recompute": {"layers": 8}, "context_comm": "ulysses"}, {"zero": 0}, {"zero": 1, "recompute": "full"}, {"zero": 1, "virtual_pipeline": 2}],
            "nemo": [{"zero": 1, "recompute": {"layers": 8}, "context_comm": "ring"}, {"zero": 3}, {"zero": 1, "recompute": "selective"}, {"zero": 1, "virtual_pipeline": 2}],
            "torchtitan": [{"zero": 2, "recompute": "full", "context_comm": "all-gather"}, {"zero": 3, "recompute": {"layers": 16}}, {"zero": 3}, {"zero": 2}],
            "deepspeed": [None, {"zero": 3}, {"zero": 1}, None],
            "verl": [{"zero": 1, "recompute": "full", "context_comm": "ring"}, {"zero": 3}, {"zero": 1}, {"zero": 1}],
        }
        for framework, more in own.items():
            for layout, keys in zip(layouts, more):
                if keys is None:
                    continue
                with self.subTest(framework=framework, layout=layout, keys=keys):
                    preset = {"nemo": "megatron", "verl": "fsdp" if layout["data"] == 16 else "megatron"}.get(framework, framework)
                    study = {**base, "framework": preset, "parallel": {**layout, **keys}}
                    if framework == "verl":
                        study["batch"] = {"context_window": 8192, "documents_per_step": 32, "micro_batch_size": 1, "steps": 1}
                        study["policies"] = [{"name": "karmarkar-karp", "tokens_per_micro_batch": 16384}]
                    self.comes_back(framework, study)

    def comes_back(self, framework, study):
        text = self.ok("export", self.write("study.json", study), "--for", framework, "--quiet")
        name = {"deepspeed": "job.json", "torchtitan": "job.toml"}.get(framework, "job.sh")
        gpus = study["parallel"]["tensor"] * study["parallel"]["context"] * study["parallel"]["pipeline"] * study["parallel"]["data"]
        again, notes = self.imported(name, text, "--gpus", gpus, "--model", "llama3.1-8b")
        self.assertEqual([line for line in notes if line.startswith("not understood")], [], text)
        found = {**again["parallel"]}
        for key in ("tensor", "context", "pipeline", "data"):
            found.setdefault(key, 1)
        if found.get("recompute") == "none":
            del found["recompute"]
        self.assertEqual(found, study["parallel"], text)
        if framework == "deepspeed":
            self.assertEqual(again["batch"]["documents_per_step"], study["batch"]["sequences_per_step"])
        elif framework == "verl":
            self.assertEqual(again["batch"]["documents_per_step"], study["batch"]["documents_per_step"])
            self.assertEqual(again["policies"][0]["tokens_per_micro_batch"], 16384)
        else:
            for key in ("sequences_per_step", "micro_batch_size", "context_window"):
                self.assertEqual(again["batch"][key], study["batch"][key], text)
        # What is exported of the study that came back is the same text but for its comments.
        twice = self.ok("export", self.write("again.json", {**again, "batch": {**again["batch"], "steps": 1}, "cluster": {"memory_GB": 10000}}), "--for", framework, "--quiet")
        if framework != "deepspeed":
            strip = lambda printed: [line for line in printed.splitlines() if not line.startswith("#")]  # noqa: E731
            self.assertEqual(strip(twice), strip(text))


class Tables(unittest.TestCase):
    def test_built_in_models_are_the_program_s(self):
        listed = json.loads(subprocess.run([PROGRAM, "list", "models", "--format", "json"], capture_output=True, text=True, check=True).stdout)
        names = of_tables("names")
        self.assertEqual(names["built_in"], {one["name"]: int(re.match(r"(\d+) layers", one["summary"])[1]) for one in listed})
        self.assertEqual(set(names["with_experts"]), {one["name"] for one in listed if "expert" in one["summary"]})
        self.assertLessEqual(set(names["with_latent_attention"]), set(names["built_in"]))
        for model in names["models"].values():
            self.assertTrue(isinstance(model, dict) or model in names["built_in"], model)

    def test_a_repository_s_name(self):
        for name, plain in (("NousResearch/Meta-Llama-3-8B-Instruct", "llama-3-8b"), ("Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b"),
                            ("mistralai/Mistral-7B-v0.1", "mistral-7b"), ("unsloth/Qwen2.5-7B-bnb-4bit", "qwen2.5-7b")):
            self.assertEqual(plain_name(name), plain)
        self.assertEqual(known_model("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"), "qwen2.5-7b")
        self.assertIsNone(known_model("Qwen/Qwen2.5-VL-7B-Instruct"))

    def test_every_key_of_a_table_is_asked_for(self):
        """A row whose meaning no maker asks for would hide a setting."""
        sources = {name: (IMPORTER / f"importing/{name}.py").read_text() for name in ("megatron", "trainer", "verl", "torchtitan")}
        for formats in FORMATS.values():
            for name, maker in formats.items():
                text = sources[maker.__name__] + (sources["megatron"] if name == "verl" else "")
                for key, meaning in (Table(name).keys or {}).items():
                    self.assertRegex(text, rf'"{re.escape(meaning)}"', f"{name}: {key}")

    @unittest.skipUnless(os.environ.get("MEGATRON_LM"), "no checkout of Megatron-LM (MEGATRON_LM names its folder)")
    def test_the_flags_are_megatron_s(self):
        sources = "\n".join(path.read_text(errors="replace") for part in ("training", "core") for path in Path(os.environ["MEGATRON_LM"], "megatron", part).rglob("*.py"))
        words = set(re.findall(r"[a-z_]\w*", sources)) | {flag.replace("-", "_") for flag in re.findall(r"--([a-z][\w-]*)", sources)}
        asked = set(re.findall(r'job\.(?:get|count|degree|needed|is_set|has)\("(\w+)"', (IMPORTER / "importing/megatron.py").read_text()))
        # What recipes and NeMo say in other words, or in addition.
        others = {meaning for name in ("bridge", "nemo") for meaning in (Table(name).keys or {}).values()} | {"model", "recipe"}
        self.assertEqual({name for name in asked if name not in words and name not in others}, set())
        self.assertGreater(len(asked & words), 60)


if __name__ == "__main__":
    unittest.main()

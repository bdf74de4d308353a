"""What `export` tells training frameworks: whole files next to it (exported/, EQUIPOISE_WRITE_PAGES=1 writes them anew), each read
by its own format's parser, and values against the study's. Where a framework is installed, its own parser reads its file.

EQUIPOISE names the program; ctest sets it.
"""

import copy
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib
import unittest
import unittest.mock

from support import PROGRAM, STUDY, Case, run

GOLDEN = pathlib.Path(__file__).resolve().parent / "exported"
NAMES = {"megatron": "megatron.sh", "nemo": "nemo.sh", "deepspeed": "deepspeed.json", "torchtitan": "torchtitan.toml", "verl": "verl.sh"}
MOE = {
    "name": "experts", "trace": {"uniform": "4K"}, "model": "deepseek-v2", "precision": "fp8",
    "framework": {"preset": "megatron", "expert_overlap": "shared-expert"},
    "parallel": {"tensor": 1, "pipeline": 8, "data": 8, "expert": 8, "recompute": {"modules": ["layernorm", "moe_act"]}},
    "batch": {"context_window": "4K", "sequences_per_step": 64, "steps": 1}, "policies": ["plain"], "cluster": {"memory_GB": 200},
}


def words(text):
    """The words of the shell array in an export."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return shlex.split("\n".join(lines[1:-1]))


def flags(text):
    found = {}
    for word in words(text):
        if word.startswith("--"):
            found[word] = []
            last = word
        else:
            found[last].append(word)
    return {key: value[0] if len(value) == 1 else value or True for key, value in found.items()}


def overrides(text):
    return dict(word.split("=", 1) for word in words(text))


class Export(Case):
    def export(self, target, study=STUDY, *arguments):
        return self.ok("export", self.write("study.json", study), "--for", target, "--quiet", *arguments)

    def test_the_files_are_as_they_were(self):
        for target, name in NAMES.items():
            text = self.export(target, STUDY, "--row", "wlb")
            if os.environ.get("EQUIPOISE_WRITE_PAGES"):
                (GOLDEN / name).write_text(text)
            self.assertEqual(text, (GOLDEN / name).read_text(), target)

    def test_what_cannot_be_expressed_stands_in_the_file_and_on_stderr(self):
        path = self.write("study.json", STUDY)
        for target in NAMES:
            found = run("export", path, "--for", target, "--row", "wlb")
            notes = [line.split(": ", 2)[2] for line in found.stderr.splitlines()]
            self.assertTrue(any(note.startswith("policy wlb (queues 2") for note in notes), notes)
            for note in notes:
                self.assertIn("; nearest: ", note)
                self.assertIn("cannot be expressed: " + note, json.loads(found.stdout)["_comment"] if target == "deepspeed" else found.stdout)

    def test_the_head_says_what_the_flags_alone_come_to(self):
        plain = dict(STUDY, policies=[*STUDY["policies"], {"name": "plain", "shard": "per-document", "label": "own"}])
        own = self.export("megatron", plain, "--row", "own")
        self.assertNotIn("the flags alone", own)
        head = "that includes what is not expressed (below); the flags alone"
        simulated = own.splitlines()[2].split("simulated: ")[1]
        for row in ("wlb", "plain-4d"):  # the same figure as that of the row that does what they say
            self.assertIn(f"# {head} (plain, per-document), simulated: {simulated}\n", self.export("megatron", plain, "--row", row))
        # The number of micro-batches is the policy's; the flags have a window in each.
        counted = dict(plain, batch=dict(STUDY["batch"], micro_batches=8))
        self.assertIn(f"per-document), simulated: {simulated}\n", self.export("megatron", counted, "--row", "wlb"))
        # A layout that the flags do not say has no figure, nor has packing that is not theirs.
        cast = dict(STUDY, parallel=STUDY["parallel"] | {"context_comm": "group-cast"})
        self.assertIn(head + ": no figure is known, because even plain, per-document, is not what they say: parallel.context_comm group-cast: a rank",
                      self.export("megatron", cast))
        self.assertIn(head + ": no figure is known, because your own data loader packs documents", json.loads(self.export("deepspeed"))["_comment"][3])
        ring = dict(STUDY, parallel=STUDY["parallel"] | {"context_comm": "ring"}, batch={"context_window": "16K", "documents_per_step": 32, "max_length": "16K", "steps": 2})
        self.assertIn(head + " (karmarkar-karp, per-document), simulated: 0.", self.export("verl", ring, "--row", "wlb"))

    def test_a_label_with_a_comma_is_told_from_its_neighbours(self):
        study = dict(STUDY, policies=["plain-4d", {"name": "wlb", "label": "wlb, queues 2"}, "lpt"])
        self.refused("export", self.write("study.json", study), "--for", "megatron", "--row", "nope",
                     says=['--row: unknown row "nope" (known: plain-4d, "wlb, queues 2", lpt)'])

    def test_batch_sizes_are_of_windows_and_a_plan_with_other_micro_batches_says_so(self):
        study = dict(STUDY, parallel={"data": 2}, batch=dict(STUDY["batch"], micro_batches=6), cluster={"memory_GB": 200})
        text = self.export("megatron", study, "--row", "wlb")
        self.assertEqual(flags(text)["--global-batch-size"], "4")
        self.assertIn("cannot be expressed: micro_batches 6 a step: ", text)
        self.assertNotIn("micro_batches", self.export("megatron", STUDY, "--row", "plain-4d"))

        def sizes(study):
            found = json.loads(self.export("deepspeed", study, "--row", "wlb"))
            return tuple(found.get(key) for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"))

        self.assertEqual(sizes(study), (4, 1, 2))
        study["batch"]["sequences_per_step"] = 3  # which two replicas cannot share: as many samples as the plan has
        self.assertEqual(sizes(study), (6, 1, 3))
        study["batch"] = {"context_window": "16K", "documents_per_step": 16, "max_length": "16K", "micro_batches": 8, "steps": 2}
        self.assertEqual(sizes(study), (8, 1, 4))
        found = tomllib.loads(self.export("torchtitan", study, "--row", "wlb"))["training"]
        self.assertEqual((found["seq_len"], found["local_batch_size"], found["global_batch_size"]), (16384, 1, 8))
        study["policies"] = ["chunkflow"]  # as many chunks as documents need, which differs by step
        del study["baseline"]
        text = self.export("deepspeed", study)
        self.assertNotIn("train_batch_size", json.loads(text))
        self.assertRegex(text, r"micro_batches \d+ to \d+ a step")

    def test_a_loss_is_fused_by_a_flag_or_by_the_models_own_code(self):
        self.assertIs(flags(self.export("megatron"))["--cross-entropy-loss-fusion"], True)
        for loss in ("unfused", "chunked"):
            text = self.export("megatron", dict(STUDY, framework={"preset": "megatron", "loss": loss}))
            self.assertNotIn("--cross-entropy-loss-fusion", flags(text))
            self.assertEqual("cannot be expressed: framework.loss chunked: " in text, loss == "chunked")

    def test_megatron(self):
        study = copy.deepcopy(STUDY)
        study["parallel"].update(virtual_pipeline=2, context_comm="ring", recompute={"layers": 8})
        found = flags(self.export("megatron", study))
        self.assertEqual(found["--tensor-model-parallel-size"], "2")
        self.assertEqual(found["--num-virtual-stages-per-pipeline-rank"], "2")
        self.assertEqual(found["--cp-comm-type"], "p2p")
        self.assertEqual((found["--recompute-granularity"], found["--recompute-method"], found["--recompute-num-layers"]), ("full", "block", "2"))
        self.assertEqual((found["--global-batch-size"], found["--seq-length"]), ("4", "16384"))
        self.assertIs(found["--sequence-parallel"], True)
        nested = copy.deepcopy(STUDY)
        nested["parallel"].update(context=4, context_comm="ulysses-ring", context_inner=2)
        text = self.export("megatron", nested)
        self.assertEqual(flags(text)["--cp-comm-type"], "a2a+p2p")
        self.assertIn("--hierarchical-context-parallel-sizes 2 2", text)
        nested["parallel"]["context_comm"] = "ulysses-all-gather"
        self.assertIn("parallel.context_comm ulysses-all-gather", self.export("megatron", nested))
        nested["parallel"] = STUDY["parallel"] | {"context_comm": "group-cast", "block": 1024}
        text = self.export("megatron", nested)
        self.assertEqual(flags(text)["--cp-comm-type"], "all_gather")
        self.assertIn("parallel.context_comm group-cast: a rank gets K and V of all tokens", text)
        nested["parallel"]["cast_once_per_node"] = True
        self.assertIn("parallel.context_comm group-cast with cast_once_per_node: a rank gets K and V of all", self.export("megatron", nested))
        study["parallel"].update(pipeline=3, virtual_pipeline=1, recompute="full")
        study["batch"]["sequences_per_step"] = 6
        found = flags(self.export("megatron", study))
        layers = [int(n) for n in re.findall(r"t\*(\d+)", found["--pipeline-model-parallel-layout"])]
        self.assertEqual((len(layers), sum(layers)), (3, int(found["--num-layers"])))
        self.assertEqual((found["--recompute-method"], found["--recompute-num-layers"]), ("uniform", "1"))
        study["mtp_layers"] = 1
        text = self.export("megatron", study)
        self.assertEqual(flags(text)["--mtp-num-layers"], "1")
        self.assertEqual(flags(text)["--pipeline-model-parallel-layout"], found["--pipeline-model-parallel-layout"].replace("L", "mL"))
        self.assertIn("mtp_layers 1: modules of multi-token prediction", self.export("deepspeed", study))

    def test_experts(self):
        found = flags(self.export("megatron", MOE))
        self.assertEqual((found["--num-experts"], found["--moe-router-topk"], found["--expert-model-parallel-size"]), ("160", "6", "8"))
        self.assertEqual(found["--recompute-modules"], ["layernorm", "moe_act"])
        self.assertEqual(found["--fp8-format"], "hybrid")
        self.assertIs(found["--moe-shared-expert-overlap"], True)
        self.assertEqual(json.loads(found["--moe-layer-freq"]), [0] + [1] * 59)
        self.assertEqual(overrides(self.export("nemo", MOE))["model.recompute_modules"], '["layernorm","moe_act"]')

    def test_recompute_auto_is_what_a_run_makes_of_it(self):
        study = dict(STUDY, model="llama2-7b", parallel={"tensor": 2, "context": 2, "pipeline": 2, "recompute": "auto"},
                     cluster={"memory_GB": 48}, batch={"context_window": "64K", "sequences_per_step": 4, "steps": 2})
        path = self.write("auto.json", study)
        rows = json.loads(self.ok("study", path, "--format", "json", "--quiet"))["policies"]
        for row in rows:  # of 32 layers on 2 stages
            judged = next(note["numbers"]["layers"] for note in row["notes"] if note["kind"] == "recompute_auto")
            text = self.export("megatron", study, "--row", row["label"])
            self.assertEqual(int(flags(text)["--recompute-num-layers"]), (judged + 1) // 2)
            self.assertNotIn("no figure is known", text)

    def test_degrees_of_single_lanes_no_flag_says(self):
        study = dict(STUDY, parallel={"context": 4, "data": 2, "zero": 3}, policies=["equipoise"], baseline="equipoise",
                     batch={"context_window": "64K", "sequences_per_step": 8, "steps": 4})
        self.ok("study", self.write("degrees.json", study), "--out", self.folder / "out", "--quiet")
        plan, = json.loads((self.folder / "out/plan.json").read_text())["plans"]
        degrees = {lane["context"] for step in plan["steps"] for lane in step["lanes"] if any(m["slices"] for m in lane["micro_batches"])}
        self.assertGreater(degrees, {4})  # else the case shows nothing
        said = "cannot be expressed: parallel.context of some lanes "
        text = self.export("megatron", study)
        self.assertIn(said + ", ".join(map(str, sorted(degrees - {4}))) + ": one CP degree holds for all micro-batches", text)
        study["policies"] = [{"name": "equipoise", "own_degrees": False}]
        self.assertNotIn(said, self.export("megatron", study))

    def test_what_single_micro_batches_recompute_no_flag_says(self):
        study = dict(STUDY, model="llama2-7b", parallel={"tensor": 2, "context": 2, "pipeline": 2, "recompute": "auto"},
                     cluster={"memory_GB": 48}, batch={"context_window": "64K", "sequences_per_step": 4, "steps": 2},
                     policies=["plain-4d", "equipoise", "hbp"])
        self.ok("study", self.write("auto.json", study), "--out", self.folder / "out", "--quiet")
        plans = json.loads((self.folder / "out/plan.json").read_text())["plans"]
        for label in ("equipoise", "hbp"):  # as the plan has it
            lanes = [lane for plan in plans if plan["name"] == label for step in plan["steps"] for lane in step["lanes"]]
            layers = [m.get("recompute_layers_of_model", -1) for lane in lanes for m in lane["micro_batches"] if m["slices"]]
            for target, why in (("megatron", "one number holds for all micro-batches; nearest: the most that any of them recomputes, as written"),
                                ("nemo", "one number"), ("deepspeed", "one setting holds"), ("torchtitan", "one setting"), ("verl", "one setting")):
                text = self.export(target, study, "--row", label)
                found = re.search(r"cannot be expressed: recompute (\d+) to (\d+) of 32 layers by micro-batch: (.*)", text)
                self.assertEqual(int(found[1]), min(n for n in layers if n >= 0), (target, label))
                self.assertTrue(found[3].startswith(why), found[3])
                self.assertEqual(int(found[2]), max(layers))
                if target == "megatron":  # of the fullest stage
                    most = max(m.get("recompute_layers", -1) for lane in lanes for m in lane["micro_batches"])
                    self.assertEqual(int(flags(text)["--recompute-num-layers"]), most)
                    self.assertGreater(most, 0)
        self.assertNotIn("by micro-batch", self.export("megatron", study, "--row", "plain-4d"))
        rows = json.loads(self.ok("study", self.folder / "auto.json", "--format", "json", "--quiet"))["policies"]
        note, = (note for note in next(row["notes"] for row in rows if row["label"] == "equipoise") if note["kind"].startswith("recompute_auto"))
        self.assertEqual((note["kind"], note["numbers"]["of"]), ("recompute_auto_range", 32))
        # Groups that recompute nothing leave nothing to say.
        study["cluster"] = {"memory_GB": 500}
        text = self.export("megatron", study, "--row", "hbp")
        self.assertNotIn("recompute", text.replace("config.recompute", ""))
        self.assertIn("mode = \"none\"", self.export("torchtitan", study, "--row", "hbp"))

    def test_what_is_frozen_your_script_says(self):
        for frozen, found in ((["head"], "parts of the model"), (["embedding", {"layers": 4}], "the first 4 layers")):
            text = self.export("megatron", dict(STUDY, model="llama2-7b", frozen=frozen, cluster={"memory_GB": 200}))
            self.assertIn(f"# cannot be expressed: frozen {found}: what is frozen is said of parameters, in your script; nearest: requires_grad_(False)", text)

    def test_mixers_and_gates_of_attention_are_your_models_own(self):
        config = {"model_type": "qwen3_next", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
                  "head_dim": 128, "intermediate_size": 4096, "vocab_size": 32000, "tie_word_embeddings": False, "hidden_act": "silu"}
        study = dict(STUDY, framework="megatron-eager", model={"hf_config": "config.json"}, cluster={"memory_GB": 500})
        for every, found in ((1, "attention whose output a gate scales"), (2, "layers of gated delta net, attention whose output a gate scales")):
            self.write("config.json", dict(config, full_attention_interval=every))
            for target in ("megatron", "nemo"):
                text = self.export(target, study)
                self.assertIn(f"# cannot be expressed: model {found}: the mixers of layers are your model's own", text)
                self.assertNotIn("cannot be expressed: framework megatron-eager", text)  # one of their presets

    def test_nemo_is_told_in_its_own_keys(self):
        study = dict(STUDY, model="gpt-oss-20b", framework={"preset": "megatron", "expert_nodes": 1}, cluster={"memory_GB": 500})
        text = self.export("nemo", study, "--row", "wlb")
        for key in ("dataset.offline_packing_specs", "model.window_size", "model.moe_router_num_groups"):
            self.assertIn(key, text)
        self.assertNotIn("ddp.grad_reduce_in_fp32", overrides(text))  # mixed_precision overwrites it
        self.assertIn("cannot be expressed: framework.gradient_bytes 2: mixed_precision", text)
        for line in text.splitlines():
            if "cannot be expressed" in line:
                self.assertNotIn(" --", line.replace("`study --out`", ""))

    def test_deepspeed(self):
        found = json.loads(self.export("deepspeed", dict(STUDY, parallel={"context": 2, "data": 2, "zero": 3, "context_comm": "ulysses"})))
        self.assertEqual(found["zero_optimization"], {"stage": 3})
        self.assertEqual(found["sequence_parallel_size"], 2)
        self.assertEqual(found["train_batch_size"], found["train_micro_batch_size_per_gpu"] * found["gradient_accumulation_steps"] * 2)

    def test_torchtitan(self):
        found = tomllib.loads(self.export("torchtitan"))
        self.assertEqual(found["parallelism"]["tensor_parallel_degree"], 2)
        self.assertEqual(found["parallelism"]["pipeline_parallel_schedule"], "1F1B")
        self.assertEqual(found["training"], {"seq_len": 16384, "local_batch_size": 4, "global_batch_size": 4, "mixed_precision_param": "bfloat16"})
        self.assertEqual(found["activation_checkpoint"]["mode"], "none")

    def test_verl(self):
        found = overrides(self.export("verl", dict(STUDY, parallel={"context": 2, "data": 2, "zero": 3})))
        self.assertEqual(found["actor_rollout_ref.actor.strategy"], "fsdp2")
        self.assertEqual(found["actor_rollout_ref.actor.ulysses_sequence_parallel_size"], "2")
        self.assertNotIn("data.train_batch_size", found)  # windows are no samples
        self.assertRegex(self.export("verl"), r"cannot be expressed: batch.sequences_per_step 4 windows, about \d+ documents: data.train_batch_size")
        found = overrides(self.export("verl", dict(STUDY, batch={"context_window": "16K", "documents_per_step": 32, "max_length": "16K", "steps": 2}), "--row", "wlb"))
        self.assertEqual((found["data.train_batch_size"], found["actor_rollout_ref.actor.ppo_mini_batch_size"]), ("32", "32"))
        self.assertEqual(overrides(self.export("verl"))["actor_rollout_ref.actor.megatron.tensor_model_parallel_size"], "2")

    def test_a_document_fits_into_what_verl_is_told(self):
        study = dict(STUDY, parallel={"data": 4, "zero": 3, "recompute": "auto"}, policies=[{"name": "hbp", "groups": "2K:1,16K:4"}],
                     batch={"context_window": "16K", "documents_per_step": 64, "max_length": "16K", "steps": 2}, cluster={"memory_GB": 200})
        del study["baseline"]
        text = self.export("verl", study)
        self.assertEqual(overrides(text)["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"], "16384")
        self.assertIn("cannot be expressed: parallel.context by micro-batch (groups 2048:1, 16384:4): ", text)

    def test_adapters_where_a_framework_has_keys_for_them(self):
        study = dict(STUDY, model="llama2-7b", cluster={"memory_GB": 200}, lora={"dim": 16})
        self.assertEqual(overrides(self.export("verl", study))["actor_rollout_ref.model.lora.rank"], "16")
        text = self.export("verl", dict(study, parallel={"data": 2, "zero": 3}))
        self.assertEqual(overrides(text)["actor_rollout_ref.model.lora_rank"], "16")
        self.assertNotIn("cannot be expressed: lora", text)
        self.assertIn("cannot be expressed: lora target_modules: ", self.export("verl", dict(study, lora={"dim": 16, "target_modules": ["linear_qkv"]})))
        text = self.export("nemo", study)
        self.assertEqual(overrides(text)["peft.dim"], "16")
        self.assertIn("cannot be expressed: lora dim 16: whether there are adapters is the recipe's", text)
        self.assertIn("nearest: peft's LoraConfig", self.export("torchtitan", study))
        self.assertNotIn("lora", self.export("verl"))

    def test_lengths_of_samples_and_of_documents(self):
        study = dict(STUDY, parallel={"data": 2}, cluster={"memory_GB": 500}, policies=[{"name": "lpt", "micro_batches": 2}],
                     batch={"context_window": "4K", "documents_per_step": 32, "max_length": "16K", "steps": 2})
        del study["baseline"]
        for target in ("nemo", "torchtitan"):
            self.assertRegex(self.export(target, study), r"cannot be expressed: largest micro-batch \d+ tokens: a micro-batch has the length of")
            self.assertNotIn("largest micro-batch", self.export(target, STUDY, "--row", "plain-4d"))
        self.assertIn("cannot be expressed: batch.max_length 16384", self.export("nemo", study))
        study["trace"] = {"uniform": "2K"}
        self.assertNotIn("max_length", self.export("nemo", study))

    def test_a_rule_that_the_run_chose_is_exported_as_what_it_chose(self):
        for chosen in ("per-document", "per-sequence"):  # static-best is the better of the two; documents of one length, and of many
            trace = {"uniform": "8K"} if chosen == "per-sequence" else STUDY["trace"]
            study = dict(STUDY, trace=trace, policies=[{"name": "plain", "shard": "static-best"}], baseline="plain")
            notes = run("study", self.write("study.json", study), "--notes").stderr
            found = run("export", self.folder / "study.json", "--for", "megatron").stderr
            self.assertNotIn("static-best", found)
            self.assertEqual("shard per-sequence" in found, "static-best sharding is per-sequence" in notes, found + notes)

    def test_slurm_shards_and_merges_to_what_one_machine_has(self):
        path = self.write("study.json", STUDY)
        sweep = ("--sweep", "parallel.context=1,2", "--sweep", "batch.context_window=8K,16K")
        settings = ("batch.steps=5", "name=it's five")
        script = self.write("sweep.sh", self.ok("export", path, "--for", "slurm", "--tasks", 3, "--set", *settings, *sweep))
        self.assertIn("#SBATCH --array=0-2\n", script.read_text())
        self.assertEqual(script.read_text().splitlines()[1], "# The sweep of a study as 3 tasks of one array job.")
        for task in range(3):
            environment = dict(os.environ, SLURM_ARRAY_TASK_ID=str(task), EQUIPOISE=PROGRAM, OUT=str(self.folder / "out"))
            subprocess.run(["bash", script], env=environment, check=True, timeout=120)
        self.ok("merge", self.folder / "out", self.folder / "out-parts", "--quiet")
        self.ok("study", path, "--set", *settings, *sweep, "--out", self.folder / "whole", "--quiet")
        cases = sorted(p.relative_to(self.folder / "whole") for p in (self.folder / "whole").rglob("steps.csv"))
        self.assertEqual(len(cases), 4)
        for case in cases:
            self.assertEqual((self.folder / "out" / case).read_text(), (self.folder / "whole" / case).read_text())
        search = self.ok("export", path, "--for", "slurm", "--set", settings[0])
        self.assertIn(" --set batch.steps=5", search)
        self.assertIn("# --budget and --minutes of `equipoise tune`", search)
        self.assertNotIn("--budget", script.read_text())
        self.assertIn(" tune ", search)
        self.assertIn("# The search of a study as 8 tasks", search)
        self.refused("report", self.folder / "out", says=["sweep", str(self.folder / "out" / "report.html"), "a sweep's case", "sweep.csv"])

    def test_what_is_wrong_is_said(self):
        path = self.write("study.json", STUDY)
        self.refused("export", path, "--for", "slurm", "--row", "wlb", says=["--row", "a Slurm job runs all rows"])
        self.refused("export", path, "--for", "slurm", "--set", "batch.stps=5", says=['unknown key "stps"'])
        self.refused("export", path, "--for", "megatorn", says=["--for", 'did you mean "megatron"?'])
        self.refused("export", path, "--for", "verl", "--row", "wbl", says=["--row", 'did you mean "wlb"?', "plain-4d"])
        gone = self.write("gone.json", dict(STUDY, trace={"file": "nowhere.csv"}))  # the name is looked at before documents are read
        self.refused("export", gone, "--for", "verl", "--row", "wbl", says=["--row", 'did you mean "wlb"?'])
        self.refused("export", self.write("oom.json", dict(STUDY, cluster={"memory_GB": 1})), "--for", "nemo", says=["no row of the study runs"])


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of Transformer Engine that have everything and do nothing."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("transformer_engine") else None

    def create_module(self, spec):
        return unittest.mock.MagicMock(name=spec.name, __spec__=spec, __path__=[], __name__=spec.name, __version__="2.9.0")

    def exec_module(self, module):
        pass


class ByTheirOwnParsers(Case):
    """Skipped where the framework is not installed."""

    def test_deepspeed_reads_it(self):
        try:
            from deepspeed.runtime.config import DeepSpeedConfig
        except ImportError:
            self.skipTest("no deepspeed")
        text = self.ok("export", self.write("study.json", dict(STUDY, parallel={"data": 1, "zero": 2})), "--for", "deepspeed", "--quiet")
        self.assertEqual(DeepSpeedConfig(json.loads(text)).zero_config.stage, 2)

    def test_megatron_reads_it(self):
        try:
            from megatron.training.arguments import parse_args
        except ImportError:
            self.skipTest("no megatron.training")
        with unittest.mock.patch("sys.argv", ["pretrain_gpt.py", *words(self.ok("export", self.write("study.json", STUDY), "--for", "megatron", "--quiet"))]):
            self.assertEqual(parse_args().tensor_model_parallel_size, 2)

    def test_torchtitan_reads_it(self):
        try:
            from torchtitan.config import ConfigManager
        except ImportError:
            self.skipTest("no torchtitan")
        file = self.write("torchtitan.toml", self.ok("export", self.write("study.json", STUDY), "--for", "torchtitan", "--quiet"))
        read = ConfigManager().parse_args(["--job.config_file", str(file)])
        degrees = read.parallelism
        self.assertEqual((degrees.tensor_parallel_degree, degrees.context_parallel_degree, degrees.pipeline_parallel_degree), (2, 2, 2))
        self.assertEqual((read.training.seq_len, read.training.global_batch_size), (16384, 4))

    def test_megatron_bridge_reads_it(self):
        with unittest.mock.patch("sys.meta_path", [StandIn(), *sys.meta_path]):  # Transformer Engine installs with CUDA only
            try:
                from megatron.bridge.models.gpt_provider import GPTModelProvider
                from megatron.bridge.training import config
                from megatron.bridge.training.comm_overlap import CommOverlapConfig
                from megatron.bridge.training.tokenizers.config import TokenizerConfig
                from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides
            except ImportError as error:
                self.skipTest(f"no megatron.bridge: {error}")
            data = config.GPTDatasetConfig(random_seed=1, seq_length=128, reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False)
            recipe = config.ConfigContainer(train=config.TrainingConfig(), model=GPTModelProvider(num_layers=2, hidden_size=64, num_attention_heads=4),
                                            optimizer=config.OptimizerConfig(), scheduler=config.SchedulerConfig(), dataset=data, logger=config.LoggerConfig(),
                                            tokenizer=TokenizerConfig(), checkpoint=config.CheckpointConfig(), comm_overlap=CommOverlapConfig(tp_comm_overlap=False))
            keys = [word for word in words(self.ok("export", self.write("study.json", STUDY), "--for", "nemo", "--quiet"))
                    # Releases up to 0.3 have no field of that name, but a property, which overrides do not reach.
                    if not word.startswith("dataset.seq_length=") or "seq_length" in data.__dataclass_fields__]
            process_config_with_overrides(recipe, cli_overrides=keys)
            self.assertEqual((recipe.model.tensor_model_parallel_size, recipe.train.global_batch_size), (2, 4))
            self.assertTrue(recipe.model.cross_entropy_loss_fusion)
            with self.assertRaises(Exception):
                process_config_with_overrides(recipe, cli_overrides=["model.no_such_key=1"])

    def test_verl_knows_the_keys(self):
        found = importlib.util.find_spec("verl")
        try:
            from omegaconf import OmegaConf
        except ImportError:
            found = None
        if found is None:
            self.skipTest("no verl")
        folder = pathlib.Path(found.origin).parent / "trainer/config"
        known = {kind: OmegaConf.load(folder / f"_generated_ppo{kind}trainer.yaml") for kind in ("_", "_megatron_")}
        for kind, parallel in (("_", {"context": 2, "zero": 3}), ("_megatron_", STUDY["parallel"])):
            text = self.ok("export", self.write("study.json", dict(STUDY, parallel=parallel)), "--for", "verl", "--quiet")
            for key in overrides(text):
                self.assertIsNot(OmegaConf.select(known[kind], key, default=self), self, key)


if __name__ == "__main__":
    unittest.main()

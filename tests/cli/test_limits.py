"""Limits are said before the work, and nothing that a user types ends in exit 3.

EQUIPOISE names the program; ctest sets it.
"""

import json
import os
import socket
import subprocess
import unittest
from unittest import mock

from support import PROGRAM, STUDY, Case, run


class Limits(Case):
    def test_a_sweep_has_at_most_so_many_cases(self):
        study = self.write("study.json", STUDY)
        values = ",".join(map(str, range(1, 101)))
        sweep = [a for key in ("batch.steps", "trace.seed", "policies.1.queues", "name") for a in ("--sweep", f"{key}={values}")]
        self.refused("study", study, *sweep, says=["--sweep", "at most 100000 cases, found 100000000", "--max-cases 100000000"])
        self.refused("study", study, "--sweep", "trace.seed=1,2,3", "--max-cases", 2, says=["at most 2 cases, found 3"])
        self.ok("study", study, "--sweep", "trace.seed=1,2,3", "--max-cases", 3, "--quiet")

    def test_planned_memory_is_estimated_first(self):
        study = self.write("study.json", STUDY)
        memory = ("--max-memory-GB", 2)
        says = ["needs about", "the limit is 2 GB (--max-memory-GB)", "or --max-memory-GB"]
        wlb = json.dumps({"name": "wlb", "max_tokens": 1, "oversize": "split"})
        chunks = json.dumps({"name": "chunkflow", "chunk_size": 1})
        for policy in (wlb, chunks):
            # A plan streams, but a block of its steps is too large, too.
            self.refused("study", study, "--set", f"policies.1={policy}", "--set", "batch.steps=1000", "--set",
                         "batch.sequences_per_step=256", *memory, says=says)
        self.refused("study", study, "--set", "batch.micro_batches=16M", *memory, says=says)
        self.refused("pack", "wlb-128k", "--policy", "wlb", "--max-tokens", 1, "--oversize", "split", "--steps", 10, *memory, says=says)
        self.refused("pack", "wlb-128k", "--policy", "chunkflow", "--chunk-size", 1, "--steps", 100, *memory, says=says)
        self.refused("pack", "wlb-128k", "--policy", "plain", "--micro-batches", "16M", "--steps", 10, *memory, says=says)
        # Eight bins that hold a fraction of what arrives: every step lists what is carried.
        self.refused("pack", "wlb-128k", "--policy", "wlb", "--documents-per-step", 20000, "--micro-batches", 8, "--steps", 10, *memory, says=says)
        self.refused("schedule", "--schedule", "1f1b", "--stages", 10**9, "--lengths", "1,2", *memory, says=says)
        self.refused("schedule", "--schedule", "state-aware-1f1b", "--stages", 4, "--lengths", "2048M", "--chunk-size", 2, *memory, says=says)
        self.refused("shard", "--lengths", "2048M", "--cp", 4, "--policy", "snake", "--block", 1, *memory, says=says)
        self.refused("trace", "synth", "--distribution", "wlb-128k", "--documents", "256M", "--out", self.folder / "x.txt", *memory, says=says)
        self.refused("study", study, "--max-memory-GB", -1, says=["--max-memory-GB", "-1"])

    def test_output_is_estimated_first(self):
        study = self.write("study.json", STUDY)
        out = ("--fidelity", "op", "--out", self.folder / "out")
        self.refused("study", study, *out, "--max-output-GB", 0.0001, says=["--out: would write about", "--timeline-steps 0", "--max-output-GB"])
        self.assertFalse((self.folder / "out").exists())
        self.ok("study", study, *out, "--quiet")


class NoInternalFault(Case):
    def test_hostile_numbers_and_names(self):
        schedule = ("schedule", "--schedule", "1f1b", "--stages", 4, "--lengths", "1,2")
        self.refused(*schedule, "--backward-ratio", 1e308, says=["--backward-ratio", "1e6"])
        self.refused(*schedule, "--p2p", 1e308, says=["--p2p", "1e12"])
        self.refused(*schedule, "--profile", "h100-sxm", "--tensor", 0, says=["--tensor", "found 0"])
        self.refused(*schedule, "--max-memory-GB", 0, says=["--max-memory-GB", "0.1", "found 0"])
        self.refused("profiles", "show", "x" * 5000, says=["unknown profile"])
        self.refused("study", self.write("study.json", STUDY), "--set", "batch.steps=1e999", says=["--set batch.steps"])

    def test_a_straggler_is_as_slow_as_times_can_say(self):
        study = self.write("study.json", STUDY)
        words = ("study", study, "--fidelity", "op", "--quiet", "--format", "json", "--stragglers")
        for speed in ("1e-8", "1e-300", "0"):
            self.refused(*words, f"0:{speed}", says=["--stragglers: expected GPU:SPEED pairs", f"0:{speed}"])
        slow = json.loads(self.ok(*words, "0:0.01"))["policies"][0]["metrics"]["step_seconds"]
        self.assertGreater(slow, 10 * json.loads(self.ok(*words, "0:1"))["policies"][0]["metrics"]["step_seconds"])

    def test_a_seed_has_64_bits(self):
        words = ("pack", "wlb-128k", "--policy", "ffs", "--context-window", "8K", "--steps", 1, "--seed")
        for seed in (2**64, -1):
            self.refused(*words, seed, says=["--seed", str(seed)])
        self.ok(*words, 2**63 - 1)

    def test_no_recomputed_layer_is_none_recomputed(self):
        seconds = []
        for recompute in ("none", {"layers": 0}):
            parallel = dict(STUDY["parallel"], recompute=recompute, activation_offload=0.5)
            study = self.write("study.json", dict(STUDY, parallel=parallel))
            seconds.append(json.loads(self.ok("study", study, "--format", "json", "--quiet"))["policies"][0]["metrics"]["step_seconds"])
        self.assertEqual(*seconds)

    def test_an_empty_out_is_none(self):
        study = self.write("study.json", STUDY)
        for command in (("study", study), ("trace", "synth", "--distribution", "wlb-128k"), ("trace", "convert", study), ("fit",)):
            self.refused(*command, "--out", "", says=["--out", "found nothing"])

    def steps_with(self, name):
        """Measured steps whose only row has that name, and states no GPU that there is."""
        return self.write("steps.csv", f"row_id,model_id,gpu,n_gpus,tp,cp,pp,dp,seq_len,mbs,gbs_seqs,step_time_s\n{name},x,none,8,8,1,1,1,8192,1,8,1\n")

    def test_a_small_stack_is_enough_or_said_to_be_too_small(self):
        for limit, status in (("-S -s 64", 0), ("-s 64", 2)):
            ended = subprocess.run(["bash", "-c", f"ulimit {limit}; exec '{PROGRAM}' list models"], capture_output=True, text=True, check=False)
            self.assertEqual(ended.returncode, status, ended.stderr)
            self.assertEqual("stack of at least" in ended.stderr, status == 2)

    def test_a_temporary_folder_that_is_none(self):
        study = self.write("study.json", STUDY)
        with mock.patch.dict(os.environ, {"TMPDIR": str(self.folder / "none")}):
            self.refused("validate", study, says=["TMPDIR: expected a folder"])

    def test_control_characters_of_names_never_reach_a_terminal(self):
        policies = ["plain-4d", {"name": "wlb", "label": "a\x1b[31mb\rc"}]
        study = self.write("study.json", dict(STUDY, policies=policies, name="n\x1b]0;x\x07"))
        for form in ("table", "csv", "json"):
            result = run("study", study, "--format", form)
            self.assertEqual(result.returncode, 0, result.stderr)
            for text in (result.stdout, result.stderr):
                self.assertFalse([c for c in text if ord(c) < 32 and c not in "\n\t"], form)
        self.assertIn("a\\x1b[31mb\\rc", run("study", study).stdout)
        shape = {"name": "m\x1b[31m\x00", "layers": 4, "hidden": 256, "heads": 4, "ffn": 512, "vocab": 1024}
        rows = self.write("rows.csv", "gpu,op,M,N,K,dtype,time_ms\nH100,a\x1b[31m\x00b,512,512,512,bf16,1\n")
        for words in (("study", self.write("shape.json", dict(STUDY, model=shape))), ("predict", "--profile", "h100-sxm", "--rows", rows),
                      ("fit", "--steps", self.steps_with("r\x1b[31m\x00"), "--out", self.folder / "preset.json")):
            result = run(*words)
            for text in (result.stdout, result.stderr):
                self.assertFalse([c for c in text if ord(c) < 32 and c not in "\n\t"], words)
            self.assertIn("\\x1b[31m\\x00", result.stdout + result.stderr)
        line = self.refused("trace", "info", "no\x1b[31m.txt")
        self.assertIn("no\\x1b[31m.txt", line)
        named = run("trace", "synth", "--distribution", "wlb-128k", "--documents", 3, "--out", self.folder / "x\x1b.txt")
        self.assertIn("x\\x1b.txt", named.stderr)


class StalePartials(Case):
    def test_what_a_killed_run_left_is_removed_by_the_next(self):
        study = self.write("study.json", STUDY)
        ended = subprocess.Popen(["true"])
        ended.wait()
        host = socket.gethostname()
        out = self.folder / "out"
        out.mkdir()
        for stale in (self.folder / f"out.partial.{ended.pid}.{host}", out / f".partial.{ended.pid}.{host}"):
            stale.mkdir()
            (stale / "summary.json").write_text("{")
        kept = [self.folder / f"out.partial.{os.getpid()}.{host}", self.folder / f"out.partial.{ended.pid}.elsewhere", self.folder / "out.partial.x"]
        for folder in kept:  # of a process that lives, of another machine, of nobody
            folder.mkdir()
        self.ok("study", study, "--out", out, "--quiet")
        self.assertEqual(sorted(p.name for p in self.folder.iterdir() if "partial" in p.name), sorted(p.name for p in kept))
        self.assertFalse([p.name for p in out.iterdir() if "partial" in p.name])


class Predict(Case):
    def test_excluded_rows_are_named(self):
        rows = self.write("gemm.csv", "M,N,K,time_ms\n4096,4096,4096,0.2\n4096,,4096,0.2\n")
        result = run("predict", "--profile", "h100-sxm", "--rows", rows)
        self.assertEqual(result.returncode, 0)
        self.assertIn("not predicted, line 3 of", result.stderr)
        none = self.write("none.csv", "M,N,K,time_ms,dtype\n4096,,4096,0.2,bf16\n4096,4096,4096,0.2,fp4\n,,4096,0.2,bf16\n")
        said = ["none.csv: none of 3 rows can be predicted", "no shape (2 rows, line 2 the first)", "(1 row, line 3 the first)"]
        self.refused("predict", "--profile", "h100-sxm", "--rows", none, says=said)
        text = self.ok("predict", "--help")
        for column in ("seq_q", "M, N, K", "size_bytes", "rows, cols"):
            self.assertIn(column, text)


if __name__ == "__main__":
    assert os.path.exists(PROGRAM), PROGRAM
    unittest.main()

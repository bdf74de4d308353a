"""`equipoise execute` and `validate` as a user sees them: real ranks, JSON, exit codes, dumps, logs.

EQUIPOISE names the program; ctest sets it. Without mpirun only what needs no processes is run.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest
from unittest import mock

from support import Case, run

TORCH_CHECK = pathlib.Path(__file__).resolve().parent.parent / "execution" / "torch_check.py"
PYTHONS = [sys.executable, "/usr/bin/python3"]  # PyTorch is often there for the system's only
STUDY = {
    "name": "tiny",
    "trace": {"file": "lengths.txt"},
    "model": {"name": "tiny", "layers": 2, "hidden": 32, "heads": 2, "kv_heads": 1, "head_dim": 16, "ffn": 48, "vocab": 67,
              "gated_ffn": True, "tied_embeddings": False},
    "cluster": {"profile": "cpu"},
    "parallel": {"tensor": 1, "context": 2, "pipeline": 1, "data": 1},
    "batch": {"context_window": 64, "sequences_per_step": 2, "micro_batch_size": 1, "steps": 3},
    "policies": [{"name": "plain"}, {"name": "chunkflow", "chunk_size": 32, "keep": 1, "schedule": "state-aware-1f1b"}],
    "baseline": "plain",
}
LENGTHS = [1, 30, 70, 5, 22, 64, 3, 90, 17, 41, 1, 8, 33, 100, 12, 64, 7, 55, 21, 9]
needs_mpi = unittest.skipUnless(shutil.which("mpirun"), "no mpirun: Debian's openmpi-bin has it")


class WithStudy(Case):
    def setUp(self):
        super().setUp()
        self.study = self.folder / "study.json"
        self.study.write_text(json.dumps(STUDY))
        (self.folder / "lengths.txt").write_text("".join(f"{n}\n" for n in LENGTHS))


class Execute(WithStudy):
    def check_report(self, text, steps):
        report = json.loads(text)
        self.assertEqual(report["schema"], "equipoise.execution/1")
        self.assertEqual([p["label"] for p in report["policies"]], ["plain", "chunkflow"])
        for policy in report["policies"]:
            self.assertIs(policy["equivalent"], True)
            self.assertAlmostEqual(policy["loss"], policy["reference_loss"], places=4)
            self.assertLess(policy["worst_error"], 1e-4)
            self.assertGreater(policy["tokens"], 0)
            self.assertEqual(len(policy["measured"]["step_seconds"]), steps)
            biases = {row["normalizer"]: row["bias"] for row in policy["loss_normalizers"]}
            self.assertEqual(set(biases), {"token", "sample", "sum", "stable", "micro-batch"})
            self.assertEqual(biases["token"], 0)

    @needs_mpi
    def test_two_processes_run_every_plan_and_agree_with_the_reference(self):
        self.check_report(self.ok("execute", self.study, "--steps", 2, "--format", "json"), 2)

    @needs_mpi
    def test_all_ranks_run_the_schedule_that_a_row_chose(self):
        rows = [{"name": "plain"}, {"name": "chunkflow", "chunk_size": 32, "schedule": "auto"}]
        pipeline = STUDY["parallel"] | {"context": 1, "pipeline": 2}
        self.study.write_text(json.dumps(STUDY | {"policies": rows, "parallel": pipeline}))
        self.check_report(self.ok("execute", self.study, "--steps", 2, "--format", "json"), 2)

    @needs_mpi
    def test_rows_of_unlike_forms_run_each_in_its_own(self):
        rows = [{"name": "plain", "label": form, "shard": "per-document", "context_comm": form} for form in ("all-gather", "group-cast", "disaggregated", "ring")]
        self.study.write_text(json.dumps(STUDY | {"policies": rows, "baseline": "ring"}))
        report = json.loads(self.ok("execute", self.study, "--steps", 1, "--format", "json"))
        self.assertEqual([(p["label"], p["equivalent"]) for p in report["policies"]], [(row["label"], True) for row in rows])

    def test_a_replay_runs_all_ranks_in_one_process(self):
        layout = '{"tensor":2,"context":2,"pipeline":2,"data":2}'
        study = ["--set", f"parallel={layout}", "--set", "cluster.gpus_per_node=16", "--set", "batch.sequences_per_step=8", "--set", "model.kv_heads=2", "--set", "trace.repeat=true"]
        self.check_report(self.ok("execute", self.study, "--replay", "--format", "json", *study), 1)

    def test_the_table_says_what_ran(self):
        text = self.ok("execute", self.study, "--replay", "--policy", "plain", "--loss-normalizer", "stable")
        self.assertIn("2 ranks, one after the other", text)
        self.assertIn("Loss by normaliser", text)
        self.assertNotIn("chunkflow", text)

    def test_a_dump_is_what_pytorch_computes(self):
        self.ok("execute", self.study, "--replay", "--repetitions", 0, "--dump", self.folder / "dump")
        self.assertTrue((self.folder / "dump" / "plain" / "gradients" / "lm_head.weight.npy").exists())
        for python in filter(os.path.exists, PYTHONS):
            done = subprocess.run([python, TORCH_CHECK, self.folder / "dump"], capture_output=True, text=True, check=False)
            if done.returncode != 77:
                return self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.skipTest("no PyTorch")

    def test_what_ranks_cannot_run_is_one_line(self):
        for key, word in [("parallel.zero=3", "zero"), ("model.qkv_bias=true", "qkv_bias"), ("model.head_dim=24", "head dim")]:
            done = run("execute", self.study, "--replay", "--set", key)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(word, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        done = run("execute", self.study, "--replay", "--policy", "plan")
        self.assertEqual(done.returncode, 2)
        self.assertIn('did you mean "plain"', done.stderr)

    @needs_mpi
    def test_an_error_that_all_ranks_see_is_told_once(self):
        done = run("execute", self.study, "--policy", "nobody")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stderr.count("error:"), 1, done.stderr)


    def test_what_can_be_known_is_refused_before_ranks_start(self):
        """An mpirun that notes that it was called is not called."""
        called = self.folder / "called"
        mpirun = self.folder / "mpirun.openmpi"
        mpirun.write_text(f"#!/bin/sh\ntouch {called}\nexit 1\n")
        mpirun.chmod(0o755)
        many = dict(STUDY, trace={"uniform": 64}, cluster=dict(STUDY["cluster"], gpus_per_node=64), parallel={"data": 64}, batch={"context_window": 64, "sequences_per_step": 64, "steps": 1}, policies=["plain"])
        short = self.write("short.txt", "5\n7\n")
        with mock.patch.dict(os.environ, {"PATH": f"{self.folder}:{os.environ['PATH']}"}):
            for change, says in (({"trace": {"file": str(short)}}, "too short"), ({"parallel": {"data": 64, "zero": 3}}, "parallel.zero"),
                                 ({"frozen": ["norms"]}, "frozen"), ({"mtp_layers": 1}, "mtp_layers")):
                study = self.write("many.json", {**many, **change})
                self.refused("execute", study, says=[says])
                self.refused("validate", study, "--minutes", 0, says=[says])
            self.refused("execute", self.write("many.json", many), "--policy", "nobody", says=["--policy", "nobody"])
        self.assertFalse(called.exists())


class Validate(WithStudy):
    @needs_mpi
    def test_a_run_is_compared_op_by_op_and_written(self):
        out = self.folder / "out"
        done = run("validate", self.study, "--minutes", 0, "--steps", 2, "--repetitions", 1, "--format", "json", "--out", out)
        self.assertIn(done.returncode, (0, 1), done.stderr)  # how near it is hangs on the machine
        report = json.loads(done.stdout)
        self.assertEqual(report["schema"], "equipoise.validation/1")
        lines = run("validate", self.study, "--minutes", 0, "--steps", 1, "--repetitions", 1, "--quiet").stdout.splitlines()
        self.assertLessEqual(max(map(len, lines)), 110)
        table = [line for text in "\n".join(lines).split("\n\n") if text.startswith("op ") for line in text.splitlines()[1:]]
        for line in table:  # of ops, each on its line
            self.assertRegex(line, r"^\w[\w ]+ [\d.]+ [mu]?s +[\d.]+ [mu]?s ")
        self.assertEqual(done.returncode == 0, report["passed"] or not report["judged"])
        # On a machine that is busy with other tests all runs of a policy may be dropped: that is said, too.
        dropped = [note for note in report["notes"] if note["kind"] == "all_runs_dropped"]
        self.assertEqual(len(report["policies"]) + len(dropped), 2, report["notes"])
        if report["policies"]:
            self.assertLessEqual({"attention", "qkv_gemm", "cp_all_gather", "optimizer"}, {op["op"] for op in report["ops"]})
        self.assertEqual(len(report["ranking"]["predicted"]), len(report["policies"]))
        for name in ("validation.json", "validation.txt", "report.html", "timeline/plain.pftrace"):
            self.assertTrue((out / name).exists(), name)

    def test_a_log_is_compared_with_the_simulation(self):
        log = self.folder / "log.csv"
        simulated = json.loads(self.ok("study", self.study, "--format", "json"))
        seconds = next(p for p in simulated["policies"] if p["label"] == "plain")["metrics"]["step_seconds"]
        log.write_text("step,step_seconds\n" + "".join(f"{i},{seconds}\n" for i in range(3)))
        done = run("validate", self.study, "--measured", log, "--set", 'policies=[{"name":"plain"}]', "--format", "json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        log.write_text("step,step_seconds\n" + "".join(f"{i},{2 * seconds}\n" for i in range(3)))
        done = run("validate", self.study, "--measured", log, "--set", 'policies=[{"name":"plain"}]')
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        # Only the rows that the log has are compared, and notes are on nothing else.
        log.write_text(f"policy,step,step_seconds\nplain,0,{seconds}\n")
        rows = '[{"name":"plain"},{"name":"lpt","queues":3},{"name":"equipoise","label":"open"}]'
        report = json.loads(self.ok("validate", self.study, "--measured", log, "--set", f"policies={rows}", "--format", "json"))
        self.assertEqual([p["label"] for p in report["policies"]], ["plain"])
        self.assertEqual(list(report["beyond_samples_share"]), ["plain"])
        for word in ("lpt", "open", "equipoise", "differ"):
            self.assertNotIn(word, " ".join(note["text"] for note in report["notes"]))
        # One row of the study, and what a log of several runs says of it.
        log.write_text(f"policy,step,step_seconds\nplain,0,{seconds}\nelsewhere,0,{2 * seconds}\n")
        done = run("validate", self.study, "--measured", log, "--policy", "plain", "--format", "json")
        self.assertEqual([p["label"] for p in json.loads(done.stdout)["policies"]], ["plain"])
        self.refused("validate", self.study, "--measured", log, "--policy", "plian", says=["--policy", "plain"])
        log.write_text(f"policy,step,step_seconds\nelsewhere,0,{seconds}\n")
        self.refused("validate", self.study, "--measured", log, "--policy", "plain", says=["expected entries of plain"])

    def test_steps_in_milliseconds_ask_for_their_unit(self):
        simulated = json.loads(self.ok("study", self.study, "--format", "json"))
        seconds = next(p for p in simulated["policies"] if p["label"] == "plain")["metrics"]["step_seconds"]
        log = self.write("log.csv", "step,step_seconds\n" + "".join(f"{i},{1000 * seconds}\n" for i in range(3)))
        self.refused("validate", self.study, "--measured", log, "--policy", "plain",
                     says=["step_seconds of plain: expected a time in seconds", "in which unit is it?"])


if __name__ == "__main__":
    unittest.main()

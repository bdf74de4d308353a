#!/usr/bin/env python3
"""study: the same summary as the program's, its frames, its errors, and Ctrl-C."""

import copy
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import equipoise
from support import PROGRAM, ROOT, STUDY, beats_during, program, program_error, without_measured


class Study(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.file = Path(cls.folder.name) / "small.json"
        cls.file.write_text(json.dumps(STUDY))
        cls.theirs = program("study", cls.file, "--format", "json")
        cls.result = equipoise.study(cls.file)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_a_file_gives_the_programs_summary(self):
        self.assertEqual(without_measured(self.result.summary), without_measured(self.theirs))
        self.assertEqual([row["status"] for row in self.result.policies], ["ok"] * 3)

    def test_a_dict_gives_the_same(self):
        self.assertEqual(
            without_measured(equipoise.study(STUDY).policies), without_measured(self.theirs["policies"])
        )

    def test_shipped_studies_and_their_paths(self):
        shipped = ROOT / "traces/studies/7b-128k.json"
        theirs = program("study", shipped, "--set", "batch.steps=3", "--format", "json")
        ours = equipoise.study(shipped, set={"batch.steps": 3})
        self.assertEqual(without_measured(ours.summary), without_measured(theirs))
        as_dict = equipoise.study(
            json.loads(shipped.read_text()), set={"batch.steps": 3}, directory=shipped.parent
        )
        self.assertEqual(without_measured(as_dict.policies), without_measured(theirs["policies"]))

    def test_op_fidelity_too(self):
        theirs = program("study", self.file, "--set", "batch.steps=2", "--fidelity", "op", "--format", "json")
        ours = equipoise.study(self.file, set={"batch.steps": 2}, fidelity="op")
        self.assertEqual(without_measured(ours.summary), without_measured(theirs))

    def test_files_are_the_programs(self):
        out = Path(self.folder.name) / "out"
        equipoise.study(self.file, out=out)
        saved = json.loads((out / "summary.json").read_text())
        receipt = saved.pop("receipt")
        self.assertEqual(without_measured(saved), without_measured(self.theirs))
        subprocess.run([PROGRAM, "study", self.file, "--out", out.with_name("theirs"), "--quiet"], check=True, capture_output=True)
        wanted = json.loads((out.with_name("theirs") / "summary.json").read_text())["receipt"]
        self.assertEqual({**wanted, "options": {}, "written": wanted["written"]["rows"]}, {**receipt, "options": {}, "written": receipt["written"]["rows"]})
        self.assertLessEqual(receipt["options"].items(), wanted["options"].items())
        self.assertTrue(equipoise.verify(out / "summary.json")["holds"].all())
        self.assertTrue((out / "steps.csv").read_text().startswith("policy,step,tail,tokens,step_seconds"))
        self.assertEqual(len(list((out / "timeline").iterdir())), 3)

    def test_frames_say_what_the_summary_says(self):
        frame = self.result.frame()
        self.assertEqual(list(frame.index), ["plain", "fixed-greedy", "wlb"])
        for row in self.theirs["policies"]:
            for key, value in row["metrics"].items():
                if not isinstance(value, (dict, list)) and value is not None:
                    self.assertEqual(frame.loc[row["label"], key], value, key)
        steps = self.result.steps()
        mean = steps[(steps["policy"] == "wlb") & (steps["tail"] == 0)]["step_seconds"].mean()
        self.assertAlmostEqual(mean, self.result["wlb"]["metrics"]["step_seconds"], places=9)
        self.assertEqual(set(self.result.gpus()["policy"]), {"plain", "fixed-greedy", "wlb"})
        self.assertEqual(len(self.result.plans()["plans"]), 3)
        screen = str(self.result).splitlines()
        self.assertTrue(screen[2].startswith("plain "), screen)
        self.assertLessEqual(max(map(len, screen)), 110)
        self.assertIn("frame() has all columns", screen[-1])
        with self.assertRaisesRegex(KeyError, "did you mean"):
            self.result["wbl"]

    def test_results_travel_between_processes(self):
        there = pickle.loads(pickle.dumps(self.result))
        self.assertEqual(there.summary, self.result.summary)
        self.assertEqual(there.table, self.result.table)

    def test_a_row_that_cannot_run_is_a_row(self):
        study = copy.deepcopy(STUDY)
        study["cluster"]["memory_GB"] = 1
        result = equipoise.study(study)
        self.assertEqual(set(result.frame()["status"]), {"oom"})
        self.assertTrue(all(result.frame()["reason"]))

    def test_errors_are_the_programs_own_line(self):
        for key, value in (
            ("parallel.contxt", 2),
            ("batch.steps", -1),
            ("model", "llama2-8b"),
            ("policies.1.name", "gredy"),
            ("cluster.profile", "h100"),
            ("policies.7.queues", 1),
        ):
            with self.subTest(key), self.assertRaises(ValueError) as raised:
                equipoise.study(self.file, set={key: value})
            self.assertEqual(
                str(raised.exception),
                # An argument is called by its name, not as an option.
                program_error("study", self.file, "--set", f"{key}={json.dumps(value)}").removeprefix("--"),
            )
        for argument, text in (
            ({"jobs": "2"}, 'jobs: expected an integer from 0, found "2"'),
            ({"fidelity": 3}, "fidelity: expected stage or op, found 3"),
            ({"out": 3}, "out: expected a path, found 3"),
            ({"set": [1]}, r"set: expected a dict .*, found \[1\]"),
            ({"set": {"batch.steps": {1}}}, r"set: batch.steps: expected values that JSON has, found \{1\}"),
            ({"ignore_memory": "no"}, 'ignore_memory: expected True or False, found "no"'),
            ({"max_memory_GB": "8"}, 'max_memory_GB: expected a number, found "8"'),
        ):
            with self.subTest(argument), self.assertRaisesRegex(ValueError, text):
                equipoise.study(self.file, **argument)
        with self.assertRaisesRegex(ValueError, "source: expected a study's path, .* found None"):
            equipoise.study(None)
        missing = Path(self.folder.name) / "missing.json"
        with self.assertRaisesRegex(ValueError, "missing.json"):
            equipoise.study(missing)
        self.file.with_name("broken.json").write_text('{"trace": ')
        with self.assertRaisesRegex(ValueError, "broken.json"):
            equipoise.study(self.file.with_name("broken.json"))

    def test_other_threads_run_meanwhile(self):
        longer = {"batch.steps": 60, "trace.documents": 40000}
        self.assertGreater(beats_during(lambda: equipoise.study(self.file, set=longer, fidelity="op", jobs=1)), 5)

    def test_ctrl_c_ends_a_long_study(self):
        script = (
            "import equipoise, sys; print('begun', flush=True)\n"
            f"equipoise.study({str(self.file)!r}, set={{'batch.steps': 20000, 'trace.documents': 2000000}}, fidelity='op')"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.assertEqual(process.stdout.readline(), "begun\n")
        time.sleep(1.5)
        self.assertIsNone(process.poll(), "it was to run longer than this")
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertIn("KeyboardInterrupt", errors)


if __name__ == "__main__":
    unittest.main(verbosity=2)

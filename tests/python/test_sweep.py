#!/usr/bin/env python3
"""sweep: the same results on any executor as one case after the other, and as the program's."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import equipoise
from support import ROOT, STUDY, program, without_measured

GRID = {"batch.context_window": ["16K", "32K"], "parallel.context": [1, 2]}


def summaries(swept):
    return [without_measured(result.summary) for result in swept]


def each_alone(lengths, options):
    """Own policies travel to the workers, too: every piece is a micro-batch, dealt to the lanes."""
    lanes = options["lanes"]
    return [[[[piece] for piece in batch[lane::lanes]] for lane in range(lanes)] for batch in options["batches"]]


class Sweep(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.study = {**STUDY, "batch": {**STUDY["batch"], "steps": 2}}
        cls.wanted = equipoise.sweep(cls.study, GRID)

    def test_cases_are_those_of_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "study.json"
            file.write_text(json.dumps(self.study))
            theirs = program(
                "study",
                file,
                *(
                    word
                    for key, values in GRID.items()
                    for word in ("--sweep", f"{key}={','.join(map(str, values))}")
                ),
                "--format",
                "json",
            )
            ours = equipoise.sweep(file, GRID)
        self.assertEqual(
            [" ".join(f"{k}={v}" for k, v in r.case.items()) for r in ours], [t.pop("case") for t in theirs]
        )
        self.assertEqual(summaries(ours), without_measured(theirs))

    def test_frame_has_the_keys_first(self):
        frame = self.wanted.frame()
        self.assertEqual(list(frame.columns[:3]), ["batch.context_window", "parallel.context", "label"])
        self.assertEqual(len(frame), 4 * 3)

    def test_notes_are_said_once_with_their_cases(self):
        swept = equipoise.sweep({**self.study, "policies": ["plain", {"name": "wlb", "queues": 1}]}, {"batch.steps": [2, 3], "parallel.context": [1, 2]})
        every = [note for result in swept for note in result.notes]
        self.assertLess(len(swept.notes), len(every))  # some are of several cases
        said = {}
        for note in swept.notes:
            text, cases = re.fullmatch(r"(.*) [(](all 4|[1-3] of 4) cases?(?:: .*)?[)]", note).groups()
            self.assertNotIn(text, said)
            said[text] = 4 if cases == "all 4" else int(cases[0])
        self.assertEqual(said, {note: every.count(note) for note in every})
        self.assertIn(4, said.values())
        self.assertTrue(any(0 < count < 4 for count in said.values()), said)
        text = str(swept)
        for note in swept.notes:
            self.assertEqual(text.count(f"note: {note}"), 1)
        self.assertEqual(repr(swept), "<equipoise.Sweep of 4 cases over batch.steps, parallel.context>")
        alone = equipoise.sweep(self.study, {"batch.steps": [2]})
        self.assertEqual(alone.notes, list(dict.fromkeys(alone[0].notes)))

    def test_threads(self):
        with ThreadPoolExecutor(3) as pool:
            self.assertEqual(
                summaries(equipoise.sweep(self.study, GRID, executor=pool)), summaries(self.wanted)
            )

    def test_processes(self):
        with ProcessPoolExecutor(2) as pool:
            swept = equipoise.sweep(self.study, GRID, executor=pool, policies={"one": each_alone})
        self.assertEqual(len(swept.frame()), 4 * 4)
        self.assertEqual(swept[0]["plain"]["metrics"], self.wanted[0]["plain"]["metrics"])
        self.assertEqual(swept[0]["one"]["status"], "ok", swept[0]["one"]["reason"])

    def test_dask(self):
        try:
            from dask.distributed import Client
        except ImportError:
            self.skipTest("dask.distributed is not installed")
        with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
            self.assertEqual(
                summaries(equipoise.sweep(self.study, GRID, executor=client)), summaries(self.wanted)
            )
            executor = client.get_executor()
            self.assertEqual(
                summaries(equipoise.sweep(self.study, GRID, executor=executor)), summaries(self.wanted)
            )

    def test_mpi(self):
        try:
            import mpi4py  # noqa: F401
        except ImportError:
            self.skipTest("mpi4py is not installed")
        if shutil.which("mpirun") is None:
            self.skipTest("there is no mpirun")
        script = (
            "import json, sys, equipoise\nfrom mpi4py.futures import MPIPoolExecutor\n"
            "if __name__ == '__main__':\n"
            "    study, grid = json.load(open(sys.argv[1]))\n"
            "    with MPIPoolExecutor() as pool:\n"
            "        json.dump([r.summary for r in equipoise.sweep(study, grid, executor=pool)], open(sys.argv[2], 'w'))\n"
        )
        with tempfile.TemporaryDirectory() as folder:
            file, given, out = (Path(folder) / name for name in ("sweep.py", "in.json", "out.json"))
            file.write_text(script)
            given.write_text(json.dumps([self.study, GRID]))
            command = [
                "mpirun",
                "--allow-run-as-root",
                "--oversubscribe",
                "-n",
                "3",
                sys.executable,
                "-m",
                "mpi4py.futures",
                str(file),
                str(given),
                str(out),
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(without_measured(json.loads(out.read_text())), summaries(self.wanted))

    def test_a_wrong_case_is_named_before_any_runs(self):
        class Never:
            def submit(self, *_, **__):
                raise AssertionError("no case may run")

        with self.assertRaisesRegex(ValueError, r"^batch.steps=-3: study: .*batch.steps"):
            equipoise.sweep(self.study, {"batch.steps": [2, -3]}, executor=Never())
        with self.assertRaisesRegex(ValueError, "grid: batch.steps: expected a list"):
            equipoise.sweep(self.study, {"batch.steps": "2"})

    def test_values_that_do_not_go_together_refuse_their_case_alone(self):
        swept = equipoise.sweep(self.study, {"parallel.tensor": [4, 3]})
        self.assertEqual([set(r.frame()["status"]) for r in swept], [{"ok"}, {"refused"}])

    def test_profiles_have_one_rule_on_any_executor(self):
        with tempfile.TemporaryDirectory() as folder:
            mine = Path(folder) / "mine.json"
            profile = json.loads((ROOT / "profiler/profiles/h100-sxm.json").read_text())
            profile["tables"]["gemm"]["bf16"]["provenance"] = {"kind": "measured", "source": "this machine"}
            mine.write_text(json.dumps(profile))
            grid = {"cluster.profile": ["h100-sxm", str(mine)]}

            def rules(swept):
                return [result.summary["policies"][0]["provenance"]["slowdowns"] for result in swept]

            one = equipoise.sweep(self.study, grid)
            self.assertEqual(rules(one), ["fitted", "carried"])
            self.assertTrue(any("one rule for all profiles" in note for note in one[1].notes))
            with ThreadPoolExecutor(2) as pool:
                self.assertEqual(rules(equipoise.sweep(self.study, grid, executor=pool)), ["fitted", "carried"])
            self.assertEqual(rules(equipoise.sweep(self.study, {"cluster.profile": [str(mine)]})), ["alone"])


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/env python3
"""The atlas: who is fastest, which row represents a policy, the page and its figure, and one cell from end to end."""
import subprocess
import sys
import unittest
from pathlib import Path

from support import PROGRAM, Case

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "sim/python"))

from atlas.cells import Best, Cell, bound_shares, cell_of  # noqa: E402
from atlas.page import fastest, page, picture  # noqa: E402
from atlas.settings import JOBS, TRACES, Job, rows  # noqa: E402
from papers.runner import Runner  # noqa: E402

METRICS = {"bubble_ratio": 0.3, "exposed_comm_ratio": {"cp": 0.1, "ep": 0.0}, "cp_imbalance": 1.25, "recompute_ratio": 0.0}


def a_cell(**seconds):
    best = {name: Best(name, s, METRICS) for name, s in seconds.items() if s}
    return Cell("a job", "a trace", best, {name: "does not fit" for name, s in seconds.items() if not s})


class Pages(Case):
    def test_a_hundredth_is_no_difference(self):
        self.assertEqual(fastest(a_cell(plain=3.0, wlb=2.0, lpt=2.015, hbp=2.03)), ["wlb", "lpt"])

    def test_a_cell_names_the_fastest_the_next_of_another_kind_and_what_plain_loses(self):
        text = page([a_cell(plain=3.0, wlb=2.0, lpt=2.01, hbp=2.5, skrull=None)], "1.2.3")
        self.assertIn("| a job | a trace | wlb (lpt alike) | 1.50x | - | hbp | 1.20x | pipeline 30 % |", text)

    def test_the_bound_is_read_from_the_row_that_states_it(self):
        notes = [{"kind": "max_tokens_from_memory", "numbers": {"tokens": 5}}, {"kind": "time_bound", "numbers": {"least": 1.5, "seconds": 2.0}}]
        self.assertEqual(bound_shares({"notes": notes}), [0.75])
        cell = Cell("a job", "a trace", a_cell(plain=3.0, wlb=2.0).best, {}, bound=1.5)
        self.assertIn("| wlb | 1.50x | 25 % |", page([cell], "1.2.3"))

    def test_a_policy_that_does_not_run_everywhere_says_so(self):
        text = page([a_cell(plain=3.0, wlb=2.0, hbp=None), a_cell(plain=3.0, wlb=2.0, hbp=1.0)], "1.2.3")
        self.assertIn("| hbp | 1 of 2 | 3.00x | 3.00x | 3.00x | 1 |", text)
        self.assertIn("| wlb | 1 of 2 | 1.50x | 1.50x | 1.50x |  |", text)

    def test_the_figure_shows_each_policy_in_each_cell_the_one_that_wins_most_first(self):
        shown = picture([a_cell(plain=3.0, wlb=2.0, hbp=None)])
        self.assertEqual(shown["policies"], ["wlb", "hbp", "plain"])
        [cell] = shown["cells"]
        self.assertEqual(cell["rows"]["hbp"], {"reason": "does not fit"})
        self.assertEqual(cell["rows"]["wlb"], {"row": "wlb", "gain": 1.5, "of_fastest": 1.0})
        self.assertEqual(cell["rows"]["plain"], {"row": "plain", "gain": 1.0, "of_fastest": 0.67})


class Grid(Case):
    def test_every_policy_but_solvers_has_a_row(self):
        listed = subprocess.run([PROGRAM, "list", "policies"], capture_output=True, text=True, check=True).stdout
        packers = {line.split()[0] for line in listed.splitlines() if line.split()[1:2] == ["packing"]}
        ours = {entry["name"] for entry in rows()[0]}
        solvers = {name for name in packers if name.endswith("-solver")}
        self.assertEqual(packers - solvers - ours, {"padded"})  # one document a sequence: `sorted` is it, sorted

    def test_the_jobs_are_shipped_studies(self):
        for job in JOBS:
            self.assertTrue((ROOT / f"traces/studies/{job.base}.json").exists(), job)
        for source in TRACES.values():
            self.assertTrue("distribution" in source or Path(source["file"]).exists(), source)

    def test_a_cell_holds_every_policy_at_its_best(self):
        job = Job("small", "7b-128k", {"batch": {"context_window": "32K", "sequences_per_step": 8, "steps": 2}}, chunks=2)
        cell = cell_of(Runner(PROGRAM, ignore_memory=False), job, "wikipedia", {"distribution": "wikipedia", "seed": 0})
        self.assertEqual(set(cell.best) | set(cell.reasons), set(rows()[1].values()))
        self.assertEqual(cell.speedup("plain"), 1)
        self.assertTrue(0 < cell.bound < cell.best[cell.ranking()[0]].seconds)
        self.assertIn("chunkflow", cell.best)  # runs without model chunks only


if __name__ == "__main__":
    unittest.main()

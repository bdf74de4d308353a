#!/usr/bin/env python3
"""The training example: it learns, it resumes to the same losses, and replicas are the same training as
one."""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import ROOT

EXAMPLE = ROOT / "sim/python/examples/train_packed.py"


def train(*arguments, launcher=()):
    done = subprocess.run(
        [sys.executable, *launcher, str(EXAMPLE), *map(str, arguments)], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss ([\d.]+)", done.stdout)}


class Example(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.losses = train("--steps", 12)

    def test_it_learns(self):
        # Uniform guesses of 64 tokens cost ln 64 = 4.16.
        self.assertLess(self.losses[12], 4.0)
        self.assertLess(self.losses[12], self.losses[5])

    def test_a_resumed_run_goes_on_as_if_it_had_not_ended(self):
        # An epoch is 8 steps and a tail, so 10 is inside the second one.
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = Path(folder) / "run.pt"
            train("--steps", 10, "--checkpoint", checkpoint)
            rest = train("--steps", 12, "--resume", checkpoint)
        self.assertEqual(rest, {12: self.losses[12]})

    def test_every_policy_of_whole_documents_trains(self):
        for policy in ("karmarkar-karp", "fixed-greedy"):
            self.assertIn(2, train("--steps", 2, "--policy", policy), policy)


if __name__ == "__main__":
    unittest.main(verbosity=2)

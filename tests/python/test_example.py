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
        cls.losses = train("--steps", 25)

    def test_it_learns(self):
        # Uniform guesses of 64 tokens cost ln 64 = 4.16.
        self.assertLess(self.losses[25], 3.0)
        self.assertLess(self.losses[25], self.losses[5])

    def test_a_resumed_run_goes_on_as_if_it_had_not_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = Path(folder) / "run.pt"
            train(
                "--steps", 13, "--checkpoint", checkpoint
            )  # epochs are 10 steps and a tail: inside the second one
            rest = train("--steps", 25, "--resume", checkpoint)
        self.assertEqual(rest, {step: loss for step, loss in self.losses.items() if step > 13})

    def test_every_policy_of_whole_documents_trains(self):
        for policy in ("lpt", "karmarkar-karp", "fixed-greedy"):
            self.assertIn(2, train("--steps", 2, "--policy", policy), policy)


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/env python3
"""The training example: it learns, it resumes to the same losses, and replicas are the same training as
one."""

import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import ROOT

EXAMPLE = ROOT / "sim/python/examples/train_packed.py"


def started(*arguments, **environment):
    command = [sys.executable, str(EXAMPLE), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**os.environ, **environment}, **pipes)


def losses_of(process):
    printed, errors = process.communicate()
    if process.returncode != 0:
        raise AssertionError(errors)
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss ([\d.]+)", printed)}


def train(*arguments):
    return losses_of(started(*arguments))


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

    def test_two_replicas_train_as_one(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        ranks = [
            started("--steps", 5, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE="2", RANK=str(rank))
            for rank in range(2)
        ]
        losses, nothing = map(losses_of, ranks)
        self.assertAlmostEqual(losses[5], self.losses[5], places=3)
        self.assertEqual(nothing, {})

    def test_every_policy_of_whole_documents_trains(self):
        for policy in ("karmarkar-karp", "fixed-greedy"):
            self.assertIn(2, train("--steps", 2, "--policy", policy), policy)


if __name__ == "__main__":
    unittest.main(verbosity=2)

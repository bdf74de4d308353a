"""What the tests of the program share: it, a small study, and how a command is run.

EQUIPOISE names the program; ctest sets it.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

PROGRAM = os.path.abspath(os.environ.get("EQUIPOISE", "build/release/bin/equipoise"))

STUDY = {
    "name": "small",
    "trace": {"distribution": "wlb-128k", "seed": 3},
    "model": "wlb-550m",
    "parallel": {"tensor": 2, "context": 2, "pipeline": 2, "recompute": "none"},
    "batch": {"context_window": "16K", "sequences_per_step": 4, "steps": 3},
    "policies": ["plain-4d", {"name": "wlb", "queues": 2, "shard": "adaptive"}],
    "baseline": "plain-4d",
}


def run(*arguments, cwd=None):
    environment = dict(os.environ, NO_COLOR="1")
    return subprocess.run(
        [PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300, cwd=cwd, env=environment, check=False
    )


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, content):
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def ok(self, *arguments):
        result = run(*arguments)
        self.assertEqual(result.returncode, 0, (arguments, result.stderr))
        return result.stdout

    def notes_of_study(self, *arguments):
        """What notes a study has, of all its rows: the numbers of each by its kind."""
        found = json.loads(self.ok("study", *arguments, "--format", "json", "--quiet"))
        cases = found if isinstance(found, list) else [found]
        lists = [notes for case in cases for notes in (case["study"]["notes"], *(row.get("notes", []) for row in case["policies"]))]
        return {note["kind"]: note["numbers"] for notes in lists for note in notes}

    def refused(self, *arguments, says=()):
        """Exit 2, nothing on stdout, one line on stderr that holds all of `says`."""
        result = run(*arguments)
        self.assertEqual(result.returncode, 2, (arguments, result.stdout, result.stderr))
        self.assertEqual(result.stdout, "", arguments)
        lines = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertTrue(lines[0].startswith("error: "), lines)
        for part in says:
            self.assertIn(str(part), lines[0])
        return lines[0]

#!/usr/bin/env python3
"""`equipoise completion` in a real shell, and `equipoise manual` through a real formatter."""
import re
import shutil
import subprocess
import unittest

from support import Case

COMPLETE = r"""
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_equipoise
printf '%s\n' "${COMPREPLY[@]}"
"""


class Completion(Case):
    def offered(self, *words):
        """What bash offers for the last of `words`."""
        script = self.folder / "equipoise.bash"
        script.write_text(self.ok("completion", "bash"))
        done = subprocess.run(["bash", "-c", COMPLETE, "bash", script, "equipoise", *words], text=True,
                              capture_output=True, cwd=self.folder, check=True)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_commands_and_their_options(self):
        self.assertIn("study", self.offered(""))
        self.assertEqual(self.offered("stu"), ["study"])
        self.assertEqual(self.offered("trace", "syn"), ["synth"])
        self.assertIn("--contention", self.offered("study", "some.json", "--cont"))
        self.assertNotIn("--contention", self.offered("trace", "info", "--"))

    def test_names_that_the_program_knows(self):
        self.assertEqual(self.offered("pack", "t.txt", "--policy", "karm"), ["karmarkar-karp"])
        self.assertEqual(self.offered("study", "--fidelity", ""), ["stage", "op"])
        self.assertEqual(self.offered("list", "sched"), ["schedules"])

    def test_files_where_nothing_else_is_known(self):
        (self.folder / "mine.json").write_text("{}")
        self.assertEqual(self.offered("study", "mi"), ["mine.json"])

    def test_other_shells(self):
        self.assertIn("bashcompinit", self.ok("completion", "zsh"))
        self.assertIn("complete -c equipoise -n '__equipoise_at equipoise study' -l contention ",
                      self.ok("completion", "fish"))
        self.refused("completion", "tcsh", says=["expected bash, zsh or fish, found tcsh"])

    @unittest.skipUnless(shutil.which("fish"), "no fish here")
    def test_fish_tells_commands_of_one_name_apart(self):
        script = self.folder / "equipoise.fish"
        script.write_text(self.ok("completion", "fish"))

        def offered(words):
            done = subprocess.run(["fish", "-c", f"source {script}; complete -C '{words}'"], text=True, capture_output=True,
                                  cwd=self.folder, check=True)
            self.assertEqual(done.stderr, "")
            return [line.split("\t")[0] for line in done.stdout.splitlines()]

        self.assertIn("study", offered("equipoise st"))
        self.assertIn("policies", offered("equipoise list "))
        self.assertNotIn("policies", offered("equipoise profiles list "))
        self.assertIn("list", offered("equipoise profiles "))
        self.assertEqual(offered("equipoise pack t.txt --policy karm"), ["karmarkar-karp"])
        self.assertIn("--contention", offered("equipoise study some.json --cont"))
        self.assertNotIn("--contention", offered("equipoise trace info --"))


class Manual(Case):
    def test_every_option_of_the_help_is_there(self):
        page = self.ok("manual").replace("\\-", "-")
        for command in ("study", "tune", "validate", "pack", "fit"):
            for option in re.findall(r"^  (--[a-z][a-z-]*)", self.ok(command, "--help"), re.M):
                if option != "--help":
                    self.assertIn(f".B {option}", page)

    def test_flags_take_no_value(self):
        page = self.ok("manual").replace("\\-", "-")
        self.assertIn(".B --quiet\n", page)
        self.assertIn('.B --sweep" " \\fIvalue\\fR\n', page)
        fish = [line for line in self.ok("completion", "fish").splitlines() if "__equipoise_at equipoise study'" in line]
        ends = {option: next(line for line in fish if f" -l {option} " in line) for option in ("quiet", "sweep")}
        self.assertNotIn(" -r", ends["quiet"])
        self.assertTrue(ends["sweep"].endswith(" -r"))

    @unittest.skipUnless(shutil.which("groff"), "no groff here")
    def test_the_formatter_has_no_complaint(self):
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww"], input=self.ok("manual"), text=True, capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("EQUIPOISE(1)", done.stdout)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""`equipoise check` as a user and a CI system see it."""
import json
import unittest
import xml.etree.ElementTree as ElementTree

from support import STUDY, Case, run


class Check(Case):
    def setUp(self):
        super().setUp()
        self.study = self.write("study.json", STUDY)
        self.expect = self.folder / "expected.json"

    def made(self):
        self.ok("check", self.study, "--expect", self.expect, "--update", "--quiet")
        return json.loads(self.expect.read_text())

    def changed(self, change):
        """The expectation with one change."""
        expectation = self.made()
        change(expectation)
        self.write("expected.json", expectation)

    def test_made_then_passed(self):
        expectation = self.made()
        self.assertEqual(expectation["schema"], "equipoise.expectation/1")
        self.assertEqual([p["label"] for p in expectation["policies"]], ["plain-4d", "wlb"])
        self.assertEqual(expectation["policies"][0]["speedup"], 1)
        summary = json.loads(self.ok("study", self.study, "--format", "json", "--quiet"))
        self.assertEqual(expectation["policies"][1]["speedup"], summary["policies"][1]["metrics"]["speedup"])
        self.assertIn("passed", self.ok("check", self.study, "--expect", self.expect))

    def test_what_moved_fails_and_is_named(self):
        def slower(expectation):
            expectation["policies"][1]["speedup"] *= 0.99

        self.changed(slower)
        result = run("check", self.study, "--expect", self.expect)
        self.assertEqual(result.returncode, 1, result.stderr)
        moved = [line for line in result.stdout.splitlines() if "MOVED" in line]
        self.assertEqual(len(moved), 1)
        self.assertTrue(moved[0].startswith("wlb"))
        self.assertIn("1.01 %, beyond 0.50 %", moved[0])
        for tolerance in ("2%", "0.02"):
            self.ok("check", self.study, "--expect", self.expect, "--tolerance", tolerance)
        self.ok("check", self.study, "--expect", self.expect, "--metric", "step_seconds")

    def test_formats_and_junit(self):
        def other(expectation):
            expectation["policies"][0]["status"] = "oom"

        self.changed(other)
        junit = self.folder / "check.xml"
        result = run("check", self.study, "--expect", self.expect, "--format", "json", "--junit", junit)
        self.assertEqual(result.returncode, 1)
        report = json.loads(result.stdout)
        self.assertFalse(report["passed"])
        self.assertEqual([p["moved"] for p in report["policies"]], [True, False])
        suite = ElementTree.parse(junit).getroot()
        self.assertEqual((suite.get("tests"), suite.get("failures")), ("2", "1"))
        failures = {case.get("name"): case.find("failure") for case in suite}
        self.assertIsNone(failures["wlb"])
        self.assertIn("oom", failures["plain-4d"].get("message"))
        lines = run("check", self.study, "--expect", self.expect, "--format", "csv").stdout.splitlines()
        self.assertEqual(lines[0], "policy,expected,found,change,moved,problem")
        self.assertEqual(len(lines), 3)

    def test_update_accepts(self):
        def gone(expectation):
            del expectation["policies"][1]

        self.changed(gone)
        self.assertEqual(run("check", self.study, "--expect", self.expect).returncode, 1)
        self.ok("check", self.study, "--expect", self.expect, "--update")
        self.ok("check", self.study, "--expect", self.expect)

    def test_bad_input(self):
        self.refused("check", self.study, "--expect", self.expect, says=["--update", "expected.json"])
        bad = self.write("bad.json", "{")
        self.refused("check", self.study, "--expect", bad, says=["bad.json"])
        self.refused("check", self.study, "--expect", bad, "--update", says=["bad.json"])
        self.assertEqual(bad.read_text(), "{")
        self.refused("check", self.study, "--expect", self.study, says=["schema"])
        self.made()
        self.refused("check", self.study, "--expect", self.expect, "--metric", "speed", says=["--metric"])
        for tolerance in ("x", "-1", "nan", "%"):
            self.refused("check", self.study, "--expect", self.expect, f"--tolerance={tolerance}",
                         says=["--tolerance"])


if __name__ == "__main__":
    unittest.main()

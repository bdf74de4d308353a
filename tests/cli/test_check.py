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
        self.assertIn("better by 1.01 %, beyond 0.50 %", self.ok("check", self.study, "--expect", self.expect, "--only-worse"))
        self.assertIn('"gain": "speedup moved by 1.01 %', self.ok("check", self.study, "--expect", self.expect, "--only-worse", "--format", "json"))

    def test_a_step_that_is_slower_for_all_policies_fails_with_a_tolerance_of_its_own(self):
        def faster(expectation):
            for policy in expectation["policies"]:
                policy["step_seconds"] /= 1.15

        self.changed(faster)
        result = run("check", self.study, "--expect", self.expect)
        self.assertEqual(result.returncode, 1, result.stdout)
        moved = [line for line in result.stdout.splitlines() if "MOVED" in line]
        self.assertEqual(len(moved), 2)
        self.assertIn("MOVED by 15.00 %, beyond 2.00 %", moved[0])
        self.assertEqual(run("check", self.study, "--expect", self.expect, "--only-worse").returncode, 1)
        self.ok("check", self.study, "--expect", self.expect, "--tolerance", "0.5%,20%")
        self.ok("check", self.study, "--expect", self.expect, "--metric", "speedup")
        self.refused("check", self.study, "--expect", self.expect, "--tolerance", "1%,2%,3%", says=["2 metrics, found 3"])

    def test_formats_and_junit(self):
        def other(expectation):
            expectation["policies"][0]["status"] = "oom"

        self.changed(other)
        junit = self.folder / "check.xml"
        result = run("check", self.study, "--expect", self.expect, "--format", "json", "--junit", junit)
        self.assertEqual(result.returncode, 1)
        report = json.loads(result.stdout)
        self.assertFalse(report["passed"])
        # A status is told once; the policy whose status is right has both metrics.
        self.assertEqual([(p["label"], p["metric"], p["moved"]) for p in report["policies"]],
                         [("plain-4d", "speedup", True), ("wlb", "speedup", False), ("wlb", "step_seconds", False)])
        self.assertEqual(report["tolerances"], {"speedup": 0.005, "step_seconds": 0.02})
        suite = ElementTree.parse(junit).getroot()
        self.assertEqual((suite.get("tests"), suite.get("failures")), ("3", "1"))
        failures = {case.get("name"): case.find("failure") for case in suite}
        self.assertIsNone(failures["wlb: speedup"])
        self.assertIn("oom", failures["plain-4d: speedup"].get("message"))
        lines = run("check", self.study, "--expect", self.expect, "--format", "csv").stdout.splitlines()
        self.assertEqual(lines[0], "policy,metric,expected,found,change,moved,problem")
        self.assertEqual(len(lines), 4)

    def test_two_outputs_are_two_files(self):
        both = self.folder / "both"
        self.refused("check", self.study, "--expect", both, "--update", "--junit", self.folder / "." / "both", says=["--junit", "both"])
        self.assertFalse(both.exists())

    def test_update_accepts(self):
        def gone(expectation):
            del expectation["policies"][1]

        self.changed(gone)
        self.assertEqual(run("check", self.study, "--expect", self.expect).returncode, 1)
        self.ok("check", self.study, "--expect", self.expect, "--update")
        self.ok("check", self.study, "--expect", self.expect)

    def test_update_says_which_rows_have_no_speedup_to_guard(self):
        options = ["check", self.study, "--expect", self.expect, "--update"]
        self.assertNotIn("guarded", run(*options).stderr)
        self.assertIn("(oom) has no speed-up over plain-4d, so none is guarded", run(*options, "--set", "cluster.memory_GB=1").stderr)

    def test_bad_input(self):
        self.refused("check", self.study, "--expect", self.expect, says=["--update", "expected.json"])
        bad = self.write("bad.json", "{")
        self.refused("check", self.study, "--expect", bad, says=["bad.json"])
        self.refused("check", self.study, "--expect", bad, "--update", says=["bad.json"])
        self.assertEqual(bad.read_text(), "{")
        self.refused("check", self.study, "--expect", self.study, says=["study.json: file.schema: expected equipoise.expectation/1"])
        self.made()
        self.refused("check", self.study, "--expect", self.expect, "--metric", "speed", says=["--metric"])
        for tolerance in ("x", "-1", "nan", "%"):
            self.refused("check", self.study, "--expect", self.expect, f"--tolerance={tolerance}",
                         says=["--tolerance"])
        self.refused("check", self.study, "--expect", self.expect, "--tolerance", "5", says=["--tolerance", "up to 1", "found 5; 5 % is 5% or 0.05"])
        self.refused("check", self.study, "--expect", self.expect, "--tolerance", "150%", says=["--tolerance", "found 150%"])


if __name__ == "__main__":
    unittest.main()

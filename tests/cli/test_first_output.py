"""The first output of a study: short, the same whatever the baseline is, and it names a row that can be run."""

import json
import os
import pathlib
import re
import unittest
from unittest import mock

from support import STUDY, Case, run

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SHIPPED = SOURCE / "traces/studies"
WORDS = ["Fastest", "Why", "Cost", "Accuracy", "Warning", "Report", "Next"]


class FirstOutput(Case):
    def comparison(self, *arguments):
        return json.loads(self.ok("study", *arguments, "--format", "json", "--quiet"))["comparison"]

    def test_another_baseline_changes_neither_the_fastest_nor_its_ties(self):
        # Over fixed-4d the intervals of wlb-llm and plain-4d overlap, which was taken for a tie of the two.
        found = [self.comparison(SHIPPED / "7b-128k.json", "--set", f"baseline={baseline}")
                 for baseline in ("plain-4d", "fixed-4d", "fixed-greedy, 8 batches", "wlb-llm")]
        for other in found[1:]:
            self.assertEqual(other, found[0])
        self.assertEqual(found[0]["fastest"], "wlb-llm")
        plain = next(row for row in found[0]["others"] if row["label"] == "plain-4d")
        self.assertIs(plain["tied"], False)
        self.assertGreater(plain["low"], 1)
        # Two policies of one layout: published ratios of such rows leave it no tie.
        self.assertLess(plain["model_low"], plain["ratio"])
        self.assertGreater(plain["model_low"], 1)

    def test_the_fastest_keeps_the_bound_on_the_delay(self):
        study = (SHIPPED / "7b-128k.json", "--set", "batch.steps=24")
        strict = self.comparison(*study, "--max-delay", 0.5)
        late = next(row for row in strict["faster"] if row["label"] == "wlb-llm")
        self.assertEqual(strict["fastest"], "fixed-4d")
        self.assertEqual(strict["fastest_any_delay"], "fixed-greedy, 8 batches")
        self.assertGreater(late["ratio"], 1)
        self.assertRegex(late["reason"], r"^mean delay 0\.\d\d$")
        self.assertEqual(self.comparison(*study, "--max-delay", 100)["fastest"], strict["fastest_any_delay"])
        self.assertIn("Faster in another order of the data: ", " ".join(self.ok("study", *study, "--max-delay", 0.5).split()))

    def test_a_row_that_the_framework_does_not_run_is_not_the_fastest(self):
        study = {"name": "sft", "trace": {"distribution": "tulu3-longcite", "seed": 1}, "model": "llama3.1-8b", "framework": "deepspeed",
                 "cluster": {"profile": "h100-sxm", "gpus_per_node": 8, "memory_GB": 1000}, "parallel": {"context": 8, "data": 2, "zero": 3, "recompute": "full"},
                 "batch": {"context_window": "128K", "documents_per_step": 256, "steps": 4},
                 "policies": ["padded", "wlb", {"name": "hbp", "groups": "16K:1,128K:8"}, {"name": "skrull", "shard": "dacp"}], "baseline": "padded"}
        found = json.loads(self.ok("study", self.write("sft.json", study), "--format", "json", "--quiet"))
        runs_in = {row["label"]: row["runs_in"] for row in found["policies"]}
        self.assertEqual(runs_in, {"padded": "own_loader", "wlb": "yes", "hbp": "no", "skrull": "no"})
        hbp = next(row for row in found["policies"] if row["label"] == "hbp")
        self.assertEqual([note["kind"] for note in hbp["needs"]], ["needs_degrees"])
        comparison = found["comparison"]
        self.assertEqual(comparison["fastest"], "wlb")
        self.assertEqual([row["label"] for row in comparison["faster"]], ["skrull"])
        self.assertIn("documents whole on one CP rank", comparison["faster"][0]["reason"])
        self.assertIn("runs in", self.ok("study", self.folder / "sft.json"))
        none = self.comparison(self.folder / "sft.json", "--set", "framework=none")
        self.assertEqual((none["fastest"], none["faster"]), ("skrull", []))

    def test_the_readme_shows_what_the_program_prints(self):
        shown = re.search(r"\$ ./run.sh study\n(.*?)```", (SOURCE / "README.md").read_text(), re.DOTALL).group(1)
        printed = run("study", "traces/studies/first-study.json", "--out", self.folder, cwd=SOURCE).stdout
        self.assertEqual(printed.replace(str(self.folder), "out/first-study"), shown)

    def test_no_memory_is_said_before_other_rows_run_with_what_makes_them_run(self):
        slow = {"name": "equipoise", "moves": 3000}
        study = self.write("study.json", dict(STUDY, cluster={"memory_GB": 7}, policies=["plain", slow], baseline="plain"))
        done = run("study", study)
        said = [line for line in done.stderr.splitlines() if "out of memory" in line]
        self.assertEqual(len(said), 1, done.stderr)
        self.assertRegex(said[0], r"^note: plain is out of memory: .*; --set parallel\.recompute=auto recomputes the fewest layers ")
        self.assertNotIn("out of memory", run("study", study, "--quiet").stderr)
        alone = self.write("own.json", dict(STUDY, cluster={"memory_GB": 7}, policies=[{"name": "plain", "recompute": "none"}, slow], baseline="plain"))
        self.assertNotIn("parallel.recompute=auto", run("study", alone).stderr)  # which the row overrides
        command = re.search(r"\nNext +equipoise (study .*)", done.stdout).group(1)
        self.assertEqual(command, f"study {study} --set parallel.recompute=auto")
        self.assertNotIn("oom", self.ok(*command.split()).splitlines()[2])

    def test_examples_lie_within_what_was_measured(self):
        for name in ("first-study", "405b-8k-gpus", "405b-131k-gpus"):
            found = json.loads(self.ok("study", SHIPPED / f"{name}.json", "--set", "batch.steps=4", "--format", "json", "--quiet"))
            for row in found["policies"]:
                self.assertLess(row["provenance"]["beyond_samples_share"], 0.1, (name, row["label"]))

    def test_ten_rows_fit_on_a_screen(self):
        rows = [{"name": "wlb", "queues": 1 + i, "shard": "adaptive", "label": f"a label that is longer than any column of the table may be, {i}"}
                for i in range(9)]
        study = self.write("study.json", dict(STUDY, batch=dict(STUDY["batch"], steps=4), policies=["plain-4d", *rows]))
        screen = self.ok("study", study)
        lines = screen.splitlines()
        self.assertLessEqual(len(lines), 25, screen)
        self.assertLessEqual(max(map(len, lines)), 110, screen)
        self.assertRegex(lines[0], r"^wlb-550m, 16K window, 8 GPUs \(TP 2, CP 2, PP 2, DP 1\), h100-sxm, framework megatron, simulated$")
        self.assertRegex(lines[1], r"^policy +tokens/s/GPU +speed-up \(95 %\) +MFU % +free GiB")
        words = [line.split()[0] for line in lines[12:] if not line.startswith(" ")]
        self.assertEqual([word for word in WORDS if word in words], list(dict.fromkeys(words)))
        for word in ("Fastest", "Why", "Cost", "Accuracy", "Report", "Next"):
            self.assertIn(word, words)
        wide = self.ok("study", study, "--wide")
        self.assertIn("tokens/step", wide)
        self.assertNotIn("tokens/step", screen)

    def test_a_warning_that_is_cut_keeps_what_to_do_about_it(self):
        rows = [{"name": "wlb", "queues": 1 + i, "shard": "adaptive", "label": f"row {i}"} for i in range(9)]
        study = self.write("study.json", dict(STUDY, batch=dict(STUDY["batch"], steps=4), policies=["plain-4d", *rows]))
        notes = run("study", study, "--format", "csv", "--quiet").stderr.splitlines()
        lines = self.ok("study", study).splitlines()
        begin = next(i for i, line in enumerate(lines) if line.startswith("Warning"))
        end = next(i for i, line in enumerate(lines) if line.startswith("Report"))
        cut = [" ".join(words.split()) for words in " ".join(lines[begin:end]).split("Warning ")[1:]]
        self.assertTrue(any(" ...; " in warning for warning in cut), cut)
        for warning in cut:
            whole = [note for note in notes if all(part in note for part in re.split(r" \.\.\.;? ?", warning))]
            self.assertTrue(whole, (warning, notes))
            self.assertTrue(" ...; " not in warning or whole[0].endswith("; " + warning.split(" ...; ")[1]), warning)

    def test_a_narrow_terminal_is_kept(self):
        """The terminal's columns, where it has fewer than 110: the same text on more lines."""
        rows = ["plain-4d", "wlb-llm", {"name": "skrull", "label": "a longer label"}, "fixed-4d"]
        study = self.write("study.json", dict(STUDY, batch=dict(STUDY["batch"], steps=4), policies=rows))
        with mock.patch.dict("os.environ"):
            os.environ.pop("COLUMNS", None)  # the caller's
            wide = self.ok("study", study)
        for columns in (80, 95, 200):
            with mock.patch.dict("os.environ", {"COLUMNS": str(columns)}):
                lines = self.ok("study", study).splitlines()
            self.assertLessEqual(max(map(len, lines)), min(columns, 110), lines)
            table = next(i for i, line in enumerate(lines) if line.startswith("policy "))
            self.assertTrue(lines[table - 1].endswith("simulated"), lines)  # a head that is folded is whole
            self.assertEqual([line.split()[:2] for line in lines[table + 1:table + 5]], [line.split()[:2] for line in wide.splitlines()[2:6]])
            self.assertEqual("MFU %" in lines[table], columns > 80)
        self.assertEqual("\n".join(lines), wide.rstrip("\n"))  # no wider than 110
        alone = self.write("alone.json", dict(STUDY, name="a", parallel={}, policies=["plain-4d"]))
        with mock.patch.dict("os.environ", {"COLUMNS": "80"}):
            self.assertRegex(self.ok("study", alone).splitlines()[0], r", 1 GPU, h100-sxm")  # no axis to name

    def test_names_that_differ_look_different_where_they_are_cut(self):
        labels = [f"the same beginning of a label that is longer than any column of the table may be, {word}, and the same end" for word in ("one", "other", "third")]
        study = self.write("study.json", dict(STUDY, policies=[{"name": "plain", "label": label} for label in labels], baseline=labels[0]))
        for columns in ("80", "110"):
            with mock.patch.dict("os.environ", {"COLUMNS": columns}):
                lines = self.ok("study", study).splitlines()
            table = next(i for i, line in enumerate(lines) if line.startswith("policy "))
            names = [re.split("  +", line)[0] for line in lines[table + 1:table + 4]]
            for name, word in zip(names, ("one", "oth", "thi")):
                self.assertIn("..." + word[0], name)
            self.assertLessEqual(max(map(len, lines[:table + 4])), int(columns))

    def test_all_notes_have_the_reasons_of_rows_that_do_not_run(self):
        study = self.write("study.json", dict(STUDY, cluster={"memory_GB": 1}))
        for sweep in ((), ("--sweep", "batch.steps=2,3")):
            notes = [line for line in run("study", study, *sweep, "--notes", "--quiet").stderr.splitlines() if " is out of memory: " in line]
            self.assertEqual(len(notes), 2 * max(1, len(sweep)), notes)
        row = json.loads(self.ok("study", study, "--format", "json", "--quiet"))["policies"][0]
        self.assertEqual((row["status"], row["metrics"]["token_delay_mean"]), ("oom", None))
        self.assertNotIn("mean delay", self.ok("study", study))

    def test_notes_are_counted_and_printed_where_asked_for(self):
        rows = ["plain-4d", {"name": "plain", "label": "searching", "search": True}]
        study = self.write("study.json", dict(STUDY, policies=rows))
        said = "search has no effect on plain"
        quiet = run("study", study, "--quiet")
        self.assertIn(said, " ".join(quiet.stdout.split()))
        self.assertNotIn("note: ", quiet.stderr)
        self.assertIn(f"note: searching: {said}", run("study", study, "--notes").stderr)
        self.assertIn(f"warning: searching: {said}", run("study", study, "--format", "csv", "--quiet").stderr)

    def test_next_is_what_can_be_typed(self):
        study = self.write("study.json", STUDY)
        commands = re.findall(r"equipoise .*", self.ok("study", study).split("\nNext ")[1])
        self.assertEqual(len(commands), 2)
        export = commands[0].split()[1:]
        self.assertEqual(export[0], "export")
        self.assertIn("ARGUMENTS=(", self.ok(*export))
        self.assertEqual(commands[1], f"equipoise tune {study} --max-delay 1 --out best")


if __name__ == "__main__":
    unittest.main()

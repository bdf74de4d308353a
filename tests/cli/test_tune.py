"""`equipoise tune` as a user sees it: a ranking, a study that reproduces it, resuming, one-line errors.

EQUIPOISE names the program; ctest sets it.
"""

import json
import re
import signal
import subprocess
import time
import unittest
from unittest import mock

from support import PROGRAM, STUDY, Case, run

SPACE = {
    "parallel.tensor": [1, 2, 4],
    "parallel.context": [1, 2, 4],
    "parallel.pipeline": [1, 2],
    "parallel.context_comm": ["all-gather", "ring"],
    "parallel.recompute": ["none", "full"],
    "policies": ["plain-4d", {"name": "wlb", "queues": [1, 2], "shard": "adaptive"}],
}


class Tune(Case):
    def search(self, *arguments, space=SPACE, study=STUDY):
        return self.ok("tune", self.write("study.json", study), "--space", self.write("space.json", space), "--quiet", "--wide", *arguments)

    def title_of(self, out):
        return re.search(r"<h1[^>]*>(.*?)</h1>", (out / "report.html").read_text(), re.DOTALL).group(1)

    def test_best_json_is_reproduced_by_study(self):
        out = self.folder / "out"
        text = self.search("--out", out)
        found = json.loads((out / "tune.json").read_text())
        self.assertEqual(found["schema"], "equipoise.tune/1")
        self.assertTrue(found["complete"])
        self.assertIn("speed-up (95 %)", text)
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        best = elsewhere / "best.json"
        best.write_text((out / "best.json").read_text())
        result = json.loads(self.ok("study", best, "--format", "json", "--quiet"))
        *own, row = result["policies"]  # the study's, then the winner
        winner = found["ranking"][0]
        self.assertEqual(row["label"], winner["label"])
        # `export` takes the winner of the search, also where another row of best.json is faster.
        study = json.loads(best.read_text())
        self.assertEqual(study["export_row"], winner["label"])
        best.write_text(json.dumps(study | {"export_row": "plain-4d"}))
        self.assertIn("plain-4d", self.ok("export", best, "--for", "megatron", "--quiet").splitlines()[0])
        self.refused("export", self.write("odd.json", study | {"export_row": "nobody"}), "--for", "megatron", says=["odd.json.export_row", "nobody"])
        self.assertEqual([other["label"] for other in own], [label for label in ("plain-4d", "wlb") if label != winner["label"]])
        self.assertEqual(result["baseline"], "plain-4d")
        for other in own:
            self.assertLessEqual(other["metrics"]["tokens_per_second_per_gpu"], row["metrics"]["tokens_per_second_per_gpu"])
        for key, value in row["metrics"].items():
            if not key.startswith("speedup"):
                self.assertEqual(value, winner["metrics"][key], key)
        self.assertGreaterEqual(winner["metrics"]["speedup"], 1)

    def test_best_json_names_a_row_once(self):
        """Where the winner is a row of the study, it is there once, and is the baseline if that row was."""
        out = self.folder / "out"
        study = dict(STUDY, policies=[{"name": "wlb", "queues": 1, "label": "ours", "recompute": "full"}], baseline="ours")
        self.search("--out", out, space={"parallel.context": [1, 2]}, study=study)
        best = json.loads((out / "best.json").read_text())
        self.assertEqual([row["label"] for row in best["policies"]], ["ours"])
        self.assertEqual(best["baseline"], "ours")
        other = {"parallel.context": [1, 2], "policies": [{"name": "wlb", "label": "ours", "queues": 2}]}
        self.search("--out", out, space=other, study=study)
        best = json.loads((out / "best.json").read_text())
        self.assertEqual([(row["label"], row["queues"]) for row in best["policies"]], [("ours", 1), ("ours (found)", 2)])
        self.assertEqual(best["baseline"], "ours")

    def test_formats_agree(self):
        found = json.loads(self.search("--format", "json"))
        rows = self.search("--format", "csv").splitlines()
        self.assertEqual(len(rows), 1 + len(found["ranking"]))
        speeds = [row["metrics"]["tokens_per_second_per_gpu"] for row in found["ranking"]]
        self.assertEqual(speeds, sorted(speeds, reverse=True))
        tokens = [row["metrics"]["tokens_per_step"] for row in found["ranking"]]
        column = rows[0].split(",").index("tokens_per_step") - len(rows[0].split(","))  # layouts have commas
        self.assertEqual([float(row.split(",")[column]) for row in rows[1:]], tokens)
        self.assertEqual([row.split(",")[-1] for row in rows], ["runs_in", *(row["runs_in"] for row in found["ranking"])])
        held = [found["baseline"]["metrics"]["tokens_per_step"], *tokens]
        said = [line for line in self.search().splitlines() if line.startswith("Global batches are not equal: tokens per step differ by up to ")]
        self.assertGreater(max(held), 1.02 * min(held))
        self.assertEqual(len(said), 1)
        self.assertRegex(said[0], rf" {round(min(held)):,} to \S+ {round(max(held)):,}\), ")
        one = self.search(space={"parallel.context": [1, 2], "policies": ["plain"]})
        self.assertNotIn("Global batches", one)
        counts = found["counts"]
        decided = counts["tried"] + counts["slower_by_bound"] + counts["states_do_not_fit"] + counts["not_reached"]
        self.assertEqual(decided, counts["candidates"])
        self.assertEqual(sum(counts["outcomes"].values()), counts["tried"])

    def test_a_search_fits_on_a_screen(self):
        """At most 110 columns and 25 lines: what is proposed next can be typed, and --wide has the rest."""
        study, out = self.write("study.json", dict(STUDY, batch=dict(STUDY["batch"], steps=8))), self.folder / "out"
        search = ("tune", study, "--budget", "40", "--max-delay", "2,8", "--quiet")
        for options in ((), ("--out", out)):
            text = self.ok(*search, *options)
            lines = text.splitlines()
            self.assertLessEqual(len(lines), 25, text)
            self.assertLessEqual(max(map(len, lines)), 110, text)
            for label in ("Fastest", "Why", "Baseline", "Searched", "Report", "Next"):
                self.assertEqual(len([line for line in lines if line.startswith(label)]), 1, text)
        self.assertIn(f"Next      equipoise tune {study} --budget 40 --max-delay 2,8 --out best\n", self.ok(*search))
        limited = re.sub(r" \\\n +", " ", self.ok(*search, "--jobs", "3", "--max-memory-GB", "6.5"))
        self.assertIn(f" tune {study} --budget 40 --max-delay 2,8 --jobs 3 --max-memory-GB 6.5 --out best\n", limited)
        named = re.findall(r"#(\d+)", re.search(r"\nFastest.*?(?=\n\S)", text, re.DOTALL).group())
        shown = [line.split()[0] for line in lines[2:] if line[0].isdigit()]
        self.assertLess(set(named), set(shown))
        self.assertRegex(self.ok(*search, "--wide"), r"Untried are [\d,]+ [^\"]+\.\n")
        found = json.loads((out / "tune.json").read_text())["ranking"]
        places = [line for line in lines[2:] if line[0].isdigit()]
        self.assertGreater(len(places), 4)
        for row, line in zip(found, places):
            self.assertTrue(line.startswith(f"{row['rank']} ") and row["name"][:30] in line, (row["name"], line))
        for command in re.findall(r"equipoise (.*)", text.split("\nNext ")[1]):
            self.ok(*command.replace("results", str(self.folder / "results")).split())

    def test_the_default_space_is_of_the_framework(self):
        for framework, pipelines, chunks in (("fsdp", {1}, {1}), ("deepspeed", {1, 2, 4, 8}, {1}), ("megatron", {1, 2, 4, 8}, {1, 2, 4})):
            study = self.write("study.json", dict(STUDY, framework=framework))
            space = json.loads(self.ok("tune", study, "--budget", "4", "--format", "json", "--quiet"))["space"]
            values = [space[key] if isinstance(space[key], list) else [space[key]] for key in ("parallel.pipeline", "parallel.virtual_pipeline")]
            self.assertEqual(list(map(set, values)), [pipelines, chunks], framework)

    def test_the_default_space_is_printed(self):
        study = self.write("study.json", STUDY)
        result = subprocess.run([PROGRAM, "tune", str(study), "--budget", "20", "--wide"], capture_output=True, text=True, timeout=120, check=True)
        self.assertIn("note: no --space", result.stderr)
        space = json.loads(re.search(r"so a default one: [\d,]+ rows on [\d,]+ layouts, (.*)", result.stderr).group(1))
        self.assertIn("parallel.tensor", space)
        rows = [row if isinstance(row, dict) else {"name": row} for row in space["policies"]]
        self.assertLessEqual({"hbp", "flexsp", "skrull"}, {row["name"] for row in rows})
        self.assertEqual([row["keep"] for row in rows if row["name"] == "chunkflow"], [[1, 2, 4, 8, 16]])
        self.assertTrue(any(row.get("search") for row in rows))
        self.assertIn("not reached within the budget", result.stdout)

    def test_what_differs_in_nothing_is_one_row(self):
        space = {**SPACE, "policies": ["plain", {"name": "plain", "shard": ["per-sequence"]}, "plain-4d", "ffd"]}
        found = json.loads(self.search("--format", "json", space=space))
        times = [(str(row["layout"]), row["metrics"]["total_seconds"]) for row in found["ranking"]]
        self.assertEqual(len(times), len(set(times)))
        plain = next(row for row in found["ranking"] if row["label"].startswith("plain"))
        self.assertEqual(len(plain["alike"]), 2)
        self.assertIn(" and 2 alike", self.search(space=space))

    def test_a_rows_own_recompute_makes_layouts_alike(self):
        rows = [{"name": "plain", "recompute": "full"}]
        space = {"parallel.recompute": ["none", "selective", {"layers": 4}], "policies": rows}
        found = json.loads(self.search("--format", "json", space=space, study=dict(STUDY, policies=rows, baseline="plain")))
        self.assertEqual(len(found["ranking"]), 1)
        self.assertEqual(len(found["ranking"][0]["alike"]), 2)

    def test_jobs_change_nothing(self):
        self.assertEqual(self.search("--jobs", 1, "--format", "json"), self.search("--jobs", 3, "--format", "json"))

    def test_killed_and_resumed_is_the_same(self):
        study = {**STUDY, "batch": {**STUDY["batch"], "steps": 40}}
        whole = self.folder / "whole"
        self.search("--out", whole, study=study)
        cut = self.folder / "cut"
        command = [PROGRAM, "tune", str(self.folder / "study.json"), "--space", str(self.folder / "space.json"), "--out", str(cut), "--quiet"]
        journal = cut / "tune.journal"
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if journal.exists() and journal.read_bytes().count(b"\n") > 1:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
        process.wait()
        self.assertEqual(process.returncode, -signal.SIGKILL)
        self.assertFalse((cut / "tune.json").exists())
        lines = journal.read_bytes().count(b"\n")
        self.search("--out", cut, "--resume", study=study)
        self.assertGreater(journal.read_bytes().count(b"\n"), lines)
        for name in ("tune.json", "best.json", "tune.journal"):
            self.assertEqual((cut / name).read_bytes(), (whole / name).read_bytes(), name)
        self.refused("tune", self.folder / "study.json", "--out", cut, "--resume", "--quiet", says=["--resume", "another search"])

    def test_resumed_with_a_larger_budget(self):
        whole, grown = self.folder / "whole-budget", self.folder / "grown-budget"
        self.search("--out", whole)
        self.search("--out", grown, "--budget", 3)
        few = (grown / "tune.journal").read_bytes().count(b"\n")
        self.search("--out", grown, "--resume")
        self.assertEqual(few, 4)
        self.assertEqual(sorted(p.name for p in grown.iterdir()), sorted(p.name for p in whole.iterdir()))
        for name in ("tune.json", "best.json", "tune.journal"):
            self.assertEqual((grown / name).read_bytes(), (whole / name).read_bytes(), name)

    def test_resumed_with_a_smaller_budget_forgets_nothing(self):
        whole, again = self.folder / "whole-known", self.folder / "again"
        self.search("--out", whole)
        self.search("--out", again)
        self.search("--out", again, "--resume", "--budget", 1)
        self.assertEqual((again / "tune.journal.before").read_bytes(), (whole / "tune.journal").read_bytes())
        self.search("--out", again, "--resume")
        for name in ("tune.json", "best.json", "tune.journal"):
            self.assertEqual((again / name).read_bytes(), (whole / name).read_bytes(), name)
        self.assertFalse((again / "tune.journal.before").exists())

    def test_one_candidate_is_one_and_the_baseline_says_what_it_recomputes(self):
        study = dict(STUDY, parallel=STUDY["parallel"] | {"recompute": "auto"})
        text = self.search(space={"policies": ["plain-4d"]}, study=study)
        self.assertIn("\n1 candidate: 1 tried (", text)
        self.assertIn(" on the study's TP 2, CP 2, PP 2, DP 1, recompute auto: ", text)
        self.assertNotRegex(text, r"\b1 (GPU|candidate|layer|step|row)s")

    def test_a_row_that_chooses_its_schedule(self):
        space = {"policies": ["plain", {"name": "sequence-slices", "slices": 4, "schedule": ["state-aware-1f1b", "seq1f1b", "auto"]}]}
        result = json.loads(self.search("--format", "json", space=space, study=dict(STUDY, framework="none")))
        labels = [f"sequence-slices, {way}, slices 4" for way in ("state-aware-1f1b", "seq1f1b", "schedule auto")]
        self.assertEqual([row["label"] for row in result["rows"]], ["plain", *labels])
        seconds = {labels[one["row"] - 1]: one["seconds_per_token"] for one in result["tried"] if one["row"] > 0 and one["outcome"] == "ok"}
        self.assertEqual(seconds[labels[2]], seconds[labels[1]])
        # No framework has a flag for what it may choose.
        told = json.loads(self.search("--for", "megatron", "--format", "json", space=space))
        self.assertEqual([row["label"] for row in told["rows"]], ["plain"])
        self.assertEqual(told["counts"]["no_flag"]["policies"], {"schedule": 3})

    def test_layouts_that_a_framework_has_flags_for(self):
        space = {"parallel.context": [1, 2], "parallel.context_comm": ["all-gather", "group-cast"], "policies": ["plain", "flexsp", {"name": "lpt", "context_comm": "group-cast"}]}
        every = json.loads(self.search("--format", "json", space=space))
        told = json.loads(self.search("--for", "megatron", "--format", "json", space=space))
        self.assertIn("group-cast", json.dumps(every["layouts"]))
        self.assertNotIn("group-cast", json.dumps(told["layouts"]))
        self.assertEqual([row["label"] for row in told["rows"]], ["plain"])
        self.assertEqual(len(every["rows"]), 3)
        gone = len(every["layouts"]) - len(told["layouts"])
        self.assertEqual(gone, 1)
        self.assertEqual(told["counts"]["no_flag"], {"layouts": {"parallel.context_comm": gone}, "policies": {"parallel.context": 1, "parallel.context_comm": 1}})
        self.assertEqual(told["counts"]["no_candidates"]["do_not_go_together"], 0)
        self.assertNotIn("no_flag", every["counts"])
        self.assertIn(f"\nExcluded for want of a flag: {gone} layout (parallel.context_comm {gone}), 2 policies (parallel.context 1, parallel.context_comm 1).\n",
                      self.search("--for", "megatron", space=space))
        out = self.folder / "told"
        # Flags have one CP degree for all lanes, so a policy that may choose others does not.
        for options, own in ((["--for", "megatron"], False), ([], None)):
            self.search(*options, "--out", out, space={"policies": ["equipoise"]})
            self.assertEqual([row.get("own_degrees") for row in json.loads((out / "best.json").read_text())["policies"] if row["name"] == "equipoise"], [own])
        self.refused("tune", self.folder / "study.json", "--for", "nobody", says=["--for", "nobody", "megatron"])
        self.write("space.json", {"policies": ["flexsp"]})
        self.refused("tune", self.folder / "study.json", "--space", self.folder / "space.json", "--for", "nemo", says=["--for nemo", "parallel.context"])

    def test_the_winner_is_one_that_the_framework_runs_and_faster_ones_say_what_they_need(self):
        """One row in the ranking, the sentence, the page, best.json, `study best.json` and `export`."""
        space = {"parallel.context": [1, 2, 4], "policies": ["plain-4d", {"name": "wlb", "queues": 1, "shard": "adaptive"}, "equipoise"]}
        out = self.folder / "out"
        text = self.search("--out", out, space=space)
        found = json.loads((out / "tune.json").read_text())
        winner = found["ranking"][0]
        self.assertEqual([row["label"] for row in found["faster"]], ["equipoise"])
        self.assertNotIn("equipoise", [row["label"] for row in found["ranking"]])
        speed = lambda row: row["metrics"]["tokens_per_second_per_gpu"]
        self.assertGreater(speed(found["faster"][0]), speed(winner))
        self.assertEqual(found["faster"][0]["reason"], "CP degrees by micro-batch")
        said = re.search(r"\nFastest: (.*)\n", text).group(1)
        self.assertTrue(said.startswith(f"{winner['label']} on TP "), said)
        self.assertRegex(said, r" Faster than it, but megatron does not run them: equipoise on .* \d\.\d\dx \(CP degrees by micro-batch\)\.")
        self.assertIn("\nNo candidate that megatron runs in the order of the data is faster than the first: every one was run or proven slower.\n", text)
        self.assertIn(" is the fastest that megatron runs in the order of the data: ", self.title_of(out))
        self.assertEqual(json.loads((out / "best.json").read_text())["export_row"], winner["label"])
        again = json.loads(self.ok("study", out / "best.json", "--format", "json", "--quiet"))["comparison"]
        self.assertEqual(again["fastest"], winner["label"])
        self.assertIn(f" {winner['label']}", self.ok("export", out / "best.json", "--for", "megatron", "--quiet").splitlines()[0])
        # In another framework another row may win, by the form of context parallelism that it has.
        for framework, forms in (("deepspeed", {"ulysses"}), ("torchtitan", {"all-gather"})):
            study = dict(STUDY, framework=framework, parallel={"tensor": 2, "data": 4})
            other = {"parallel.tensor": [2], "parallel.context": [2, 4], "parallel.context_comm": ["all-gather", "ulysses", "ring"], "policies": ["plain"]}
            found = json.loads(self.search("--format", "json", space=other, study=study))
            self.assertEqual({row["layout"]["parallel.context_comm"] for row in found["ranking"]}, forms)
            for row in found["faster"]:
                self.assertIn("context parallelism by ", row["reason"])

    LONG = {**STUDY, "batch": {**STUDY["batch"], "steps": 40}}
    DELAYS = {"name": "wlb", "queues": 4, "shard": "adaptive"}  # by 1.21 iterations on the mean of 40 steps

    def test_the_winner_is_called_what_it_is(self):
        """By its claim, where faster candidates were passed over; no preset without a framework runs anything."""
        found = {
            ("megatron", "equipoise"): ("that megatron runs", "fastest_any_delay"),
            ("megatron", "plain"): ("that megatron runs in the order of the data", "fastest"),
            ("none", "plain"): ("in the order of the data", "fastest"),
        }
        out = self.folder / "out"
        for (framework, other), (claim, key) in found.items():
            space = {"parallel.context": [1, 2], "policies": [self.DELAYS, other]}
            text = self.search("--out", out, space=space, study=dict(self.LONG, framework=framework))
            result = json.loads((out / "tune.json").read_text())
            self.assertEqual(len(result["faster"]), 1)
            self.assertEqual(result["ranking"][0]["metrics"]["token_delay_mean"] > 1, key == "fastest_any_delay")
            self.assertIn(f" is the fastest {claim}: ", self.title_of(out))
            self.assertIn(f"\nNo candidate {claim} is faster than the first: every one was run or proven slower.\n", text)
        # The framework runs none, so that no faster one is passed over.
        text = self.search("--out", out, space={"parallel.context": [1, 2], "policies": ["equipoise"]})
        self.assertIn(" is the fastest of 2 candidates: ", self.title_of(out))
        self.assertIn("\nNo candidate of the space is faster than the first: ", text)

    def study_and_search_agree(self, out):
        """The label that the table, tune.json, best.json and `study best.json` name first, and the last's comparison."""
        winner = json.loads((out / "tune.json").read_text())["ranking"][0]["label"]
        self.assertEqual(json.loads((out / "best.json").read_text())["export_row"], winner)
        comparison = json.loads(self.ok("study", out / "best.json", "--format", "json", "--quiet"))["comparison"]
        self.assertEqual(comparison["fastest"], winner)
        return winner, comparison

    def test_study_compares_best_json_with_the_bound_of_the_search(self):
        out = self.folder / "out"
        space = {"parallel.context": [1, 2], "policies": ["plain-4d", self.DELAYS]}
        for own, bound, expected in ((1, "5", 5), (1, "0.5,9", 0.5), (1, "1", 1), (1, None, 1), (5, None, 5), (5, "1", 1)):
            bounds = ["--max-delay", bound] if bound else []
            self.search("--out", out, *bounds, space=space, study=dict(self.LONG, policies=["plain-4d"], max_delay=own))
            winner, comparison = self.study_and_search_agree(out)
            self.assertEqual((winner, comparison["max_delay"]), ("wlb, queues 4, adaptive" if expected == 5 else "plain-4d", expected))
        typed = self.ok("study", out / "best.json", "--max-delay", 3, "--format", "json", "--quiet")
        self.assertEqual(json.loads(typed)["comparison"]["max_delay"], 3)

    def test_a_faster_row_of_the_study_that_the_space_lacks_is_the_winner(self):
        out = self.folder / "out"
        slow = {"name": "plain-4d", "recompute": "full"}
        space = {"parallel.context": [1, 2], "policies": [slow]}
        study = dict(STUDY, policies=[dict(slow, label="slow"), {"name": "wlb", "queues": 1, "shard": "adaptive", "label": "mine"}], baseline="slow")
        text = self.search("--out", out, "--what-if", space=space, study=study)
        self.assertEqual(self.study_and_search_agree(out)[0], "mine")
        said = "The first is a row of the study, which was run on the best layout after the search."
        found = json.loads((out / "tune.json").read_text())
        for page in (text, (out / "report.html").read_text()):
            self.assertIn(said, page)
        self.assertIn("\nFastest: mine on ", text)
        self.assertIn(" mine", self.ok("export", out / "best.json", "--for", "megatron", "--quiet").splitlines()[0])
        self.assertEqual([row["label"] for row in found["rows"]], ["plain-4d, recompute full", "mine"])
        self.assertEqual({trial["row"] for trial in found["tried"]}, {0})  # it is no candidate
        self.assertEqual(found["ranking"][1]["label"], "plain-4d, recompute full")
        self.assertTrue(found["what_if"])
        self.assertEqual(found["faster"], [])
        study["policies"].append("equipoise")
        text = self.search("--out", out, space=space, study=study)
        self.assertRegex(text, r"\nFastest: mine on .* Faster than it, but megatron does not run them: equipoise on ")
        self.assertEqual([row["label"] for row in json.loads((out / "tune.json").read_text())["faster"]], ["equipoise"])
        study["policies"].pop()
        # Not so where it is slower, or the space has it.
        for rows in ({"name": "wlb", "queues": 1, "shard": "adaptive"}, "equipoise"):
            text = self.search("--out", out, space=dict(space, policies=[rows]), study=dict(study, framework="none"))
            self.assertNotIn(said, text)
            self.study_and_search_agree(out)

    def test_best_json_is_without_rows_that_the_search_passed_over(self):
        out = self.folder / "out"
        said = "best.json is without {}, which `study` would name first. The search did not reach it, or --space, --for or --max-delay exclude it."
        # The framework runs the study's row and none of the space.
        text = self.search("--out", out, space={"policies": ["equipoise"]}, study=dict(STUDY, policies=["plain"], baseline="plain"))
        self.assertIn(said.format("plain"), text)
        best = json.loads((out / "best.json").read_text())
        self.assertEqual([row["name"] for row in best["policies"]], ["equipoise"])
        self.assertIsNone(json.loads(self.ok("study", out / "best.json", "--format", "json", "--quiet"))["comparison"]["fastest"])
        # Its largest delay is over the bound, and there are no flags for it.
        late = dict(self.LONG, policies=[dict(self.DELAYS, label="late")], baseline="late")
        text = self.search("--out", out, "--max-delay", "2,2", space={"policies": [{"name": "plain", "recompute": "full"}]}, study=late)
        self.assertIn(said.format("late"), text)
        self.study_and_search_agree(out)
        text = self.search("--out", out, "--for", "megatron", space={"policies": ["plain-4d"]}, study=dict(STUDY, framework="none", policies=["equipoise"], baseline="equipoise"))
        self.assertIn(said.format("equipoise"), text)
        self.study_and_search_agree(out)

    SLOW = {"name": "plain-4d", "recompute": "full"}

    def with_own(self, *rows, **keys):
        """The study with these rows after its baseline, which is the slow one of the space."""
        return dict(STUDY, policies=[dict(self.SLOW, label="slow"), *rows], baseline="slow", **keys)

    def rows_of_best(self, out):
        return [row["label"] for row in json.loads((out / "best.json").read_text())["policies"]]

    def test_best_json_is_without_rows_that_its_layout_does_not_allow(self):
        out = self.folder / "out"
        for row, space, gpus in (
            ({"name": "plain", "context_comm": "ulysses"}, {"parallel.tensor": [4], "parallel.context": [8], "parallel.pipeline": [1]}, 32),
            ({"name": "plain", "virtual_pipeline": 2}, {"parallel.pipeline": [1]}, 8),
        ):
            text = self.search("--out", out, "--gpus", gpus, space=dict(space, policies=[self.SLOW]), study=self.with_own(dict(row, label="odd")))
            self.assertNotIn("odd", text)
            self.assertEqual(self.rows_of_best(out), ["plain-4d, recompute full"])
            self.ok("study", out / "best.json", "--quiet")

    def test_a_row_of_the_study_that_has_no_delay_keeps_no_bound(self):
        """It sees the whole data set, and is faster."""
        study = self.with_own({"name": "sorted", "schedule": "gpipe", "label": "whole"}, framework="fsdp")
        study["batch"] = {**STUDY["batch"], "steps": 8}
        space = {"parallel.context": [2], "policies": [dict(self.SLOW, schedule="gpipe")]}
        for bound, named in ((None, 1), ("2", 0), ("2,2", 0)):
            found = json.loads(self.search(*(["--max-delay", bound] if bound else []), "--format", "json", space=space, study=study))
            self.assertEqual([row["label"] for row in found["ranking"] + found["faster"]].count("whole"), named, bound)

    def test_of_two_equal_rows_of_the_study_one_wins(self):
        out = self.folder / "out"
        row = {"name": "wlb", "queues": 1, "shard": "adaptive"}
        study = self.with_own(dict(row, label="mine"), dict(row, recompute="none", label="twin"))
        text = self.search("--out", out, space={"parallel.context": [1, 2], "policies": [self.SLOW]}, study=study)
        self.assertEqual(self.study_and_search_agree(out)[0], "mine")
        self.assertEqual(self.rows_of_best(out), ["slow", "mine"])
        self.assertNotIn("best.json is without", text)

    def test_best_json_keeps_rows_that_are_slower_than_the_winner(self):
        """Also one that the bound on the delay excludes, and that is faster than the best of the space."""
        out = self.folder / "out"
        study = self.with_own(dict(self.DELAYS, label="late"), {"name": "plain", "label": "mine"})
        study["batch"] = {**STUDY["batch"], "steps": 8}
        space = {"parallel.context": [1], "policies": [self.SLOW]}
        text = self.search("--out", out, "--max-delay", "1,1", space=space, study=study)
        self.assertEqual(self.study_and_search_agree(out)[0], "mine")
        self.assertEqual(self.rows_of_best(out), ["slow", "late", "mine"])
        self.assertNotIn("best.json is without", text)
        # Without the faster one it is omitted, which is said where there is a best.json.
        study["policies"].pop()
        self.assertIn("best.json is without late,", self.search("--out", out, "--max-delay", "1,1", space=space, study=study))
        self.assertEqual(self.rows_of_best(out), ["plain-4d, recompute full"])
        self.assertNotIn("best.json", self.search("--max-delay", "1,1", space=space, study=study))

    def test_of_a_policy_that_the_framework_does_not_run_the_faster_row_is_named(self):
        study = self.with_own({"name": "equipoise", "recompute": "full", "label": "slower"}, {"name": "equipoise", "label": "faster"})
        found = json.loads(self.search("--format", "json", space={"parallel.context": [1], "policies": [self.SLOW]}, study=study))
        self.assertEqual([row["label"] for row in found["faster"]], ["faster"])
        # One of the space is not, where a row of the study that wins is faster.
        space = {"parallel.context": [1], "policies": [self.SLOW, {"name": "equipoise", "recompute": "full"}]}
        found = json.loads(self.search("--format", "json", space=space, study=self.with_own({"name": "plain", "label": "mine"})))
        self.assertEqual(([row["label"] for row in found["ranking"]], found["faster"]), (["mine", "plain-4d, recompute full"], []))

    def test_a_search_that_ended_early_says_what_it_is_the_best_of(self):
        out = self.folder / "early"
        text = self.search("--out", out, "--budget", 12)
        found = json.loads((out / "tune.json").read_text())
        page = (out / "report.html").read_text()
        self.assertEqual(found["counts"]["tried"], 12)
        self.assertIn(f"is the fastest of 12 tried, of {found['counts']['candidates']} candidates: ", page)
        for said in (text, page):
            self.assertIn("What was not reached is what promised least; a larger --budget, with --resume, reaches more.", said)
        counts = f"{found['counts']['candidates']:,} candidates: 12 tried"
        self.assertIn(f"{found['counts']['not_reached']:,} not reached within the budget.", page)
        for said in (text, page):
            self.assertIn(counts, said)

    def test_ctrl_c_after_the_search_keeps_what_was_run(self):
        """tune.json and best.json are there before what ifs are run; Ctrl-C there ends soon, with them."""
        study = self.write("study.json", {**STUDY, "batch": {**STUDY["batch"], "steps": 30}})
        space = self.write("space.json", {"policies": ["plain", {"name": "equipoise", "moves": 2000}]})
        out = self.folder / "out"
        process = subprocess.Popen([PROGRAM, "tune", str(study), "--space", str(space), "--out", str(out), "--jobs", "1", "--what-if"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 100
        while not (out / "report.html").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        before = json.loads((out / "tune.json").read_text())
        process.send_signal(signal.SIGINT)
        text, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, errors)
        own = "after the search: the study's 2 rows in full on the best layout, since best.json has them"
        self.assertIn(f"{own}; what ifs, up to 36 candidates in full\n", errors)
        found = json.loads((out / "tune.json").read_text())
        self.assertTrue(before["interrupted"] and found["interrupted"] and found["complete"])
        self.assertEqual(len(found["tried"]), 2)
        self.assertLess(len(found["what_if"]), 4)
        best = json.loads((out / "best.json").read_text())  # plain-4d is plain here, and best.json has one of equal rows where both ran
        self.assertIn(best["baseline"], ("plain", "plain-4d"))
        self.assertIn("What follows the search was ended early; --resume after tune runs it.", text)
        self.assertEqual(text.count(" by the search: "), 2 - len(found["ranking"]) - len(found["faster"]))
        self.assertIn(f"{own}\n", run("tune", study, "--space", space, "--out", self.folder / "no-what-if").stderr)
        again = run("tune", study, "--space", space, "--out", out, "--resume")
        self.assertIn(f"{own}; 2 rows that only the journal tells of\n", again.stderr)
        self.assertFalse(json.loads((out / "tune.json").read_text())["interrupted"])

    def test_a_node_that_is_not_full_is_noted(self):
        study = self.write("study.json", {**STUDY, "batch": {**STUDY["batch"], "sequences_per_step": 6}})
        result = run("tune", study, "--gpus", 12, "--budget", 2)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("note: 12 GPUs on nodes of 8 GPUs (cluster.gpus_per_node): the last node has 4", result.stderr)
        self.assertIn("note: network rail-400 of profile h100-sxm is borrowed from other clusters; ", result.stderr)

    def test_an_earlier_search_is_set_aside(self):
        out = self.folder / "twice"
        self.search("--out", out)
        first = (out / "tune.journal").read_bytes()
        self.search("--out", out, "--budget", 3)
        self.assertEqual((out / "tune.journal.old").read_bytes(), first)
        self.refused("tune", self.folder / "study.json", "--out", out, "--resume", "--quiet", says=["another search", "space differ"])

    def test_the_time_is_over(self):
        study = {**STUDY, "batch": {**STUDY["batch"], "steps": 400}}
        out = self.folder / "timed"
        for minutes in (0.001, 1e-9):  # in the search, and before layouts were looked at
            self.search("--out", out, "--minutes", minutes, study=study)
            found = json.loads((out / "tune.json").read_text())
            self.assertTrue(found["timed_out"])
            self.assertFalse(found["complete"])
            self.assertFalse(found["interrupted"])
            self.assertGreater(found["counts"]["not_reached"], 0)
            page = (out / "report.html").read_text()
            self.assertIn("The time was over before the search was: more --minutes, with --resume after tune, reach more.", page)
            self.assertNotIn("a larger --budget", page)
        self.refused("tune", self.folder / "study.json", "--minutes", "-1", says=["--minutes", "-1"])

    def test_a_row_that_is_the_winner_stands_once_in_its_study(self):
        rows = [{"name": "plain", "recompute": "full"}, {"name": "fixed-greedy", "label": "mine"}, {"name": "fixed-greedy", "pack_window": 1, "label": "again"}]
        out = self.folder / "once"
        self.search("--out", out, study={**STUDY, "policies": rows, "baseline": "plain"}, space={"policies": rows[1:]})
        self.assertEqual(len(json.loads((out / "best.json").read_text())["policies"]), 2)

    def test_few_layouts_and_many_rows_are_all_tried(self):
        rows = {"policies": [{"name": "fixed-greedy", "pack_window": list(range(1, 700))}]}
        study = {**STUDY, "batch": {**STUDY["batch"], "steps": 2}}
        self.assertTrue(json.loads(self.search("--format", "json", study=study, space=rows))["complete"])

    def test_another_row_of_the_name_that_is_alike_stays_the_baseline(self):
        rows = [{"name": "fixed-greedy", "pack_window": 4}]
        space = {"policies": [{"name": "fixed-greedy", "pack_window": 1, "label": "g1"}, "fixed-greedy"]}
        out = self.folder / "kept"
        self.search("--out", out, study={**STUDY, "policies": rows, "baseline": "fixed-greedy"}, space=space)
        best = json.loads((out / "best.json").read_text())
        self.assertEqual(best["baseline"], "fixed-greedy")
        self.assertEqual(best["policies"][0]["pack_window"], 4)

    def test_interrupted(self):
        study = {**STUDY, "batch": {**STUDY["batch"], "steps": 200}}
        self.write("study.json", study)
        self.write("space.json", SPACE)
        out = self.folder / "out"
        command = [PROGRAM, "tune", str(self.folder / "study.json"), "--space", str(self.folder / "space.json"), "--out", str(out), "--quiet"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while not (out / "tune.journal").exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        text, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertIn("--resume", errors)
        self.assertIn("Interrupted", text)
        found = sum(json.loads(line).get("outcome") == "ok" for line in (out / "tune.journal").read_text().splitlines())
        self.assertEqual("tokens/s/GPU" in text, found > 0)  # the table of those that were run to the end
        self.assertTrue(json.loads((out / "tune.json").read_text())["interrupted"])
        self.assertEqual((out / "best.json").exists(), found > 0)  # what there is so far, to be exported

    def test_shards_are_one_search(self):
        whole = self.folder / "whole"
        table = self.search("--out", whole)
        parts = self.folder / "parts"
        for i in range(3):
            self.assertEqual(self.search("--shard", f"{i}/3", "--out", parts, "--jobs", 1 + i), "")
        self.assertEqual(sorted(path.name for path in parts.iterdir()), [f"shard-{i}-of-3" for i in range(3)])
        merged = self.folder / "merged"
        self.assertEqual(self.ok("merge", merged, parts, "--quiet", "--wide"), table)
        for name in ("tune.json", "best.json"):
            self.assertEqual((merged / name).read_bytes(), (whole / name).read_bytes(), name)
        study = self.folder / "study.json"  # and of the default space
        for i in range(2):
            self.ok("tune", study, "--budget", 60, "--shard", f"{i}/2", "--out", self.folder / "default", "--quiet")
        self.assertEqual(self.ok("merge", merged, self.folder / "default", "--quiet", "--wide"), self.ok("tune", study, "--budget", 60, "--quiet", "--wide"))
        note = run("merge", self.folder / "again", *sorted(parts.iterdir())).stderr
        self.assertIn("note: from the shards: ", note)
        (parts / "shard-1-of-3" / "tune.journal").unlink()
        self.refused("merge", merged, parts, "--quiet", says=["expected all 3 shards", "missing: 1"])
        self.refused("merge", merged, parts / "shard-0-of-3", parts / "shard-0-of-3", says=["each shard once"])
        self.refused("merge", merged, whole, says=["whole run"])
        self.refused("merge", merged, self.folder / "nothing", says=["no such folder"])
        self.search("--shard", "1/3", "--out", parts, "--budget", 50)
        self.refused("merge", merged, parts, "--quiet", says=["shard-1-of-3", "found another"])

    def test_a_merge_whose_minutes_are_over_ranks_what_is_known(self):
        study = self.write("study.json", {**STUDY, "batch": {**STUDY["batch"], "steps": 100}})
        parts, merged = self.folder / "parts", self.folder / "merged"
        for i, minutes in enumerate((60, 1e-6)):  # the second ends before it has tried its share
            self.ok("tune", study, "--budget", 100, "--minutes", minutes, "--shard", f"{i}/2", "--out", parts, "--quiet")
        known = [json.loads(line) for path in parts.rglob("tune.journal") for line in path.read_text().splitlines()[1:]]
        best = min(trial["seconds_per_token"] for trial in known if trial["outcome"] == "ok" and trial["steps"] == 100)
        result = run("merge", merged, parts, "--minutes", 1e-6, "--what-if", "--quiet")
        self.assertEqual((result.returncode, result.stderr.startswith("the time is over after ")), (0, True), result.stderr)
        found = json.loads((merged / "tune.json").read_text())
        self.assertTrue(found["timed_out"])
        self.assertLessEqual(min(trial["seconds_per_token"] for trial in found["tried"] if trial["outcome"] == "ok"), best)
        points = {(trial["layout"], trial["row"]) for trial in known}
        self.assertLessEqual(points, {(trial["layout"], trial["row"]) for trial in found["tried"]})  # none is lost
        self.assertIn("The time was over before the search was", result.stdout)
        # What ifs have a share of the time, and it is said where that is too short.
        self.assertLess(len(found["what_if"]), 4)
        self.assertTrue(found["what_if_timed_out"])
        self.assertIn("What ifs are not all run: they have a quarter of --minutes.\n", result.stdout)
        self.refused("merge", merged, parts, "--minutes", -1, says=["--minutes", "-1"])

    def test_a_killed_shard_resumes(self):
        parts = self.folder / "parts"
        self.search("--shard", "0/2", "--out", parts)
        journal = parts / "shard-0-of-2" / "tune.journal"
        text = journal.read_bytes()
        journal.write_bytes(text[: len(text) // 2])
        self.search("--shard", "0/2", "--out", parts, "--resume")
        self.assertEqual(journal.read_bytes(), text)

    CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 8, "hidden_size": 512,
              "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 1024, "vocab_size": 4096,
              "hidden_act": "silu", "tie_word_embeddings": False}

    def test_scores_of_other_files_are_not_taken(self):
        """What a search reads is part of what it was asked: trace, config.json and profile, of the study and of the space."""
        trace = self.write("lengths.txt", "\n".join(str(500 + 37 * i % 9000) for i in range(400)))
        profile = self.write("mine.json", self.ok("profiles", "show", "h100-sxm", "--format", "json"))
        config = self.write("config.json", self.CONFIG)
        study = dict(STUDY, trace={"file": "lengths.txt"}, model={"hf_config": "config.json"}, cluster={"profile": "mine.json"})
        space = {"parallel.context": [1, 2], "policies": ["plain-4d"]}
        changes = {
            trace: (trace.read_text().replace("537", "4000", 1), "documents"),
            config: (json.dumps(dict(self.CONFIG, intermediate_size=2048)), "config.json"),
            profile: (profile.read_text().replace('"nvlink_GBps": 450', '"nvlink_GBps": 440', 1), "profile"),
        }
        for file, (text, named) in changes.items():
            before = file.read_text()
            self.assertNotEqual(text, before)
            out, parts = self.folder / f"out-{named}", self.folder / f"parts-{named}"
            self.search("--out", out, study=study, space=space)
            self.search("--shard", "0/2", "--out", parts, study=study, space=space)
            file.write_text(text)
            self.refused("tune", self.folder / "study.json", "--space", self.folder / "space.json", "--out", out, "--resume", "--quiet",
                         says=["--resume", "another search", named])
            self.search("--shard", "1/2", "--out", parts, study=study, space=space)
            self.refused("merge", self.folder / "merged", parts, "--quiet", says=["shard-1-of-2", "found another", "files"])
            self.search("--shard", "0/2", "--out", parts, study=study, space=space)
            file.write_text(before)
            self.refused("merge", self.folder / "merged", parts, "--quiet", says=["expected the files that its search has read", named])
            file.write_text(text)
            self.ok("merge", self.folder / "merged", parts, "--quiet")
            file.write_text(before)

    def test_ranks_are_shards(self):
        for rank, size in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")):
            parts = self.folder / rank
            with mock.patch.dict("os.environ", {rank: "1", size: "2"}):
                self.search("--out", parts)
            self.assertEqual([path.name for path in parts.iterdir()], ["shard-1-of-2"])
        with mock.patch.dict("os.environ", {"PMI_RANK": "1", "PMI_SIZE": "2"}):
            self.refused("tune", self.folder / "study.json", "--quiet", says=["need --out"])
            self.search("--shard", "0/1")  # what is typed counts

    def test_bad_shards_are_one_line(self):
        study = self.write("study.json", STUDY)
        for text in ("2/2", "-1/2", "1", "a/b", "1/0", "0/2x"):
            self.refused("tune", study, "--shard", text, "--out", self.folder / "out", says=["--shard", "i/n", text])
        self.refused("tune", study, "--shard", "0/2", says=["--out"])

    def test_exactly_so_many_gpus(self):
        found = json.loads(self.search("--gpus", 4, "--format", "json"))
        self.assertEqual(found["study"]["gpus"], 4)
        for layout in found["layouts"]:
            sizes = [layout[f"parallel.{axis}"] for axis in ("tensor", "context", "pipeline", "data")]
            self.assertEqual(sizes[0] * sizes[1] * sizes[2] * sizes[3], 4)

    def test_a_delay_bound_holds(self):
        found = json.loads(self.search("--max-delay", 0, "--format", "json"))
        self.assertTrue(found["ranking"])
        for row in found["ranking"]:
            self.assertEqual(row["metrics"]["token_delay_mean"], 0)

    def test_nothing_fits(self):
        study = {**STUDY, "cluster": {"profile": "h100-sxm", "memory_GB": 2}}
        out = self.folder / "out"
        text = self.search("--out", out, study=study)
        self.assertIn("No candidate runs", text)
        self.assertFalse((out / "best.json").exists())
        self.assertEqual(json.loads((out / "tune.json").read_text())["ranking"], [])

    def test_bad_input_is_one_line(self):
        study = self.write("study.json", STUDY)

        def refused(space, *says):
            self.refused("tune", study, "--space", self.write("space.json", space), "--quiet", says=["space.json", *says])

        refused({"parallel.tensr": [1, 2]}, "tensr")
        refused({"parallel.tensor": []}, "parallel.tensor", "at least one value")
        refused({"trace.seed": [1, 2]}, "trace.seed")
        refused({}, "at least one key")
        refused([], "expected an object")
        refused({"policies": [{"name": "wlb", "queus": [1, 2]}]}, "queus", "queues")
        refused('{"parallel.tensor": [1,', "space.json")
        self.refused("tune", study, "--gpus", 7, "--space", self.write("space.json", {"parallel.tensor": [2, 4]}), "--quiet", says=["7 GPUs"])
        self.refused("tune", study, "--budget", 0, says=["--budget", "found 0"])
        self.refused("tune", study, "--max-delay", -1, says=["--max-delay"])
        self.refused("tune", study, "--max-delay", "20,1", says=["--max-delay", "a mean of at most the largest", "20.000,1.000"])
        self.refused("tune", study, "--resume", says=["--resume needs --out"])
        self.refused("tune", study, "--out", study, says=["--out", "found a file"])
        self.refused("tune", self.folder / "none.json", says=["none.json"])
        self.refused("tune", study, "--set", "parallel.tensr=2", says=["tensr"])
        self.refused("tune", study, "--format", "xml", says=["xml"])


if __name__ == "__main__":
    unittest.main()

"""report.html as a file: it asks nothing of a network, escapes names, and has the figures of summary.json.

EQUIPOISE names the program; ctest sets it.
"""

import csv
import json
import re
import unittest

from pages import HOSTILE, Pages
from support import STUDY, run


class Report(Pages):
    def test_it_has_the_figures_of_summary_json(self):
        file = self.page(STUDY)
        outline = self.check_file(file)
        summary = json.loads((file.parent / "summary.json").read_text())
        summary.pop("receipt")  # of the file alone
        for policy in summary["policies"]:
            policy.pop("gpu_compute_seconds", None)
            self.assertRegex(outline.text, r"\b%.0f\b" % policy["metrics"]["tokens_per_second_per_gpu"])
            self.assertIn(policy["label"], outline.text)
        self.assertEqual(outline.data["summary"], summary)
        best = max(summary["policies"], key=lambda p: p["metrics"]["tokens_per_second_per_gpu"])
        self.assertEqual(outline.data["winner"], best["label"])
        self.assertIn("Fastest: " + best["label"], outline.text)
        table = self.ok("study", self.folder / "study.json", "--wide")
        for part in re.search(r"limited by (.*?)\.\n", table).group(1).split(", "):
            self.assertIn(part, outline.text)

    def test_what_it_draws_adds_up(self):
        file = self.page(STUDY)
        data = self.check_file(file).data
        lines = (file.parent / "steps.csv").read_text().splitlines()[1:]
        for row, policy in zip(data["rows"], data["summary"]["policies"]):
            own = [line.split(",") for line in lines if line.startswith(policy["label"] + ",")]
            self.assertEqual(row["steps"]["of"], len(own))
            for drawn, line in zip(row["steps"]["rows"], own):
                self.assertAlmostEqual(drawn[2], float(line[4]), delta=1e-6)
                self.assertEqual(drawn[3], int(line[3]))
            full = [step for step in row["steps"]["rows"] if not step[1]]
            mean = sum(step[4] for step in full) / len(full)
            self.assertAlmostEqual(mean, policy["metrics"]["imbalance_degree"], delta=1e-3)
            memory = [sum(stage["parts"].values()) for stage in row["memory"]["stages"]]
            self.assertEqual(len(memory), STUDY["parallel"]["pipeline"])
            self.assertAlmostEqual(max(memory), policy["memory"]["peak_bytes"], delta=16)
            delays = row["tokens_by_delay"]
            self.assertEqual(sum(delays), policy["metrics"]["total_tokens"])
            waited = sum(n * steps for steps, n in enumerate(delays)) / sum(delays)
            self.assertAlmostEqual(waited, policy["metrics"]["token_delay_mean"], places=9)
            self.assertEqual(len(delays) - 1, policy["metrics"]["token_delay_max"])
            for step in row["drawn"]:
                ends = []
                for lane in step["lanes"]:
                    ops = [lane["ops"][i : i + 6] for i in range(0, len(lane["ops"]), 6)]
                    forwards = [op for op in ops if op[1] == 0]
                    self.assertEqual(len(forwards), len(lane["micro_batches"]) * STUDY["parallel"]["pipeline"])
                    ends.append(max(op[4] + op[5] for op in ops))
                self.assertAlmostEqual(max(ends), step["pipeline"], delta=2)
                self.assertAlmostEqual(step["end"] / 1e6, float(own[step["step"]][4]), delta=1e-5)
            relative = row["gpus"]["relative"]
            self.assertEqual(len(relative), 4)  # 2 stages x 2 CP ranks, 2 TP ranks do the same
            self.assertAlmostEqual(sum(relative) / len(relative), 1000, delta=1)
        tokens = sum(one["tokens"] for one in data["lengths"])
        self.assertEqual(tokens, data["summary"]["study"]["tokens"])

    def test_names_cannot_leave_their_place(self):
        plain = self.check_file(self.page(STUDY))
        study = dict(STUDY, name=HOSTILE, policies=[{"name": "plain-4d", "label": HOSTILE}, "wlb"], baseline=HOSTILE)
        hostile = self.check_file(self.page(study))
        self.assertEqual(hostile.data["summary"]["study"]["name"], HOSTILE)
        self.assertEqual(hostile.data["summary"]["policies"][0]["label"], HOSTILE)
        self.assertIn(HOSTILE, hostile.text)
        for tag in ("script", "img", "table", "style"):
            self.assertEqual(hostile.count(tag), plain.count(tag), tag)

    def test_rows_that_do_not_run_say_why(self):
        file = self.page(dict(STUDY, cluster={"memory_GB": 4}))
        outline = self.check_file(file)
        for policy in outline.data["summary"]["policies"]:
            self.assertEqual(policy["status"], "oom")
            self.assertIn(policy["reason"], outline.text)
        self.assertIsNone(outline.data["winner"])
        self.assertIn("No row of this study runs", outline.text)

    def test_a_sweep_has_a_page_over_its_cases(self):
        file = self.page(STUDY, "--sweep", "batch.context_window=8K,16K", "--sweep", "parallel.context=1,2")
        data = self.check_file(file).data
        self.assertEqual(len(data["cases"]), 4)
        for case in data["cases"]:
            own = file.parent / case["folder"]
            summary = json.loads((own / "summary.json").read_text())
            self.check_file(own / "report.html")
            for row, policy in zip(case["rows"], summary["policies"]):
                for key in ("tokens_per_second_per_gpu", "speedup", "speedup_low", "peak_memory_bytes"):
                    self.assertEqual(row[key], policy["metrics"][key])


    def test_a_search_has_a_page(self):
        file = self.tune()
        outline = self.check_file(file)
        found = json.loads((file.parent / "tune.json").read_text())
        self.assertEqual(outline.data["tune"], {key: value for key, value in found.items() if key not in ("tried", "layouts", "rows")})
        drawn = outline.data["search"]
        for place, (one, trial) in enumerate(zip(found["tried"], drawn["trials"])):
            number, layout, row, outcome, seconds, delay, peak, reason = trial
            self.assertEqual((number, drawn["outcomes"][outcome], seconds), (place, one["outcome"], one["seconds_per_token"] or 0))
            self.assertEqual((delay, peak), (one.get("token_delay_mean"), one.get("peak_memory_bytes", 0)))
            self.assertEqual(drawn["rows"][row][0], found["rows"][one["row"]]["label"])
            degrees = found["layouts"][one["layout"]]
            self.assertEqual(drawn["layouts"][layout][:4], [degrees["parallel.tensor"], degrees["parallel.context"], STUDY["parallel"]["pipeline"], degrees["parallel.data"]])
            self.assertEqual(reason is None, "reason" not in one)
        self.assertEqual(len(drawn["trials"]), len(found["tried"]))
        for row in found["ranking"]:  # what the full run says of those is what the search said
            one = next(t for t in found["tried"] if found["rows"][t["row"]]["label"] == row["label"] and found["layouts"][t["layout"]] == row["layout"])
            self.assertAlmostEqual(one["token_delay_mean"], row["metrics"]["token_delay_mean"], places=9)
            self.assertEqual(one["peak_memory_bytes"], row["metrics"]["peak_memory_bytes"])
        winner = found["ranking"][0]
        self.assertRegex(outline.text, r"%s on .* is the fastest of %d candidates: %.0f tokens/s/GPU" % (
            winner["label"], found["counts"]["candidates"], winner["metrics"]["tokens_per_second_per_gpu"]))

    def test_a_validation_has_a_page(self):
        file = self.validation()
        outline = self.check_file(file)
        found = json.loads((file.parent / "validation.json").read_text())
        self.assertEqual(outline.data["validation"], found)
        self.assertIn("All limits hold. A mean step is simulated within 2.0 % of what was measured.", outline.text)
        for policy in found["policies"]:
            self.assertRegex(outline.text, r"%s: -2.0 %% by time; single steps 2.0 %% on the mean, the farthest -2.0 %%" % policy["label"])


    def test_a_saved_result_is_shown_again(self):
        file = self.page(STUDY)
        again = self.folder / "again.html"
        table = self.ok("report", file.parent, "--out", again, "--wide")
        self.assertEqual(again.read_text(), file.read_text())
        summary = json.loads((file.parent / "summary.json").read_text())
        self.assertEqual(json.loads(self.ok("report", file.parent / "summary.json", "--format", "json")), summary)
        self.assertEqual(summary["study"]["settings"], STUDY)
        # Line by line that of `study`, but for what was measured on the way: pack ms.
        own = [line.rsplit(None, 1)[0] for line in self.ok("study", self.folder / "study.json", "--wide").splitlines()[1:4]]
        self.assertEqual([line.rsplit(None, 1)[0] for line in table.splitlines()[1:4]], own)
        self.assertTrue(own[0].endswith("delay (steady, max)  mem. free GiB     runs in  pack"), own)
        for policy, line in zip(summary["policies"], table.splitlines()[2:]):
            self.assertEqual(line.split()[-1], f"{policy['measured']['pack_ms']:.2f}")
        rows = list(csv.DictReader(self.ok("report", file.parent, "--format", "csv").splitlines()))
        self.assertEqual(float(rows[1]["mfu"]), summary["policies"][1]["metrics"]["mfu"])
        file.unlink()
        self.refused("report", file.parent, "--out", again, says=["report.html", "`study --out` writes them"])
        self.refused("report", self.folder / "none", says=["none: no such file", "`study --out` wrote"])
        self.refused("report", file.parent, "--out", "page.txt", says=["page.txt", ".html"])

    def test_a_saved_result_says_what_a_study_says_of_its_rows(self):
        """Why rows did not run, which notes may change a decision, and how many more there are."""
        rows = ["plain-4d", {"name": "hbp", "groups": "4K:1,16K:2"}, {"name": "skrull", "bucket_size": 1024}]
        study = self.write("study.json", dict(STUDY, batch=dict(STUDY["batch"], steps=4), policies=rows))
        for memory, first in ((80, "plain-4d, "), (1, "No row of this study runs. ")):
            out = self.folder / f"out {memory}"
            printed = self.ok("study", study, "--set", f"cluster.memory_GB={memory}", "--out", out, "--quiet")
            again = self.ok("report", out)
            self.assertIn(f"\nFastest   {first}", again)
            warnings = [re.findall(r"\nWarning(.*?)(?=\n\S)", text, re.DOTALL) for text in (printed, again)]
            self.assertEqual(*warnings)
            self.assertGreater(len(warnings[0]), 0)
            more = re.search(r"--notes has (\d+) more notes?", " ".join(printed.split())).group(1)
            self.assertIn(f"\nReport    --wide prints all columns; --wide has {more} more note", again)
            wide = self.ok("report", out, "--wide").splitlines()
            self.assertEqual(len([line for line in wide if line.startswith(("warning: ", "note: "))]), int(more) + len(warnings[0]))
        compared = self.ok("report", self.folder / "out 80", self.folder / "out 1", "--wide")
        self.assertNotIn("derived.", compared)

    def test_documents_are_compared_and_not_their_names(self):
        study = dict(STUDY, trace={"file": "lengths.txt", "repeat": True})
        folders = []
        for folder, length in (("one", 1000), ("two", 1000), ("other", 2000)):
            folders.append(self.folder / folder)
            folders[-1].mkdir()
            (folders[-1] / "lengths.txt").write_text(f"{length}\n8000\n")
            (folders[-1] / "study.json").write_text(json.dumps(study))
            self.ok("study", folders[-1] / "study.json", "--out", folders[-1] / "out", "--quiet")
        same = [json.loads(self.ok("report", folders[0] / "out", folder / "out", "--format", "json"))["same_documents"] for folder in folders]
        self.assertEqual(same, [True, True, False])

    def test_two_results_side_by_side(self):
        before, after = self.two()
        page = self.folder / "changes.html"
        found = json.loads(self.ok("report", before, after, "--format", "json", "--out", page))
        summaries = [json.loads((folder / "summary.json").read_text()) for folder in (before, after)]
        self.assertTrue(found["same_documents"])
        self.assertEqual([row["label"] for row in found["rows"]], ["plain-4d", "wlb", HOSTILE])
        for row, one, other in zip(found["rows"], *(summary["policies"] for summary in summaries)):
            speed = [p["metrics"]["total_tokens"] / p["metrics"]["total_seconds"] for p in (one, other)]
            self.assertAlmostEqual(row["ratio"], speed[1] / speed[0], places=9)
            self.assertLessEqual(row["low"], row["ratio"])
            self.assertGreaterEqual(row["high"], row["ratio"])
            error = one["provenance"]["expected_error"]["speed_up"]
            for end in ("low", "high"):
                self.assertAlmostEqual(row["model_" + end], row["ratio"] * error[end], places=9)
            tied = row["low"] <= 1 <= row["high"] or row["model_low"] <= 1 <= row["model_high"]
            self.assertEqual(row["verdict"], "tied" if tied else "significantly faster" if row["ratio"] > 1 else "significantly slower")
        self.assertEqual(found["rows"][2]["verdict"], "only in the first")
        differ = {d["key"]: (d["first"], d["second"]) for d in found["differences"]}
        self.assertEqual(differ["cluster.network.nic_GBps"], ("-", "200"))
        self.assertNotIn("parallel.tensor", differ)
        outline = self.check_file(page)
        self.assertEqual(outline.data["comparison"], found)
        self.assertIn("only in the first: " + HOSTILE, outline.text)
        text = self.ok("report", before, after, "--wide")
        self.assertIn("cluster.network.nic_GBps", text)
        small = self.write("small.json", dict(STUDY, cluster={"memory_GB": 1}))
        self.ok("study", small, "--out", self.folder / "none runs", "--quiet")
        neither = self.ok("report", self.folder / "none runs", self.folder / "none runs", "--wide")
        for both in ((before,), (before, after)):
            self.assertLessEqual(max(map(len, self.ok("report", *both).splitlines())), 110)
        self.assertRegex(neither, r"(?m)^plain-4d +- +- +- ")
        self.assertNotIn("- -> -", neither)
        self.assertEqual(re.split("  +", text.splitlines()[1])[1:],
                         ["step s", "tokens/s/GPU", "speed-up", "delay", "mem. free GiB", "pack ms", "second/first (95 %)", "prediction (90 %)", "verdict"])
        free = [(p["memory"]["capacity_bytes"] - p["memory"]["peak_bytes"]) / 2**30 for p in (summaries[0]["policies"][1], summaries[1]["policies"][1])]
        self.assertIn("%.1f -> %.1f" % tuple(free), text.splitlines()[3])
        self.assertIn("Both runs trained the same documents", text)
        rows = list(csv.DictReader(self.ok("report", before, after, "--format", "csv").splitlines()))
        self.assertEqual(float(rows[0]["ratio"]), found["rows"][0]["ratio"])

    def test_the_error_of_the_prediction_ties_two_results(self):
        """2 % by a faster network is more than the sampling error, and less than what ratios are off by."""
        def with_network(nic_GBps, **cluster):
            return dict(STUDY, batch=dict(STUDY["batch"], steps=8), cluster={"gpus_per_node": 2, "network": {"nic_GBps": nic_GBps}, **cluster})
        one = self.page(with_network(50)).parent.rename(self.folder / "one")
        two = self.page(with_network(53)).parent
        row = json.loads(self.ok("report", one, two, "--format", "json"))["rows"][0]
        self.assertGreater(row["low"], 1)
        self.assertEqual(row["verdict"], "tied")
        interval = "%.3f-%.3f" % (row["model_low"], row["model_high"])
        self.assertRegex(self.ok("report", one, two), rf"\nplain-4d .* {re.escape(interval)} +tied\n")
        self.assertIn("Two rows are tied if either interval contains 1: the one of sampling or that of the prediction.", self.ok("report", one, two))
        # A saved result says what the study said.
        said = self.ok("study", self.folder / "study.json", "--wide")
        self.assertIn(re.search(r"Fastest: .*", self.ok("report", two, "--wide")).group(), said)
        # Steps of another kind of GPU have other errors, so that none is known of the ratio.
        three = self.page(with_network(50, profile="b200-sxm")).parent
        row = json.loads(self.ok("report", one, three, "--format", "json"))["rows"][0]
        self.assertEqual((row["model_low"], row["verdict"]), (None, "significantly faster"))
        self.assertIn("The error of the prediction of these ratios is not known", self.ok("report", one, three))

    def test_unlike_numbers_of_gpus_are_compared_per_gpu(self):
        study = dict(STUDY, batch=dict(STUDY["batch"], steps=8))
        one = self.page(study).parent.rename(self.folder / "one")
        two = self.page(dict(study, parallel=dict(study["parallel"], data=2))).parent
        found = json.loads(self.ok("report", one, two, "--format", "json"))
        for row in found["rows"]:
            self.assertEqual((row["first"]["gpus"], row["second"]["gpus"]), (8, 16))
            rates = [row[side]["tokens_per_second_per_gpu"] for side in ("first", "second")]
            self.assertAlmostEqual(row["ratio"], rates[1] / rates[0], delta=1e-3)
            self.assertLess(row["ratio"], 1)
            self.assertEqual(row["verdict"], "significantly slower per GPU")
        self.assertIn("The first used 8 GPUs, the second 16: ratios are per GPU.", self.ok("report", one, two))

    def test_a_result_compared_with_itself_and_with_what_does_not_run(self):
        file = self.page(STUDY)
        text = self.ok("report", file.parent, file.parent)
        self.assertIn("the same: plain-4d, wlb.", text)
        self.assertIn("1.000x (1.000-1.000)" if STUDY["batch"]["steps"] >= 4 else "1.000x", text)
        self.assertIn("Their settings do not differ.", text)
        by_op = self.folder / "by_op"
        self.ok("study", self.write("study.json", STUDY), "--fidelity", "op", "--out", by_op, "--quiet")
        self.assertRegex(self.ok("report", file.parent, by_op), r"option\.fidelity +stage +op")
        forged = json.loads((by_op / "summary.json").read_text())
        for receipt in ({}, {"options": 3, "inputs": {"profile": 5}}, {"inputs": "x"}, 7):
            (by_op / "summary.json").write_text(json.dumps(dict(forged, receipt=receipt)))
            self.ok("report", file.parent, by_op)
        before = file.parent.rename(self.folder / "before")
        after = self.page(dict(STUDY, cluster={"memory_GB": 4}))
        self.assertIn("ok -> oom: plain-4d, wlb.", self.ok("report", before, after.parent))
        other = self.folder / "other"
        self.ok("study", self.write("study.json", dict(STUDY, trace={"distribution": "wlb-128k", "seed": 4})), "--out", other, "--quiet")
        self.assertIn("(no interval)", self.ok("report", before, other))
        study = dict(STUDY, policies=["plain-4d", {"name": "wlb", "label": "wlb, two"}])
        one = self.page(study).parent.rename(self.folder / "one")
        two = self.page(dict(study, cluster={"network": {"nic_GBps": 25}, "gpus_per_node": 2})).parent
        self.assertRegex(self.ok("report", one, two), r'\n(?:significantly )?slower.*: plain-4d 0\.\d+x, "wlb, two" 0\.\d+x\.\n')


if __name__ == "__main__":
    unittest.main()

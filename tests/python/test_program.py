#!/usr/bin/env python3
"""What the module asks the program for: tune, check, predict, fit, verify; a sampler from a study's row."""

import json
import os
import pickle
import tempfile
import unittest
from pathlib import Path

import equipoise
from equipoise import program as command
from support import ROOT, STUDY, program, without_measured

SPACE = {"parallel.recompute": ["none", "full"], "policies": ["plain-4d", {"name": "wlb", "queues": [1, 2]}]}


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.study = {**STUDY, "batch": {**STUDY["batch"], "steps": 3}}

    def test_init_makes_a_study_of_a_job(self):
        job = equipoise.init("qwen2.5-0.5b", 8, window="8K", policies=["plain-4d", "fixed-4d"])
        self.assertEqual(job["policies"], ["plain-4d", "fixed-4d"])
        result = equipoise.study(job, set={"batch.steps": 2})
        self.assertEqual([row["status"] for row in result.summary["policies"]], ["ok", "ok"])
        self.assertEqual(result.summary["study"]["gpus"], 8)
        with self.assertRaisesRegex(ValueError, "does not fit on 8 GPUs"):
            equipoise.init("llama3.1-70b", 8)
        with self.assertRaisesRegex(ValueError, "policies: expected a list of names, found"):
            equipoise.init("qwen2.5-0.5b", 8, policies="plain-4d")

    def test_what_is_wrong_with_a_dict_names_no_file(self):
        wrong = {**self.study, "batch": {**self.study["batch"], "steps": -3}}
        for call in (
            lambda: equipoise.study(wrong),
            lambda: equipoise.study(wrong, directory=self.folder),
            lambda: equipoise.tune(wrong, SPACE),
            lambda: equipoise.check(wrong, self.folder / "expect.json", update=True),
            lambda: equipoise.validate(wrong, directory=self.folder),
        ):
            with self.assertRaisesRegex(ValueError, r"^study: batch\.steps: "):
                call()
        with self.assertRaisesRegex(ValueError, "^space: parallel.recompute: "):
            equipoise.tune(self.study, {"parallel.recompute": 7})

    def test_tune_is_the_programs(self):
        found = equipoise.tune(self.study, SPACE, out=self.folder / "out")
        file = self.folder / "study.json"
        file.write_text(json.dumps(self.study))
        (self.folder / "space.json").write_text(json.dumps(SPACE))
        theirs = program("tune", file, "--space", self.folder / "space.json", "--format", "json", "--quiet")
        self.assertEqual([without_measured(row) for row in found.ranking], [without_measured(row) for row in theirs["ranking"]])
        self.assertEqual(found.frame().index[0], 1)
        self.assertTrue(str(found).startswith(f"{len(found.ranking)} rows, the fastest first; simulated\n"))
        again = equipoise.study(found.best)
        self.assertEqual(again.policies[-1]["metrics"]["total_seconds"], found.ranking[0]["metrics"]["total_seconds"])
        self.assertTrue((self.folder / "out/tune.json").exists())
        more = equipoise.tune(self.study, SPACE, out=self.folder / "out", budget=500, minutes=5, framework="megatron")
        self.assertEqual(len(more.ranking), len(found.ranking))
        with self.assertRaisesRegex(ValueError, "framework: unknown name"):
            equipoise.tune(self.study, SPACE, framework="torch")
        with self.assertRaisesRegex(ValueError, 'unknown option "such" .`equipoise validate --help` lists'):
            equipoise.validate(self.study, such=1)
        with self.assertRaisesRegex(ValueError, "no-such-key"):
            equipoise.tune(self.study, {"no-such-key": [1]})
        self.assertEqual([f for f in os.listdir() if f.startswith(".study-")], [])

    def test_check(self):
        expect = self.folder / "expect.json"
        self.assertTrue(equipoise.check(self.study, expect, update=True))
        self.assertTrue(equipoise.check(self.study, expect))
        moved = equipoise.check(self.study, expect, set={"batch.context_window": "16K"}, metric=["step_seconds"], tolerance=["1%"])
        self.assertFalse(moved)
        self.assertTrue(moved.frame()["moved"].any())
        saved = json.loads(expect.read_text())
        for row in saved["policies"]:
            row["step_seconds"] *= 1.1
        expect.write_text(json.dumps(saved))
        self.assertFalse(equipoise.check(self.study, expect, metric=["step_seconds"]))
        better = equipoise.check(self.study, expect, metric=["step_seconds"], only_worse=True)
        self.assertTrue(better)
        self.assertTrue(better.frame()["gain"].notna().all())

    def test_functions_are_checked_and_searched_as_a_studys_rows_are(self):
        """The plan of plain-4d, made by a function, is plain-4d; a function that drops a token is a refused row."""
        def plain(lengths, options):
            plans = equipoise.study(study, set={"policies": ["plain"], "parallel.data": options["lanes"], "parallel.context": options["context"]}).plans()
            return [[[m["slices"] for m in lane["micro_batches"]] for lane in step["lanes"]] for step in plans["plans"][0]["steps"]]

        def fails(lengths, options):
            raise RuntimeError("no plan today")

        study, expect = self.study, self.folder / "expect.json"
        self.assertTrue(equipoise.check(study, expect, policies={"mine": plain}, update=True))
        rows = {row["label"]: row for row in json.loads(expect.read_text())["policies"]}
        self.assertEqual(rows["mine"]["speedup"], 1)
        file = self.folder / "study.json"
        file.write_text(json.dumps(study))
        self.assertTrue(equipoise.check(file, expect, policies={"mine": plain}))
        self.assertTrue(equipoise.check({**study, "policies": [*study["policies"], {"policy": plain, "label": "mine"}]}, expect))
        self.assertFalse(equipoise.check(study, expect, policies={"mine": lambda lengths, options: plain(lengths, options)[1:]}))
        self.assertEqual([f for f in os.listdir(self.folder) if f.startswith(".study-")], [])
        with self.assertRaisesRegex(ValueError, "^policies: mine: RuntimeError: no plan today, at .*test_program.py"):
            equipoise.check(study, expect, policies={"mine": fails})
        log = self.folder / "steps.csv"
        seconds = equipoise.study(study)["plain"]["metrics"]["step_seconds"]
        log.write_text("policy,step,step_seconds\n" + "".join(f"mine,{step},{seconds}\n" for step in range(3)))
        validated = equipoise.validate(study, policies={"mine": plain}, measured=log)
        self.assertEqual([row["label"] for row in validated["policies"]], ["mine"])

        found = equipoise.tune(study, {"parallel.recompute": ["none", "full"], "policies": ["plain-4d"]}, policies={"mine": plain})
        speeds = {(row["label"], row["layout"]["parallel.recompute"]): row["metrics"]["tokens_per_second_per_gpu"] for row in found.ranking}
        for recompute in ("none", "full"):
            self.assertAlmostEqual(speeds["mine", recompute], speeds["plain-4d", recompute], 6)
        self.assertEqual([row["rank"] for row in found.ranking], [1, 2, 3, 4])
        self.assertEqual(len(found.page["names"]), 4)
        best = equipoise.tune(study, {"parallel.recompute": ["none"], "policies": ["plain-4d"]}, policies={"mine": equipoise.policy(plain, shard="adaptive")})
        self.assertEqual([row["label"] for row in best.ranking], ["mine", "plain-4d"])  # sharding alone is what differs
        self.assertEqual(equipoise.study(best.best)["mine"]["metrics"]["total_seconds"], best.ranking[0]["metrics"]["total_seconds"])
        # One that changes the order of the data comes after those that keep it, whatever its speed, as in the search.
        anew = equipoise.policy(lambda lengths, options: plain(lengths, options)[::-1], shard="adaptive")
        found = equipoise.tune(study, {"parallel.recompute": ["none"], "policies": ["plain-4d"]}, policies={"anew": anew})
        self.assertEqual([row["label"] for row in found.ranking], ["plain-4d", "anew"])
        self.assertGreater(*(row["metrics"]["tokens_per_second_per_gpu"] for row in found.ranking[::-1]))

        def delays(lengths, options):
            steps = plain(lengths, options)
            steps[1][0][-1].append(steps[0][0][-1].pop())
            return steps

        # So does one that delays tokens by more than the study allows.
        late = equipoise.policy(delays, shard="adaptive")
        for most, first in ((0, "plain-4d"), (1, "late")):
            found = equipoise.tune({**study, "max_delay": most}, {"parallel.recompute": ["none"], "policies": ["plain-4d"]}, policies={"late": late})
            self.assertEqual(found.ranking[0]["label"], first)
        # One that has no delay keeps no bound.
        with self.assertWarnsRegex(UserWarning, "^anew is not ranked on the layout of plain-4d: it does not keep max_delay"):
            found = equipoise.tune(study, {"parallel.recompute": ["none"], "policies": ["plain-4d"]}, policies={"anew": anew}, max_delay=50)
        self.assertEqual([row["label"] for row in found.ranking], ["plain-4d"])
        with self.assertWarnsRegex(UserWarning, "^mine is not ranked on the layout of plain-4d: "):
            found = equipoise.tune(study, {"parallel.recompute": ["none"], "policies": ["plain-4d"]}, policies={"mine": fails})
        self.assertEqual([row["label"] for row in found.ranking], ["plain-4d"])
        with self.assertRaisesRegex(ValueError, "^policies: expected a built-in policy among them, with which layouts are searched, found "):
            equipoise.tune({**study, "policies": [plain]}, SPACE)

    def test_explain_lists_a_policys_options(self):
        said = equipoise.explain("wlb")
        self.assertEqual(repr(said), str(said))
        for part in ("source: WLB-LLM", "queues (0 .. 1000; default 0): ", "oversize (error, drop, truncate, split; default error): "):
            self.assertIn(part, said)
        self.assertIn("packing policy", equipoise.explain())
        for wrong, text in (("wbl", 'unknown word "wbl"'), (3, "word: expected a name, found 3")):
            with self.assertRaisesRegex(ValueError, text):
                equipoise.explain(wrong)

    def test_predict_and_verify(self):
        rows = self.folder / "gemm.csv"
        rows.write_text("gpu,op,M,N,K,dtype,time_ms\nh100,gemm,4096,4096,4096,bf16,0.25\n")
        frame = equipoise.predict("h100-sxm", rows)
        self.assertGreater(frame["predicted_ms"].iloc[0], 0)
        self.assertAlmostEqual(frame["error"].iloc[0], frame["predicted_ms"].iloc[0] / 0.25 - 1, 3)
        with self.assertRaisesRegex(ValueError, "gemm.csv"):
            rows.write_text("gpu,op,M,N,K,dtype,time_ms\nh100,gemm,-1,4096,4096,bf16,0.25\n")
            equipoise.predict("h100-sxm", rows)
        equipoise.study(self.study, out=self.folder / "saved")
        summary = self.folder / "saved/summary.json"
        self.assertTrue(equipoise.verify(summary)["holds"].all())
        summary.write_text(json.dumps({key: value for key, value in json.loads(summary.read_text()).items() if key != "receipt"}))
        with self.assertRaisesRegex(ValueError, "receipt: expected one"):
            equipoise.verify(summary)

    def test_a_sampler_packs_what_the_row_packed(self):
        lengths = equipoise.draw_trace("wlb-128k", 192, seed=3) // 4 + 1
        trace = self.folder / "lengths.txt"
        trace.write_text("\n".join(map(str, lengths)))
        study = {
            **self.study,
            "trace": {"file": str(trace)},
            "framework": "megatron",
            "parallel": {**self.study["parallel"], "zero": 1, "recompute": "auto"},
            "batch": {"context_window": 32768, "documents_per_step": 32, "steps": 6},
            "policies": [
                {"name": "lpt", "micro_batches": 12},
                {"name": "wlb", "micro_batches": 12},
                {"name": "equipoise", "moves": 500, "own_degrees": False, "shard": "adaptive"},
                {"name": "karmarkar-karp", "micro_batches": 12, "schedule": "auto"},
            ],
        }
        study.pop("baseline", None)
        result = equipoise.study(study)
        for label, plan in zip(("lpt", "wlb", "equipoise", "karmarkar-karp"), result.plans()["plans"]):
            with self.subTest(label):
                self.assertEqual(result[label]["status"], "ok")
                for lane in (0, 1):
                    sampler = equipoise.BatchSampler.from_study(result, label, lengths, lane=lane)
                    ours = [[m for m in step] for step in sampler.steps()]
                    theirs = [
                        [[piece[0] for piece in m["slices"]] for m in step["lanes"][lane]["micro_batches"] if m["slices"]]
                        for step in plan["steps"]
                    ]
                    self.assertEqual(ours, theirs)
        free = equipoise.study({**study, "policies": ["lpt", {"name": "equipoise", "moves": 500}]})
        with self.assertWarnsRegex(UserWarning, "row equipoise: .* packs with own_degrees false; the row may have chosen degrees"):
            equipoise.BatchSampler.from_study(free, "equipoise", lengths)
        with self.assertRaisesRegex(ValueError, 'row: unknown row "no such row" .known: "'):
            equipoise.BatchSampler.from_study(result, "no such row", lengths)
        for wrong in (None, 3, [result.summary]):
            with self.assertRaisesRegex(ValueError, r"result: expected what equipoise.study returns, or its summary.json .*, found "):
                equipoise.BatchSampler.from_study(wrong, "wlb", lengths)
        for job, text in (
            (3, "pack: job: expected a study, found 3"),
            ({"batch": 3}, "pack: job: batch: expected an object, found 3"),
            ({**study, "policies": []}, "policies"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                equipoise.pack(lengths, "wlb", job=job)
        with self.assertRaisesRegex(ValueError, "job: .*a study has its own"):
            equipoise.BatchSampler.from_study(result, "wlb", lengths, model="llama2-7b")

    def test_a_row_that_a_sampler_cannot_run_is_refused_where_it_is_made(self):
        lengths = equipoise.draw_trace("wlb-128k", 400, seed=3)
        study = {**self.study, "policies": ["plain", "hbp", "chunkflow"]}
        result = equipoise.study(study, policies={"late": lambda lengths, options: None if len(lengths) == 400 else [
            [[batch[lane::2]] for lane in (0, 1)] for batch in options["batches"]]})
        self.assertEqual([row["status"] for row in result.policies], ["ok"] * 4)
        degrees = "row hbp: policy: hbp gives step .* lanes of CP degree .*: expected the 2 of degree 2 of this sampler, or equipoise.pack"
        for row, slices, text in (
            ("hbp", True, degrees),
            ("chunkflow", False, r"row chunkflow: BatchSampler: the plan cuts document \d+ of .*: expected whole documents, .* or slices=True"),
            ("late", True, "row late: policy late: steps: expected a list of steps.*found None, returned by"),
        ):
            with self.subTest(row), self.assertRaisesRegex(ValueError, text):
                equipoise.BatchSampler.from_study(result, row, lengths, slices=slices)
        cut = equipoise.BatchSampler.from_study(result, "chunkflow", lengths, slices=True)
        self.assertGreater(len(cut), 0)

    def test_a_sampler_packs_what_a_row_by_a_preset_packed(self):
        """A preset's options are the row's, where the study names it alone or in an entry."""
        steps, tokens = 6, 4 * 8192
        lengths, left = [], steps * tokens
        for length in equipoise.draw_trace("wlb-128k", 2000, seed=4) // 8 + 1:
            lengths.append(int(min(length, left)))
            left -= lengths[-1]
            if left == 0:
                break
        trace = self.folder / "cut.txt"
        trace.write_text("\n".join(map(str, lengths)))
        batch = {"context_window": 8192, "sequences_per_step": 4, "steps": steps}
        policies = ["plain-4d", "fixed-4d", "wlb-llm", {"name": "wlb-llm", "label": "again"}, {"name": "wlb-llm", "queues": 0, "label": "none"}]
        study = {**self.study, "trace": {"file": str(trace)}, "batch": batch, "policies": policies}
        study.pop("baseline", None)
        result = equipoise.study(study)
        plans = {}
        for plan in result.plans()["plans"]:
            for lane in (0, 1):
                with self.subTest(plan["name"], lane=lane):
                    sampler = equipoise.BatchSampler.from_study(result, plan["name"], lengths, lane=lane, slices=True)
                    plans[plan["name"], lane] = [[[tuple(piece) for piece in m] for m in step] for step in sampler.steps()]
                    theirs = [[[tuple(p) for p in m["slices"]] for m in step["lanes"][lane]["micro_batches"] if m["slices"]] for step in plan["steps"]]
                    self.assertEqual(plans[plan["name"], lane], theirs)
        self.assertEqual(plans["wlb-llm", 0], plans["again", 0])
        self.assertNotEqual(plans["wlb-llm", 0], plans["none", 0])

    def test_a_saved_summary_becomes_a_sampler(self):
        folder = self.folder / "folder"
        folder.mkdir()
        (folder / "mine.json").write_text((ROOT / "profiler/profiles/h100-sxm.json").read_text())
        file = folder / "study.json"
        file.write_text(json.dumps({**self.study, "cluster": {"profile": "mine.json"}}))
        options = {"policies.2.queues": 2, "batch.context_window": "16K"}
        command.run("study", file, "--set", "policies.2.queues=2", "--set", "batch.context_window=16K", "--out", self.folder / "out", "--quiet")
        path = self.folder / "out/summary.json"
        summary = json.loads(path.read_text())
        result = equipoise.study(file, set=options)
        lengths = equipoise.draw_trace("wlb-128k", 200, seed=5)
        for row in ("plain", "fixed-greedy", "wlb"):
            ours = list(equipoise.BatchSampler.from_study(result, row, lengths, lane=1, slices=True))
            for saved in (path, str(path), summary):
                theirs = equipoise.BatchSampler.from_study(saved, row, lengths, lane=1, slices=True)
                self.assertEqual(list(theirs), ours, row)
        other = equipoise.study(file)  # what was set makes another plan, so the summary has it
        self.assertNotEqual(list(equipoise.BatchSampler.from_study(other, "wlb", lengths, lane=1, slices=True)), ours)
        without = {**summary, "study": {key: value for key, value in summary["study"].items() if key != "settings"}}
        for wrong, text in (
            (file, "result: schema: expected equipoise.summary/1, found none; .* equipoise.study.PATH OF THE STUDY"),
            (without, "result: study.settings: expected the study as it was read, .*; pass what equipoise.study.PATH"),
            (self.folder / "none.json", "none.json: cannot be read"),
        ):
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                equipoise.BatchSampler.from_study(wrong, "wlb", lengths)
        with self.assertRaisesRegex(ValueError, 'row: unknown row "wbl", did you mean "wlb"'):
            equipoise.BatchSampler.from_study(path, "wbl", lengths)
        equipoise.study(file, policies={"mine": lambda lengths, options: [[[b[::2]], [b[1::2]]] for b in options["batches"]]}, out=self.folder / "own")
        with self.assertRaisesRegex(ValueError, "row: expected one with a policy, found mine, .* functions stay in the process of their study"):
            equipoise.BatchSampler.from_study(self.folder / "own/summary.json", "mine", lengths)

    def test_a_study_looks_at_its_own_result(self):
        def dealt(lengths, options):
            return [[batch[lane :: options["lanes"]] and [batch[lane :: options["lanes"]]] for lane in range(options["lanes"])] for batch in options["batches"]]

        rows = {"mine": dealt, "none": lambda lengths, options: None}
        result = equipoise.study(self.study, policies=rows, verify=True, ignore_memory=True, out=self.folder / "out")
        checks = result.checks()
        self.assertTrue((checks["holds"] == True).all(), checks)  # noqa: E712
        for label in ("plain", "fixed-greedy", "wlb", "mine"):  # what the program checks again
            self.assertEqual([what for what in checks["what"] if what.startswith(f"{label}: ")], [f"{label}: {what}" for what in (
                "plan, by the validator", "times, by the engine of the other fidelity", "schedule, op by op",
                "timeline, by the longest path of a task graph", "memory, counted again", "table, by the sums of its steps")])
        saved = json.loads((self.folder / "out/summary.json").read_text())
        self.assertEqual(saved["receipt"]["checks"], json.loads(checks.to_json(orient="records")))
        self.assertTrue(equipoise.verify(self.folder / "out/summary.json")["holds"].dropna().all())
        self.assertEqual(len(equipoise.study(self.study).checks()), 0)
        with self.assertRaisesRegex(ValueError, "verify: expected True or False, found 1"):
            equipoise.study(self.study, verify=1)
        wrong = pickle.loads(pickle.dumps(equipoise.VerificationError("wlb: times: step 3", result)))
        self.assertEqual((str(wrong), wrong.result["wlb"]), ("wlb: times: step 3", result["wlb"]))

    def test_the_command_comes_with_the_module(self):
        self.assertEqual(json.loads(command.run("list", "models", "--format", "json")), program("list", "models", "--format", "json"))
        self.assertIn("h100-sxm", command.run("profiles"))
        self.assertTrue(os.access(command.PATH, os.X_OK))


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/env python3
"""Policies of one's own: as good as the built-in ones where they do the same, refused where they are
wrong."""

import copy
import json
import tempfile
import unittest
import warnings
from pathlib import Path

import numpy as np

import equipoise
from support import STUDY, without_measured


def as_they_come(lengths, options):
    """What `plain` does: window i of a batch to lane i mod lanes. Windows are filled again from the
    arrivals."""
    steps = []
    for batch in options["batches"]:
        windows, room = [[]], options["context_window"]
        for document, begin, end in batch:
            if room == 0:
                windows.append([])
                room = options["context_window"]
            windows[-1].append((document, begin, end))
            room -= end - begin
        steps.append([windows[lane :: options["lanes"]] for lane in range(options["lanes"])])
    return steps


def whole_documents(lengths, options):
    """Steps of whole documents in order, 8 micro-batches each: documents that the loader cut are joined
    again."""
    count = options["micro_batches"]
    documents = [(i, 0, int(n)) for i, n in enumerate(lengths)]
    share = -(-len(documents) // options["steps"])
    steps = []
    for s in range(options["steps"]):
        mine = documents[s * share : (s + 1) * share]
        micro_batches = [mine[m::count] for m in range(count)]
        steps.append([micro_batches[lane :: options["lanes"]] for lane in range(options["lanes"])])
    return steps


def drops_one(lengths, options):
    steps = as_they_come(lengths, options)
    micro_batch, victim = victim_of(steps, lengths)
    micro_batch.remove(victim)
    return steps


def victim_of(steps, lengths):
    """The first document that is whole and not alone in its micro-batch, and that micro-batch."""
    for lane in steps[0]:
        for micro_batch in lane:
            for document, begin, end in micro_batch:
                if len(micro_batch) > 1 and (begin, end) == (0, lengths[document]):
                    return micro_batch, (document, begin, end)
    raise AssertionError("the first step has no such document")


def one_step_late(lengths, options):
    steps = as_they_come(lengths, options)
    late = steps[0][0][0].pop(0)
    steps[1][0][0].append(late)
    return steps


class OwnPolicy(unittest.TestCase):
    def test_the_same_plan_is_the_same_row(self):
        result = equipoise.study(STUDY, policies={"mine": as_they_come})
        plain, mine = result["plain"], result["mine"]
        self.assertEqual(mine["status"], "ok", mine["reason"])
        self.assertEqual(mine["metrics"], plain["metrics"])
        self.assertEqual(without_measured(mine["memory"]), without_measured(plain["memory"]))
        self.assertEqual(mine["provenance"]["plan"], {"file": "policy mine", "policy": "mine"})

    def test_in_a_dict_it_stands_among_the_policies(self):
        seen = {}

        def f(lengths, options):
            seen.update(options, lengths=lengths)
            return as_they_come(lengths, options)

        study = copy.deepcopy(STUDY)
        study["policies"] = [
            f,
            {"policy": f, "label": "adaptive", "shard": "adaptive", "options": {"keep": 3}},
            {"name": "plain", "shard": "adaptive"},
        ]
        result = equipoise.study(study)
        self.assertEqual([row["label"] for row in result.policies], ["f", "adaptive", "plain"])
        self.assertEqual(
            result["adaptive"]["metrics"]["step_seconds"], result["plain"]["metrics"]["step_seconds"]
        )
        self.assertEqual(seen["keep"], 3)
        self.assertEqual((seen["lanes"], seen["context"], seen["micro_batches"], seen["steps"]), (2, 2, 8, 6))
        self.assertEqual(seen["lengths"].dtype, np.int64)
        # The set is the first 6 batches of 8 windows of 32K tokens.
        self.assertEqual(int(seen["lengths"].sum()), 6 * 8 * 32768)
        self.assertEqual(
            sum(end - begin for batch in seen["batches"] for _, begin, end in batch), 6 * 8 * 32768
        )

    def test_micro_batches_of_a_function_are_what_it_is_told(self):
        told = []

        def f(lengths, options):
            told.append(options["micro_batches"])
            return whole_documents(lengths, options)

        study = dict(STUDY, policies=[{"policy": f, "micro_batches": 16, "label": "sixteen"}, f])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = equipoise.study(study)
        self.assertEqual(told, [16, 8])
        counts = [{len(step["lanes"][0]["micro_batches"]) for step in plan["steps"] if not step["tail"]} for plan in result.plans()["plans"]]
        self.assertEqual(counts, [{8}, {4}])
        self.assertFalse([note for note in result.notes if "micro_batches" in note])
        equipoise.pack(equipoise.draw_trace("wlb-128k", 400), f, micro_batches=16, sequences_per_step=8, context_window="32K", oversize="split")
        self.assertEqual(told[-1], 16)
        with self.assertRaisesRegex(ValueError, r'policies\[0\]: unknown key "micro_batchs"'):
            equipoise.study(dict(STUDY, policies=[{"policy": f, "micro_batchs": 16}]))

    def test_documents_that_the_loader_cut_run_in_its_pieces(self):
        result = equipoise.study(STUDY, policies={"whole": whole_documents})
        row = result["whole"]
        self.assertEqual(row["status"], "ok", row["reason"])
        plans = {plan.get("name", plan["policy"]): plan for plan in result.plans()["plans"]}
        pieces = lambda plan: sorted(
            tuple(piece)
            for step in plan["steps"]
            for lane in step["lanes"]
            for m in lane["micro_batches"]
            for piece in m["slices"]
        )
        self.assertEqual(pieces(plans["whole"]), pieces(plans["plain"]))

    def test_what_runs_late_is_delayed(self):
        row = equipoise.study(STUDY, policies={"late": one_step_late})["late"]
        self.assertEqual(row["status"], "ok", row["reason"])
        # One document waits one of 6 steps.
        first = as_they_come(
            None,
            {
                **equipoise_options(),
            },
        )[
            0
        ][0][
            0
        ][0]
        tokens = first[2] - first[1]
        self.assertAlmostEqual(row["metrics"]["token_delay_mean"], tokens / (6 * 8 * 32768), places=12)
        self.assertEqual(row["metrics"]["token_delay_max"], 1)

    def test_a_dropped_document_is_refused_by_name(self):
        result = equipoise.study(STUDY, policies={"forgetful": drops_one})
        row = result["forgetful"]
        options = equipoise_options()
        document = victim_of(as_they_come(None, options), options["lengths"])[1][0]
        self.assertEqual(row["status"], "refused")
        self.assertIn(
            f"policy forgetful: does not fit the study: token 0 of document {document} is neither "
            "executed nor dropped",
            row["reason"],
        )
        self.assertEqual(result["wlb"]["status"], "ok")

    def test_a_repeated_one_too(self):
        def twice(lengths, options):
            steps = as_they_come(lengths, options)
            steps[1][0][0].append(steps[0][0][0][0])
            return steps

        row = equipoise.study(STUDY, policies={"twice": twice})["twice"]
        self.assertEqual(row["status"], "refused")
        self.assertIn("policy twice: does not fit the study", row["reason"])

    def test_what_is_no_plan_is_a_row_that_says_what_was_found_and_where(self):
        whole = {"schema": "equipoise.plan/1", "policy": "x", "steps": 3}
        cases = {
            "none": (None, "steps: expected a list of steps, each a list of lanes .*, found None"),
            "generator": ((n for n in [3]), r"steps\[0\]: expected a list of lanes, found 3"),
            "flat": ([[3]], r"steps\[0\]\[0\]: expected a list of micro-batches, found 3"),
            "pair": ([[[[(0, 1)]]]], r"steps\[0\]\[0\]\[0\]\[0\]: expected \(document, begin, end\), three integers, found \(0, 1\)"),
            "float": ([[[[(0, 0, 1.5)]]]], r"expected \(document, begin, end\), three integers, found \(0, 0, 1.5\)"),
            "text": ([[["ab"]]], r"steps\[0\]\[0\]\[0\]: expected a list of \(document, begin, end\)"),
            "beyond": ([[[[(10**9, 0, 1)]]]], r"expected a document from 0 to \d+, found \(1000000000, 0, 1\)"),
            "longer": ([[[[(0, 0, 10**9)]]]], r"expected 0 <= begin < end <= \d+, the length of document 0, found"),
            "empty": ([], "steps: expected at least one step, found none"),
            "plan": (whole, r"steps: expected a list, found 3"),
        }
        made = {label: (lambda lengths, options, value=value: value) for label, (value, _) in cases.items()}
        result = equipoise.study(STUDY, policies={**made, "mine": as_they_come})
        self.assertEqual(result["mine"]["status"], "ok")
        for label, (_, text) in cases.items():
            with self.subTest(label):
                self.assertEqual(result[label]["status"], "refused")
                self.assertRegex(result[label]["reason"], f"^policy {label}.*{text}")
                if label != "empty":  # which the validator of all plans finds
                    self.assertRegex(result[label]["reason"], r", returned by \S+test_own_policy.py:\d+ \(<lambda>\)$")
        with self.assertRaisesRegex(ValueError, "function: expected f"):
            equipoise.policy("wlb")
        with self.assertRaisesRegex(ValueError, 'policies: x: expected a function .*, found "wlb"'):
            equipoise.study(STUDY, policies={"x": "wlb"})

    def test_rows_alike_are_numbered_and_told(self):
        study = {**STUDY, "policies": ["plain", {"name": "wlb", "queues": 1}, {"name": "wlb", "queues": 2}]}
        with self.assertWarnsRegex(UserWarning, 'two rows are called "wlb", the later one is "wlb #2" here; they differ in queues 1 and 2'):
            result = equipoise.study(study)
        self.assertEqual([row["label"] for row in result.policies], ["plain", "wlb", "wlb #2"])
        with self.assertWarnsRegex(UserWarning, '"plain #2"'):
            equipoise.study(STUDY, policies={"plain": as_they_come})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            study["policies"][2]["label"] = "wlb #2"
            equipoise.study(study)

    def test_one_that_raises_is_a_row_that_says_where(self):
        def broken(lengths, options):
            raise RuntimeError("no\nidea")

        result = equipoise.study(STUDY, policies={"broken": broken, "mine": as_they_come})
        self.assertEqual(result["broken"]["status"], "refused")
        self.assertRegex(result["broken"]["reason"], r"^RuntimeError: no idea, at \S+test_own_policy.py:\d+ \(broken\)$")
        self.assertEqual(result["mine"]["status"], "ok")
        self.assertIn("RuntimeError: no idea", str(result))

        def late(lengths, options):
            yield from as_they_come(lengths, options)[:1]
            raise RuntimeError("late")

        self.assertIn("RuntimeError: late", equipoise.study(STUDY, policies={"late": late})["late"]["reason"])

        def one(lengths):
            return as_they_come(lengths, {})

        self.assertRegex(
            equipoise.study(STUDY, policies={"one": one})["one"]["reason"],
            r"^TypeError: .*one\(\) takes 1 positional argument but 2 were given; expected f\(lengths, options\), found \S+test_own_policy.py:\d+ \(one\)$",
        )

        def stopped(lengths, options):
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            equipoise.study(STUDY, policies={"stopped": stopped})

    def test_it_is_sharded_as_its_baseline_unless_it_says_how(self):
        rows = [{"name": "plain", "shard": "per-document"}]
        result = equipoise.study(
            {**STUDY, "policies": rows, "baseline": "plain"},
            policies={"mine": as_they_come, "own": equipoise.policy(as_they_come, shard="per-sequence")},
        )
        self.assertEqual([result[row]["shard"] for row in ("plain", "mine", "own")], ["per-document", "per-document", "per-sequence"])
        self.assertEqual(result["mine"]["metrics"], result["plain"]["metrics"])

    def test_what_is_saved_can_be_verified(self):
        def broken(lengths, options):
            raise RuntimeError("no idea")

        with tempfile.TemporaryDirectory() as folder:
            policies = {"late": one_step_late, "forgetful": drops_one, "broken": broken, "none": lambda *_: None}
            own = equipoise.policy(as_they_come, label="own", shard="adaptive")
            study = {**STUDY, "policies": [{"name": "plain", "shard": "per-document"}, own], "baseline": "plain"}
            result = equipoise.study(study, policies=policies, out=Path(folder) / "saved")
            moved = (Path(folder) / "saved").rename(Path(folder) / "moved")
            found = equipoise.verify(moved / "summary.json").set_index("what")["holds"]
            for row in result.policies:
                self.assertIs(found[f"{row['label']}: as it was written"], True)
                again = found[f"{row['label']}: run again"]
                self.assertIs(again, None if row["status"] == "refused" else True, row["label"])
            plans = json.loads((moved / "plan.json").read_text())
            plans["plans"] = plans["plans"][:2]
            (moved / "plan.json").write_text(json.dumps(plans))
            with self.assertRaisesRegex(ValueError, 'plan.json: plans: no plan "late"'):
                equipoise.verify(moved / "summary.json")

    def test_pack_takes_one(self):
        shape = {"context_window": "32K", "sequences_per_step": 8, "lanes": 2}
        lengths = equipoise.draw_trace("wlb-128k", 400)
        mine, plain = equipoise.pack(lengths, as_they_come, **shape), equipoise.pack(lengths, "plain", **shape)
        full = lambda plan: [[[m for m in lane if m] for lane in lanes] for lanes in plan.steps]
        self.assertEqual(full(mine), full(plain))
        self.assertEqual(mine.metrics["token_delay_mean"], plain.metrics["token_delay_mean"])
        self.assertEqual(mine.json["policy"], "as_they_come")
        with self.assertRaisesRegex(ValueError, "policy no: does not fit .*, returned by .*test_own_policy.py"):
            equipoise.pack(lengths, equipoise.policy(drops_one, label="no"), **shape)
        with self.assertRaisesRegex(ValueError, 'unknown option "queus"'):
            equipoise.pack(lengths, as_they_come, queus=1, **shape)
        with self.assertRaisesRegex(ZeroDivisionError, "division"):
            equipoise.pack(lengths, lambda lengths, options: 1 // 0, **shape)

    def test_a_plan_of_pack_as_a_policy(self):
        def packed(lengths, options):
            return equipoise.pack(
                lengths,
                "plain",
                context_window=options["context_window"],
                lanes=options["lanes"],
                sequences_per_step=options["sequences_per_step"],
                context=options["context"],
            )

        result = equipoise.study(STUDY, policies={"packed": packed})
        self.assertEqual(result["packed"]["status"], "ok", result["packed"]["reason"])
        self.assertEqual(
            result["packed"]["metrics"]["step_seconds"], result["plain"]["metrics"]["step_seconds"]
        )


def equipoise_options():
    """The options that a policy of STUDY is called with."""
    seen = {}

    def look(lengths, options):
        seen.update(options, lengths=lengths)
        return as_they_come(lengths, options)

    equipoise.study(STUDY, policies={"look": look})
    return seen


if __name__ == "__main__":
    unittest.main(verbosity=2)

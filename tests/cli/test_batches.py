"""Batches as ranks run them: what a study says of lanes with unlike numbers of micro-batches, of padding to 2 x CP, of
`oversize`, of CP degrees that divide nothing, and of rows of a padded batch.

EQUIPOISE names the program; ctest sets it.
"""

import json
import unittest
from random import Random

from support import Case


class Batches(Case):
    def study(self, lengths, policy, parallel, batch, **more):
        self.write("docs.txt", "\n".join(map(str, lengths)) + "\n")
        content = {
            "trace": {"file": "docs.txt"}, "model": "qwen3-0.6b", "cluster": {"memory_GB": 10000}, "parallel": parallel,
            "batch": {"steps": 2, **batch}, "policies": [policy], **more,
        }
        return self.write("study.json", content)

    def lanes_of(self, study):
        """How many micro-batches each lane of each step has, and their CP degrees."""
        self.ok("study", study, "--quiet", "--out", self.folder / "out")
        plan = json.loads((self.folder / "out" / "plan.json").read_text())["plans"][0]
        lanes = [step["lanes"] for step in plan["steps"]]
        return [[len(lane["micro_batches"]) for lane in step] for step in lanes], [[lane["context"] for lane in step] for step in lanes]

    def test_lanes_that_wait_for_each_other_and_get_unlike_numbers_are_noted(self):
        batch = {"context_window": 8192, "documents_per_step": 3}
        study = self.study([8000] * 6, {"name": "ffd"}, {"data": 2, "zero": 3}, batch, framework="fsdp")
        self.assertEqual(self.notes_of_study(study)["unequal_micro_batches"], {"steps": 2, "of": 2, "most": 2, "least": 1})
        # Without a shared collective in each micro-batch nobody waits.
        alone = self.study([8000] * 6, {"name": "ffd"}, {"data": 2, "zero": 1}, batch)
        self.assertNotIn("unequal_micro_batches", self.notes_of_study(alone))

    def test_a_token_budget_fills_lanes_up_with_empty_micro_batches(self):
        batch = {"context_window": 8192, "documents_per_step": 3}
        for name in ("padded", "sorted"):
            study = self.study([8000] * 6, {"name": name, "tokens_per_micro_batch": 8192}, {"data": 2, "zero": 3}, batch, framework="fsdp")
            self.assertEqual(self.lanes_of(study)[0], [[2, 2], [2, 2]], name)
            self.assertNotIn("unequal_micro_batches", self.notes_of_study(study))

    def test_packs_hold_documents_with_their_padding_to_twice_the_cp_degree(self):
        # Multiples of 16: 4,097 becomes 4,112, and with 4,095 -> 4,096 there are 8,208 tokens.
        policy = {"name": "bfd", "pack_length": 8192, "shard": "per-document", "remainder": "pad"}
        batch = {"context_window": 8192, "documents_per_step": 4}
        for remainder, expected in (("pad", [[4095, 4095]] * 2 + [[4097]] * 4), ("slots", [[4095, 4097]] * 4)):
            study = self.study([4097, 4095] * 4, {**policy, "remainder": remainder}, {"context": 8}, batch)
            self.assertNotIn("padded_packs", self.notes_of_study(study))
            self.ok("study", study, "--quiet", "--out", self.folder / "out")
            steps = json.loads((self.folder / "out" / "plan.json").read_text())["plans"][0]["steps"]
            packs = [m["slices"] for step in steps for lane in step["lanes"] for m in lane["micro_batches"]]
            self.assertEqual(sorted(sorted(end - begin for _, begin, end in pack) for pack in packs), expected)

    def test_plans_of_padded_documents_are_legal(self):
        # The limits are no multiples of 2 x CP, so that packs which are full without padding exceed them with it.
        random = Random(5)
        for case in range(6):
            context, longest = random.choice((2, 4, 8)), random.randrange(2000, 4000)
            lengths = [longest, *(random.randrange(1, longest) for _ in range(31))]
            limit = {"max_tokens": longest + random.randrange(60)}
            rows = [
                {"name": "equipoise", "moves": 400, "shard": "adaptive", **limit},
                {"name": "wlb", "search": True, "shard": "per-document", **limit},
                {"name": "hbp", "candidates": [longest // 2, longest], "shard": "per-document"},
                {"name": "skrull", "shard": "dacp"},
            ]
            batch = {"context_window": longest, "documents_per_step": 8, "steps": 4}
            parallel = {"context": context, "data": random.choice((1, 2)), "pipeline": random.choice((1, 2))}
            policies = [{**row, "remainder": "pad"} for row in rows]
            study = self.study(lengths, policies[0], parallel, batch, baseline="wlb")
            content = json.loads(study.read_text())
            study = self.write("study.json", {**content, "policies": policies, "cluster": {"memory_GB": 60}})
            found = json.loads(self.ok("study", study, "--verify", "--quiet", "--format", "json"))
            self.assertEqual([row["status"] for row in found["policies"]], ["ok"] * len(rows), (case, lengths))

    def test_a_document_that_fits_without_its_padding_is_packed(self):
        batch = {"context_window": 8190, "documents_per_step": 4}
        for policy in ({"name": "bfd"}, {"name": "wlb", "max_tokens": 8190}):
            study = self.study([8190, 4000] * 4, {**policy, "shard": "per-document", "remainder": "pad"}, {"context": 8}, batch)
            row = json.loads(self.ok("study", study, "--format", "json", "--quiet"))["policies"][0]
            self.assertEqual(row["status"], "ok", policy)

    def test_documents_that_a_policy_cuts_are_cut_without_padding(self):
        # 1,001 tokens would be 1,008 with padding, of which a window of 1,004 leaves 4 that no document has.
        batch = {"context_window": 1004, "documents_per_step": 8, "steps": 1}
        for policy in ({"name": "plain"}, {"name": "equipoise", "start": "plain"}):
            study = self.study([1001] * 8, {**policy, "shard": "per-document", "remainder": "pad"}, {"context": 4}, batch)
            self.ok("study", study, "--verify", "--quiet", "--out", self.folder / "out")
            (step,) = json.loads((self.folder / "out" / "plan.json").read_text())["plans"][0]["steps"]
            slices = [slice_ for lane in step["lanes"] for m in lane["micro_batches"] for slice_ in m["slices"]]
            self.assertTrue(all(begin < end for _, begin, end in slices), slices)
            self.assertEqual(sum(end - begin for _, begin, end in slices), 8 * 1001)

    def test_windows_that_padding_to_twice_the_cp_degree_makes_too_long_are_noted(self):
        policy = {"name": "bfd", "pack_length": 8192, "shard": "per-document", "remainder": "pad"}
        batch = {"context_window": 8192, "sequences_per_step": 2}
        notes = self.notes_of_study(self.study([4097, 8191, 4096] * 4, policy, {"context": 8}, batch))
        self.assertEqual({key: notes["padded_packs"][key] for key in ("length", "multiple")}, {"length": 8192, "multiple": 16})

    def test_oversize_says_that_windows_cut_documents_before(self):
        policy = {"name": "bfd", "oversize": "truncate"}
        batch = {"context_window": 8192, "steps": 1}
        cut = self.study([12000, 9000, 12000, 9000], policy, {}, {**batch, "sequences_per_step": 4})
        self.assertEqual(self.notes_of_study(cut)["oversize_after_cut"], {"oversize": "truncate", "limit": 8192})
        whole = self.notes_of_study(self.study([12000, 9000, 12000, 9000], policy, {}, {**batch, "documents_per_step": 4}))
        self.assertNotIn("oversize_after_cut", whole)
        self.assertEqual(whole["slices_dropped"]["tokens"], 2 * (12000 - 8192) + 2 * (9000 - 8192))

    def test_cp_groups_of_five_and_three_ranks(self):
        for name in ("dynamic-cp", "hybrid-cp"):
            policy = {"name": name, "tokens_per_rank": 10000, "degrees": "any"}
            batch = {"context_window": 65536, "documents_per_step": 2}
            study = self.study([50000, 30000] * 2, policy, {"data": 8}, batch)
            self.assertEqual(self.lanes_of(study)[1], [[5, 3], [5, 3]], name)
            for fidelity in ("stage", "op"):
                found = json.loads(self.ok("study", study, "--format", "json", "--quiet", "--fidelity", fidelity))
                self.assertEqual(found["policies"][0]["status"], "ok", fidelity)

    def test_a_padded_batch_under_a_mask_costs_a_square_for_each_row(self):
        batch = {"context_window": 16384, "documents_per_step": 8, "steps": 1}
        framework = {"preset": "torchtitan", "attention_kernel": "pytorch-sdpa-mask"}
        rates = []
        for rows in (2, 8):
            study = self.study([1200] * 8, {"name": "padded"}, {}, {**batch, "micro_batch_size": rows}, framework=framework)
            row = json.loads(self.ok("study", study, "--format", "json", "--quiet"))["policies"][0]
            rates.append(row["metrics"]["tokens_per_second_per_gpu"])
        self.assertGreaterEqual(rates[1], rates[0])  # fewer launches, and no square over several rows

    def test_a_study_may_name_its_schema(self):
        schema = json.loads(self.ok("list", "schema"))
        self.assertEqual(schema["$id"], "equipoise.study/1")
        self.assertIn(schema["version"], self.ok("--version"))
        study = self.study([8192] * 8, "plain", {}, {"context_window": 8192, "sequences_per_step": 2}, **{"$schema": "study.schema.json"})
        self.ok("study", study, "--quiet")


if __name__ == "__main__":
    unittest.main()

"""What a table puts side by side is of one kind, or it says so: global batches, lost tokens, delays, sampling error, idle GPUs."""

import json
import unittest

from support import STUDY, Case

LANES = {
    "name": "32 lanes",
    "trace": {"distribution": "tulu3-longcite", "seed": 0},
    "model": "llama3.1-8b",
    "cluster": {"profile": "h100-sxm", "gpus_per_node": 8},
    "parallel": {"tensor": 1, "context": 8, "pipeline": 1, "data": 32, "recompute": "full"},
    "batch": {"context_window": "128K", "documents_per_step": 4700, "steps": 4},
    "policies": ["padded", "ffd", {"name": "hbp", "groups": "16K:1,128K:8"}, "skrull", "wlb"],
    "baseline": "padded",
}


def metrics_of(text):
    return {row["label"]: row["metrics"] for row in json.loads(text)["policies"]}


class Comparable(Case):
    def test_rows_train_equal_global_batches(self):
        study = self.write("study.json", LANES)
        tokens = {label: m["tokens_per_step"] for label, m in metrics_of(self.ok("study", study, "--format", "json")).items()}
        self.assertEqual(len(tokens), 5)
        self.assertLess(max(tokens.values()) / min(tokens.values()), 1.06, tokens)

    def test_unequal_global_batches_are_told(self):
        study = self.write("study.json", dict(LANES, policies=["padded", {"name": "ffd", "pack_length": "1M"}],
                                              batch=dict(LANES["batch"], documents_per_step=300)))
        table = self.ok("study", study, "--ignore-memory", "--wide")
        self.assertIn("tokens/step", table)
        self.assertIn("Note: tokens per step differ by up to", table)
        self.assertIn("\nWarning   ", self.ok("study", study, "--ignore-memory"))

    def test_documents_are_cut_for_every_row(self):
        rows = ["padded", "sorted", {"name": "ffd", "pack_length": "8K"}]
        study = self.write("study.json", dict(LANES, policies=rows))
        found = metrics_of(self.ok("study", study, "--set", "batch.max_length=8K", "--format", "json"))
        lost = {m["lost_tokens"] for m in found.values()}
        self.assertEqual(len(lost), 1)
        self.assertGreater(lost.pop(), 0)
        self.assertNotIn("lost tokens", self.ok("study", study, "--set", "batch.max_length=8K", "--wide"))
        own = self.write("own.json", dict(LANES, policies=["padded", dict(rows[2], oversize="truncate")]))
        self.assertIn("lost tokens", self.ok("study", own, "--wide"))
        both = metrics_of(self.ok("study", own, "--format", "json"))
        self.assertEqual(both["padded"]["lost_tokens"], 0)
        self.assertGreater(both["ffd"]["lost_tokens"], 0)
        self.refused("study", study, "--set", "batch.oversize=split", says=["batch.oversize", "truncate, drop", "split"])
        self.assertIn("oversize_no_effect", self.notes_of_study(study, "--set", "batch.oversize=drop", "--set", "batch.steps=1"))

    def test_a_queue_that_never_empties_is_told(self):
        # Three documents of 8,192 tokens or more in one step, and a queue that gives up four at a time.
        study = self.write("study.json", dict(STUDY, trace={"uniform": 12000}, batch=dict(STUDY["batch"], documents_per_step=3, steps=1)))
        found = metrics_of(self.ok("study", study, "--format", "json"))
        self.assertIs(found["wlb"]["queue_emptied"], False)
        self.assertIsNone(found["plain-4d"]["queue_emptied"])
        self.assertGreater(found["wlb"]["token_delay_held"], 0)
        self.assertIn("queue_never_emptied", self.notes_of_study(study))

    def test_rows_that_do_not_differ_are_tied(self):
        table = self.ok("study", self.write("study.json", dict(STUDY, policies=["plain-4d", {"name": "plain-4d", "label": "again"}])),
                        "--set", "batch.steps=8")
        self.assertRegex(table, r"(?m)^Fastest   plain-4d, [\d,]+ tokens/s/GPU, the baseline; tied with again within the sampling error\.$")
        out = self.folder / "out"
        self.ok("study", self.folder / "study.json", "--sweep", "batch.steps=6,8", "--out", out)
        self.assertIn("No policy is significantly faster than the next in any of 2 cases", (out / "report.html").read_text())

    def test_idle_gpus_are_counted(self):
        study = dict(STUDY, parallel={"tensor": 1, "context": 1, "pipeline": 1, "data": 8, "recompute": "full"},
                     batch=dict(STUDY["batch"], sequences_per_step=8, micro_batches=4))
        self.assertEqual(self.notes_of_study(self.write("study.json", study))["idle_gpus"],
                         {"steps": 3, "full": 3, "micro_batches": 4, "lanes": 8, "idle": 4, "gpus": 8})

    def test_the_verdict_says_how_much_is_extrapolated(self):
        study = self.write("study.json", STUDY)
        shares = []
        for window in ("16K", "128K"):  # the longest documents go beyond the samples of the profile's attention, 32K
            sets = ("--set", f"batch.context_window={window}", "--ignore-memory")
            found = json.loads(self.ok("study", study, *sets, "--format", "json"))
            best = max(found["policies"], key=lambda row: row["metrics"]["tokens_per_second_per_gpu"])
            shares.append(best["provenance"]["beyond_samples_share"])
            said = f". {100 * shares[-1]:.0f} % of its kernel time is beyond the profile's samples"
            self.assertIn(said, self.ok("study", study, *sets, "--wide"))
        self.assertNotEqual(*(round(100 * share) for share in shares))

    def test_kernel_time_counts_every_layer(self):
        """A kernel of a layer is predicted once and runs in every layer: by time it counts as often."""
        study = self.write("study.json", dict(STUDY, parallel={"tensor": 2}))
        model = 'model={"name": "m", "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32000, "layers": %d}'
        found = [json.loads(self.ok("study", study, "--set", model % layers, "--ignore-memory", "--format", "json"))
                 ["policies"][0]["provenance"] for layers in (8, 16, 24)]
        few, more, most = (row["kernel_seconds"] for row in found)
        self.assertEqual(len({row["predictions"] for row in found}), 1)
        self.assertGreater(more, 1.5 * few)
        self.assertAlmostEqual(most - more, more - few, delta=1e-6 * most)
        self.assertTrue(all(0 < row["beyond_samples_share"] < 1 for row in found))

    def test_kernel_time_is_that_of_all_ranks(self):
        """Where nothing overlaps, the kernels of four equal ranks take four times the step, but for its optimizer."""
        study = self.write("study.json", dict(STUDY, trace={"uniform": 16384}, parallel={"tensor": 1, "context": 4}, framework="none", policies=["plain-4d"]))
        for form in ("all-gather", "ulysses"):
            row = json.loads(self.ok("study", study, "--set", f"parallel.context_comm={form}", "--ignore-memory", "--format", "json"))["policies"][0]
            filled = row["provenance"]["kernel_seconds"] / (4 * row["metrics"]["steps"] * row["metrics"]["step_seconds"])
            self.assertTrue(0.85 < filled < 1, (form, filled))

    def test_without_a_pipeline_the_bubble_is_named_recompute(self):
        layout = dict(STUDY["parallel"], pipeline=1, recompute="full")
        study = self.write("study.json", dict(STUDY, parallel=layout))
        row = json.loads(self.ok("study", study, "--format", "json"))["policies"][0]["metrics"]
        self.assertIn(f"{100 * row['recompute_ratio']:.1f} recompute", self.ok("study", study, "--wide"))
        self.assertNotIn("recompute ", self.ok("study", study, "--set", "parallel.recompute=none", "--wide").split("\n")[2])
        self.assertGreater(row["recompute_ratio"], 0.1)

    def test_layers_that_both_rules_spread_alike_are_told(self):
        study = self.write("study.json", dict(STUDY, parallel=dict(STUDY["parallel"], pipeline=8, data=1)))
        counted = "parallel.count_embedding_and_head=true"
        model = 'model={"name": "m", "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32000, "layers": %d}'
        found = self.notes_of_study(study, "--ignore-memory", "--set", model % 94, "--set", counted)
        self.assertEqual(found["count_embedding_no_effect"], {"layers": 94, "stages": 8, "first": 11, "last": 11})
        self.assertNotIn("count_embedding_no_effect", self.notes_of_study(study, "--ignore-memory", "--set", model % 96, "--set", counted))

    def test_zero_3_of_deepspeed_says_what_is_not_in_it(self):
        study = self.write("study.json", dict(STUDY, framework="deepspeed", parallel={"data": 4, "zero": 3}))
        self.assertIn("zero3_of_deepspeed", self.notes_of_study(study, "--ignore-memory"))
        self.assertNotIn("zero3_of_deepspeed", self.notes_of_study(study, "--ignore-memory", "--set", "parallel.zero=2"))

    def test_offloading_says_that_it_is_unproven(self):
        study = self.write("study.json", STUDY)
        self.assertIn("optimizer_offload", self.notes_of_study(study, "--ignore-memory", "--set", "parallel.optimizer_offload=0.5"))
        copied = (study, "--ignore-memory", "--set", "parallel.activation_offload=0.5", "--set")
        found = self.notes_of_study(*copied, "parallel.host_link_GBps=10000")
        self.assertIn("activation_offload", found)
        self.assertIn("copies_hidden", found)
        self.assertGreater(self.notes_of_study(*copied, "parallel.host_link_GBps=1")["copies_wait"]["share"], 0.01)
        found = self.notes_of_study(study, "--ignore-memory", "--set", "parallel.host_link_GBps=20")
        self.assertEqual(found["no_effect"]["key"], "parallel.host_link_GBps")


if __name__ == "__main__":
    unittest.main()

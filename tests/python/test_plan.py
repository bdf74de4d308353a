#!/usr/bin/env python3
"""pack: the same plans as the program's, for every policy; its errors; its lists."""

import pickle
import tempfile
import re
import unittest
from pathlib import Path

import numpy as np

import equipoise
from support import beats_during, program, program_error, without_measured

LENGTHS = [5000, 300, 8000, 120, 40, 7777, 2600, 900, 4096, 64, 1500, 3000, 31, 6100, 222, 1800] * 6


class Pack(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.trace = Path(cls.folder.name) / "lengths.txt"
        cls.trace.write_text("\n".join(map(str, LENGTHS)) + "\n")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def both(self, policy, *arguments, **options):
        theirs = program("pack", self.trace, "--policy", policy, *arguments, "--format", "json")
        ours = equipoise.pack(np.array(LENGTHS), policy, **options)
        self.assertEqual(without_measured(ours.json), without_measured(theirs), policy)
        return ours

    def test_every_policy_plans_as_the_program_does(self):
        shape = (
            "--context-window",
            "8K",
            "--sequences-per-step",
            8,
            "--lanes",
            2,
            "--context",
            4,
            "--model",
            "qwen2.5-0.5b",
            "--profile",
            "h100-sxm",
            "--node-limit",
            20,
        )
        names = dict(
            context_window="8K",
            sequences_per_step=8,
            lanes=2,
            context=4,
            model="qwen2.5-0.5b",
            profile="h100-sxm",
            node_limit=20,
        )
        for policy in equipoise.policy_names():
            with self.subTest(policy):
                self.both(policy, *shape, **names)

    def test_options_may_be_spelled_as_in_a_study_or_as_on_the_command_line(self):
        shape = ("--context-window", "8K", "--sequences-per-step", 4)
        flags = dict(context_window=8192, sequences_per_step=4)
        self.both("wlb", *shape, "--thresholds", "6K,7500", **flags, thresholds=["6K", 7500])
        self.both("wlb", *shape, "--thresholds", "6K,7500", **flags, thresholds="6K,7500")
        self.both("random", *shape, "--no-shuffle", **flags, no_shuffle=True)
        self.both("random", *shape, "--no-shuffle", **flags, shuffle=False)
        self.both("random", *shape, **flags, no_shuffle=False)
        self.both("random", *shape, "--seed", 5, **flags, seed=np.int64(5))
        self.both(
            "hbp", *shape, "--groups", "2K:1,8K:8", "--context", 8, **flags, groups="2K:1,8K:8", context=8
        )

    def test_a_step_holds_as_much_whatever_the_policy(self):
        """32 documents of 1024 a step are 4 packs of 8K; max_length halves them."""
        lengths = [2048] * 256
        shape = dict(documents_per_step=32, max_length=1024, pack_length="8K", context_window="8K", sequences_per_step=64)
        for policy in ("ffd", "isf", "hbp", "multipack"):
            metrics = equipoise.pack(lengths, policy, **shape).metrics
            self.assertEqual((metrics["tokens_per_step"], metrics["lost_tokens"]), (32 * 1024, 256 * 1024), policy)

    def test_a_plan_has_the_form_that_own_policies_return(self):
        # One window of 8 tokens a step, one micro-batch: documents 0 and 1, then 2.
        plan = equipoise.pack([5, 3, 8], "plain", context_window=8, sequences_per_step=1)
        self.assertEqual(plan.steps, [[[[(0, 0, 5), (1, 0, 3)]]], [[[(2, 0, 8)]]]])
        self.assertEqual(list(plan.frame()["attention_work"]), [25 + 9, 64])
        self.assertEqual(len(plan), 2)

    def test_files_and_pickles_keep_it(self):
        plan = equipoise.pack(LENGTHS, "wlb", context_window="8K", queues=1)
        path = Path(self.folder.name) / "plan.json"
        plan.write(path)
        self.assertEqual(equipoise.Plan.read(path), plan)
        copy = pickle.loads(pickle.dumps(plan))
        self.assertEqual(copy, plan)
        self.assertEqual(copy.metrics, plan.metrics)

    def test_lengths_of_any_integer_type(self):
        wanted = equipoise.pack(LENGTHS, "ffd", pack_length="8K")
        for lengths in (
            np.array(LENGTHS, dtype=np.int32),
            np.array(LENGTHS, dtype=np.uint16),
            tuple(LENGTHS),
            np.repeat(np.array(LENGTHS), 2)[::2],
        ):
            self.assertEqual(equipoise.pack(lengths, "ffd", pack_length="8K"), wanted)

    def test_errors_are_the_programs_own_line_with_options_as_arguments(self):
        def as_arguments(line):
            return re.sub(r"(?<![\w-])--(no-)?([A-Za-z-]+)", lambda m: m[2].replace("-", "_") + ("=False" if m[1] else ""), line)

        for policy, arguments, options in (
            ("wbl", (), {}),
            ("wlb", ("--queues", "1000000"), {"queues": "1000000"}),
            ("wlb", ("--context-window", "0"), {"context_window": "0"}),
            ("ffd", ("--pack-length", "100"), {"pack_length": "100"}),
            ("chunkflow", ("--chunk-size", "many"), {"chunk_size": "many"}),
            ("skrull", ("--cost", "flops"), {"cost": "flops"}),
            ("wlb", ("--cost", "dear"), {"cost": "dear"}),
        ):
            with self.subTest(policy=policy, options=options):
                with self.assertRaises(ValueError) as raised:
                    equipoise.pack(LENGTHS, policy, **options)
                refused = program_error("pack", self.trace, "--policy", policy, *arguments)
                self.assertEqual(str(raised.exception), as_arguments(refused))
                self.assertNotIn("--", str(raised.exception))

    def test_what_only_python_can_get_wrong(self):
        for lengths, text in (
            ([1.5, 2.0], "expected integers, found float64"),
            ([], "found none"),
            ([[1, 2]], "found 2 dimensions"),
            ([4, 0], ""),
        ):
            with self.assertRaises(ValueError) as raised:
                equipoise.pack(lengths, "plain")
            self.assertIn(text, str(raised.exception))
        with self.assertRaises(ValueError) as raised:
            equipoise.pack(LENGTHS, "wlb", queus=2)
        self.assertIn('unknown option "queus", did you mean "queues"', str(raised.exception))
        with self.assertRaisesRegex(ValueError, "pack: queues: expected values that JSON has, found <object"):
            equipoise.pack(LENGTHS, "wlb", queues=object())
        with self.assertRaisesRegex(ValueError, "policy: expected a name, a function .*, found 3"):
            equipoise.pack(LENGTHS, 3)

    def test_other_threads_run_meanwhile(self):
        lengths = equipoise.draw_trace("wlb-128k", 1_000_000)
        self.assertGreater(beats_during(lambda: equipoise.pack(lengths, "hbp", groups="16K:1,128K:1")), 5)


class Traces(unittest.TestCase):
    def test_written_lengths_are_read_again(self):
        lengths = equipoise.draw_trace("lmsys-chat-1m", 500, seed=9)
        self.assertEqual(lengths.dtype, np.int64)
        with tempfile.TemporaryDirectory() as folder:
            for name in ("t.txt", "t.txt.gz", "t.txt.zst", "t.npy"):
                path = Path(folder) / name
                equipoise.write_trace(lengths, path)
                self.assertTrue(np.array_equal(equipoise.read_trace(path), lengths), name)
            with self.assertRaisesRegex(ValueError, "missing.txt"):
                equipoise.read_trace(Path(folder) / "missing.txt")
        with self.assertRaisesRegex(ValueError, "lengths: expected at least 1 token each, found -1"):
            equipoise.write_trace([3, -1], "never.npy")
        with self.assertRaisesRegex(ValueError, "documents: expected an integer from 1, found 1.5"):
            equipoise.draw_trace("lmsys-chat-1m", 1.5)
        with self.assertRaisesRegex(ValueError, "lmsys-chat-1m"):
            equipoise.draw_trace("lmsys-chat", 5)


if __name__ == "__main__":
    unittest.main(verbosity=2)

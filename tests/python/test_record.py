#!/usr/bin/env python3
"""record: lengths of whatever a loader gives."""

import tempfile
import unittest
from pathlib import Path

import numpy as np

import equipoise

BATCHES = {
    "borders of packed documents": {
        "input_ids": np.zeros((1, 9)),
        "cu_seqlens": np.array([0, 4, 9], dtype=np.int32),
    },
    "lengths": {"lengths": [4, 5]},
    "a padded batch and its mask": {
        "input_ids": np.zeros((2, 6)),
        "attention_mask": np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]]),
    },
    "positions that begin again": {
        "input_ids": np.zeros((1, 9)),
        "position_ids": np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4]]),
    },
    "lengths of packed rows": {"input_ids": np.zeros((1, 9)), "seq_lengths": [[4, 5]]},
    "borders padded by -1": {"cu_seqlens": np.array([0, 4, 9, -1, -1], dtype=np.int32)},
    "positions that begin again, under a mask of ones": {
        "position_ids": np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4]]),
        "attention_mask": np.ones((1, 9)),
    },
    "positions of padding": {
        "position_ids": np.array([[0, 1, 2, 3, 0, 0], [1, 0, 1, 2, 3, 4]]),
        "attention_mask": np.array([[1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]]),
    },
    "a mask that counts documents": {"attention_mask": np.array([[1, 1, 1, 1, 2, 2, 2, 2, 2, 0]])},
    "a list of documents": {"input_ids": [[7] * 4, [7] * 5]},
    "documents without a name": [np.zeros(4), np.zeros(5)],
    "samples": [{"input_ids": [1] * 4}, {"input_ids": [1] * 5}],
}


class Record(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "trace.txt"

    def test_every_form_of_a_batch(self):
        for what, batch in BATCHES.items():
            with self.subTest(what):
                self.assertEqual(equipoise.record([batch, batch], self.path).tolist(), [4, 5, 4, 5])
                self.assertEqual(self.path.read_text(), "4\n5\n4\n5\n")

    def test_only_the_first_batches(self):
        self.assertEqual(len(equipoise.record([BATCHES["lengths"]] * 10, self.path, batches=3)), 6)

    def test_what_it_cannot_see_is_told_by_a_function(self):
        batch = {"tokens": np.zeros((2, 8)), "n": [3, 8]}
        with self.assertRaisesRegex(
            ValueError, r"record: batch: expected cu_seqlens.* found \['n', 'tokens'\]"
        ):
            equipoise.record([batch], self.path)
        self.assertFalse(self.path.exists())
        self.assertEqual(equipoise.record([batch], self.path, lengths=lambda b: b["n"]).tolist(), [3, 8])

    def test_a_padded_tensor_without_its_mask_is_refused(self):
        with self.assertRaisesRegex(ValueError, "attention_mask"):
            equipoise.record([{"input_ids": np.zeros((2, 6))}], self.path)
        with self.assertRaisesRegex(ValueError, "found none"):
            equipoise.record([], self.path)

    def test_a_study_reads_it(self):
        equipoise.record([{"lengths": [100, 200, 300, 424]}] * 8, self.path)
        study = {
            "trace": {"file": str(self.path)},
            "model": "llama2-7b",
            "batch": {"context_window": 1024, "sequences_per_step": 2, "steps": 4},
            "policies": [{"name": "plain"}],
        }
        self.assertEqual(
            equipoise.study(study, ignore_memory=True).frame().loc["plain", "step_seconds"] > 0, True
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/env python3
"""Compares the float64 reference with PyTorch, and torch_check.py with dumps that are wrong in one place.

The program that writes the dumps is in DUMP_REFERENCE. Exit status 77 (skipped) where torch is missing."""
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import torch_check  # exits with 77 where torch is missing

numpy = torch_check.numpy


def run_check(folder):
    """Exit status and output."""
    out = io.StringIO()
    with mock.patch.object(sys, "argv", ["torch_check.py", str(folder)]):
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = torch_check.main()
    return status, out.getvalue()


class TorchCheck(unittest.TestCase):
    def dump(self, kind):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        folder = pathlib.Path(scratch.name) / "dump"
        subprocess.run([os.environ["DUMP_REFERENCE"], str(folder), kind], check=True)
        return folder

    def assert_wrong(self, folder, text, status=1):
        found, output = run_check(folder)
        self.assertEqual(found, status, output)
        self.assertIn(text, output)

    def test_the_reference_is_what_pytorch_computes(self):
        for kind in ("untied", "tied"):
            status, output = run_check(self.dump(kind))
            self.assertEqual(status, 0, output)
            for row in output.splitlines():  # fp32 files are all that separates two float64 results
                if row.endswith("  ok"):
                    self.assertLess(float(row.split()[-2]), 1e-6, row)
            self.assertEqual(output.count("  ok"), 2 * (22 if kind == "untied" else 21), output)

    def test_one_moved_gradient_is_found(self):
        folder = self.dump("untied")
        path = folder / "packed/gradients/model.layers.1.self_attn.k_proj.weight.npy"
        values = numpy.load(path)
        values[3, 5] += 1e-3 * numpy.linalg.norm(values)
        numpy.save(path, values)
        self.assert_wrong(folder, "WRONG packed")
        status, output = run_check(folder)
        self.assertEqual(output.count("WRONG"), 2, output)  # that tensor, and the plan
        self.assertIn("ok    chunked", output)

    def test_a_slice_less_is_found(self):
        folder = self.dump("untied")
        path = folder / "packed/plan.json"
        plan = json.loads(path.read_text())
        plan["steps"][0]["lanes"][0]["micro_batches"][0]["slices"].pop()
        path.write_text(json.dumps(plan))
        self.assert_wrong(folder, "tokens: found 416, expected 396")

    def test_chunks_that_forget_their_group_are_found(self):
        folder = self.dump("untied")
        path = folder / "chunked/plan.json"
        plan = json.loads(path.read_text())
        for micro_batch in plan["steps"][0]["lanes"][0]["micro_batches"]:
            micro_batch.pop("chunk", None)
        path.write_text(json.dumps(plan))
        self.assert_wrong(folder, "WRONG chunked")

    def test_a_missing_gradient_is_found(self):
        folder = self.dump("tied")
        (folder / "packed/gradients/model.norm.weight.npy").unlink()
        self.assert_wrong(folder, "WRONG packed: worst error inf")

    def test_no_number_is_no_gradient(self):
        folder = self.dump("tied")
        path = folder / "packed/gradients/model.norm.weight.npy"
        numpy.save(path, numpy.full_like(numpy.load(path), numpy.nan))
        self.assert_wrong(folder, "WRONG packed: worst error inf")

    def test_a_moved_loss_is_found(self):
        folder = self.dump("tied")
        path = folder / "packed/loss.json"
        loss = json.loads(path.read_text())
        loss["loss"] *= 1.001
        path.write_text(json.dumps(loss))
        self.assert_wrong(folder, "WRONG packed")

    def test_what_is_no_dump_is_an_error(self):
        folder = self.dump("tied")
        (folder / "packed/weights/model.norm.weight.npy").unlink()
        self.assert_wrong(folder, "not the model's tensors: ['model.norm.weight']", status=2)
        self.assert_wrong(folder / "tokens", "config.json", status=2)


if __name__ == "__main__":
    unittest.main()

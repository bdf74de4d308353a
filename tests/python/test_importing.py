#!/usr/bin/env python3
"""import_job: a framework's file becomes a study in Python. What each framework's settings mean: tests/cli/test_import.py."""

import tempfile
import unittest
from pathlib import Path

import equipoise

JOB = """
model_name_or_path: Qwen/Qwen3-0.6B
stage: sft
finetuning_type: full
cutoff_len: 2048
packing: true
neat_packing: true
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
bf16: true
frobnicate: 1
"""


class Importing(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "sft.yaml"
        self.path.write_text(JOB)

    def test_a_job_becomes_a_study_that_runs(self):
        job = equipoise.import_job(self.path, gpus=4, gpu="h200-sxm")
        self.assertIsInstance(job, equipoise.Imported)
        self.assertEqual((job.framework, job.unknown), ("LLaMA-Factory", ["frobnicate"]))
        self.assertEqual(job.study["parallel"]["data"], 4)
        self.assertEqual(job.study["cluster"], {"profile": "h200-sxm"})
        self.assertIn("not understood: frobnicate", str(job))
        study = {**job.study, "batch": {**job.study["batch"], "steps": 1}}
        self.assertEqual(equipoise.study(study).frame()["status"].tolist(), ["ok"])

    def test_what_is_refused(self):
        for options, says in (({"framework": "jax"}, "framework: expected"), ({"gpus": 0}, "gpus: expected an integer"), ({"gpus": True}, "gpus: expected an integer"),
                              ({"model": "no-such"}, "--model: expected a model")):
            with self.subTest(options=options), self.assertRaisesRegex(ValueError, says):
                equipoise.import_job(self.path, **options)
        with self.assertRaisesRegex(ValueError, "No such file"):
            equipoise.import_job(self.path.with_name("none.yaml"))


if __name__ == "__main__":
    unittest.main()

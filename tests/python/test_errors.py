#!/usr/bin/env python3
"""What is wrong with an argument is a ValueError that begins with the argument's name and says what was found."""

import os
import tempfile
import unittest
import warnings
from pathlib import Path

import equipoise
from support import STUDY

LENGTHS = [100, 200, 300, 4000]
NO_FOLDER = "/proc/no/such"


def dealt(lengths, options):
    return [[[batch[lane :: options["lanes"]]] for lane in range(options["lanes"])] for batch in options["batches"]]


class Errors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.study = {**STUDY, "batch": {**STUDY["batch"], "steps": 2}, "policies": ["plain", "fixed-greedy"]}
        cls.file = cls.folder / "gemm.csv"
        cls.file.write_text("gpu,op,M,N,K,dtype,time_ms\nh100,gemm,4096,4096,4096,bf16,0.25\n")

    def refuse(self, cases):
        for call, text in cases:
            with self.subTest(text), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with self.assertRaisesRegex(ValueError, f"^{text}"):
                    call()

    def test_half_a_character_is_no_text(self):
        half, says = "a\ud800", r"expected text in UTF-8, found 'a\\ud800'"
        self.refuse([
            (lambda: equipoise.pack(LENGTHS, half), f"policy: {says}"),
            (lambda: equipoise.BatchSampler(LENGTHS, half, lanes=1), f"policy: {says}"),
            (lambda: equipoise.study(half), f"source: {says}"),
            (lambda: equipoise.study(self.study, set={half: 1}), f"set: {says}"),
            (lambda: equipoise.study(self.study, out=half), f"out: {says}"),
            (lambda: equipoise.Plan.read(half), f"path: {says}"),
            (lambda: equipoise.pack(LENGTHS, "plain").write(half), f"path: {says}"),
            (lambda: equipoise.read_trace(half), f"path: {says}"),
            (lambda: equipoise.write_trace([1], half), f"path: {says}"),
            (lambda: equipoise.draw_trace(half, 3), f"distribution: {says}"),
        ])

    def test_paths_and_folders(self):
        plan, study = equipoise.pack(LENGTHS, "plain"), self.study
        self.refuse([
            (lambda: equipoise.study(""), 'source: expected a study\'s path, or a dict of its keys, found ""'),
            (lambda: equipoise.study(study, out=""), 'out: expected a path, found ""'),
            (lambda: equipoise.study(study, directory=3), "directory: expected a folder, found 3"),
            (lambda: equipoise.study(study, directory=[]), r"directory: expected a folder, found \[\]"),
            (lambda: equipoise.Plan.read(""), 'path: expected a path, found ""'),
            (lambda: plan.write(None), "path: expected a path, found None"),
            (lambda: plan.write(True), "path: expected a path, found True"),  # not the file descriptor 1
            (lambda: plan.write(f"{NO_FOLDER}/plan.json"), f"path: {NO_FOLDER}/plan.json: cannot create: No such file or directory"),
            (lambda: equipoise.predict(None, self.file), "profile: expected a profile's name or path, found None"),
            (lambda: equipoise.verify(""), 'summary: expected a path, found ""'),
            (lambda: equipoise.read_trace(""), 'path: expected a path, found ""'),
            (lambda: equipoise.write_trace([1], ""), 'path: expected a path, found ""'),
        ])
        for call in (
            lambda folder: equipoise.tune(study, {"parallel.recompute": ["none"]}, directory=folder),
            lambda folder: equipoise.check(study, self.folder / "expect.json", update=True, directory=folder),
            lambda folder: equipoise.validate(study, directory=folder),
        ):
            self.refuse([
                (lambda: call(3), "directory: expected a folder, found 3"),
                (lambda: call([1]), r"directory: expected a folder, found \[1\]"),
                (lambda: call(NO_FOLDER), "directory: expected a folder that is there, found "),
                (lambda: call("/proc"), "directory: /proc: cannot be written: "),
            ])
        here = os.getcwd()
        self.addCleanup(os.chdir, here)
        os.chdir(self.folder)
        for folder in (None, "", ".", self.folder):  # "": os.path.dirname("study.json")
            self.assertEqual(len(equipoise.study(study, directory=folder).policies), 2)
            self.assertTrue(equipoise.check(study, self.folder / "expect.json", update=True, directory=folder))

    def test_options_of_the_program(self):
        study, space = self.study, {"parallel.recompute": ["none"], "policies": ["plain-4d"]}
        self.refuse([
            (lambda: equipoise.tune(study, space, resume=3), "resume: expected True or False, found 3"),
            (lambda: equipoise.tune(study, space, budget=0), "budget: expected an integer from 1, found 0"),
            (lambda: equipoise.tune(study, space, gpus="8"), 'gpus: expected an integer from 1, found "8"'),
            (lambda: equipoise.tune(study, space, jobs=2.5), "jobs: expected an integer from 0, found 2.5"),
            (lambda: equipoise.tune(study, space, minutes="5"), 'minutes: expected a number, found "5"'),
            (lambda: equipoise.tune(study, space, framework=True), "framework: expected a name, found True"),
            (lambda: equipoise.tune(study, space, framework=["nemo", "verl"]), r"framework: expected a name, found \["),
            (lambda: equipoise.tune(study, space, max_delay="20"), 'max_delay: expected a number, found "20"'),
            (lambda: equipoise.tune(study, space, max_delay=[1, None]), "max_delay: expected a number, found None"),
            (lambda: equipoise.check(study, "e.json", only_worse=3), "only_worse: expected True or False, found 3"),
            (lambda: equipoise.check(study, "e.json", update=None), "update: expected True or False, found None"),
            (lambda: equipoise.check(study, "e.json", metric=[None]), "metric: expected a list of names, found None"),
            (lambda: equipoise.predict("h100-sxm", self.file, format="json"), 'format: expected none, as the module reads .*, found "json"'),
            (lambda: equipoise.validate(study, measured=object()), "measured: expected text, a number, or a list of these, found <object"),
            (lambda: equipoise.validate(study, policy=[None]), r"policy: expected text, a number, or a list of these, found \[None\]"),
        ])

    def test_values_that_json_does_not_have(self):
        study, row = self.study, {"name": "plain", "label": "it"}
        self.refuse([
            (lambda: equipoise.study({**study, "policies": [{**row, "shard": b"x"}]}), "source: policies: 0: shard: expected values that JSON has, found b'x'"),
            (lambda: equipoise.study({**study, "policies": [row, {**row, "queues": float("nan")}]}), "source: policies: 1: queues: expected .*, found nan"),
            (lambda: equipoise.study(study, set={"policies.0.queues": [1, {2}]}), r"set: policies.0.queues: 1: expected .*, found \{2\}"),
        ])

    def test_sweeps(self):
        grid = {"batch.steps": [2]}
        self.refuse([
            (lambda: equipoise.sweep(self.study, grid, job=2), 'options: unknown option "job", did you mean "jobs".*"fidelity"'),
            (lambda: equipoise.sweep(self.study, grid, _case={}), 'options: unknown option "_case"'),
        ])

    def test_policies_of_ones_own(self):
        self.refuse([
            (lambda: equipoise.pack(LENGTHS, equipoise.policy(dealt, label=3)), "policy: label: expected a text, found 3"),
            (lambda: equipoise.study(self.study, policies={3: dealt}), "policy: label: expected a text, found 3"),
            (lambda: equipoise.BatchSampler(LENGTHS, equipoise.policy(dealt, label=[1]), lanes=1), r"policy: label: expected a text, found \[1\]"),
        ])

    def test_samplers_and_batches(self):
        result = equipoise.study(self.study)
        loader = [[[1, 2], [3]]]
        trace = self.folder / "recorded.txt"
        record = equipoise.record
        self.refuse([
            (lambda: equipoise.BatchSampler.from_study(result, "plain", LENGTHS, lanes=3), "lanes: expected none with a row, which has its own, found 3"),
            (lambda: equipoise.BatchSampler.from_study(result, "plain", LENGTHS, policy="wlb"), 'policy: expected none with a row, .*, found "wlb"'),
            (lambda: record("loader", trace), 'dataloader: expected something to iterate over, found "loader"'),
            (lambda: record([], trace), "dataloader: expected at least one document, found none"),
            (lambda: record(loader, ""), 'path: expected a path, found ""'),
            (lambda: record([{"cu_seqlens": "borders"}], trace), 'record: batch: cu_seqlens: expected an array of integers, found "borders"'),
            (lambda: record([{"position_ids": [None]}], trace), r"record: batch: position_ids: expected an array of integers, found \[None\]"),
            (lambda: equipoise.packed.PackedDataset(None), "dataset: expected something whose items are documents, by their index, found None"),
            (lambda: equipoise.packed.PackedDataset([], ["input_ids"]), r"field: expected a name, found \['input_ids'\]"),
            (lambda: equipoise.packed.collate(None), "documents: expected a list of documents, found None"),
            (lambda: equipoise.packed.collate(3), "documents: expected a list of documents, found 3"),
            (lambda: equipoise.packed.collate([[1]], multiple=0), "multiple: expected an integer from 1, found 0"),
            (lambda: equipoise.packed.collate([[1]], length=2.5), "length: expected an integer from 1, found 2.5"),
            (lambda: equipoise.packed.collate([], pad=None), "pad: expected an integer from 0, found None"),
        ])


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""What is said where one GPU is compared with another: slowdowns, precisions, samples of another GPU, unlikely clusters."""

import json
import pathlib
import unittest

from support import STUDY, Case, run

PROFILES = pathlib.Path(__file__).resolve().parents[2] / "profiler/profiles"


class StudyCase(Case):
    def setUp(self):
        super().setUp()
        self.study = self.write("study.json", STUDY)


class OneRule(StudyCase):
    def kernels(self, *arguments):
        """(rule, kernels) of each case."""
        printed = json.loads(self.ok("study", self.study, "--format", "json", "--quiet", *arguments))
        cases = printed if isinstance(printed, list) else [printed]
        return [(p["slowdowns"], p["kernels"]) for p in (case["policies"][0]["provenance"] for case in cases)]

    def measured(self):
        profile = json.loads((PROFILES / "h100-sxm.json").read_text())
        profile["tables"]["gemm"]["bf16"]["provenance"] = {"kind": "measured", "source": "this machine"}
        return self.write("mine.json", profile)

    def test_slowdowns_go_with_the_gpu(self):
        rules = self.kernels("--sweep", "cluster.profile=h100-sxm,h200-sxm,b200-sxm")
        self.assertEqual([rule for rule, _ in rules], ["fitted", "fitted", "carried"])
        self.assertEqual({text.split(",")[0] for _, text in rules}, {rules[0][1].split(",")[0]})
        self.assertIn("carried over from H100, H800", rules[2][1])
        self.assertIn("published steps of B200", rules[2][1])

    def test_a_sweep_has_one_rule(self):
        mine = self.measured()
        self.assertEqual(self.kernels("--set", f"cluster.profile={mine}")[0][0], "alone")
        both = self.kernels("--sweep", f"cluster.profile=h100-sxm,{mine}")
        self.assertEqual([rule for rule, _ in both], ["fitted", "carried"])
        self.assertIn("one_rule", self.notes_of_study(self.study, "--sweep", f"cluster.profile=h100-sxm,{mine}"))

    def test_a_profile_is_found_next_to_its_study(self):
        self.measured()
        self.assertEqual(self.kernels("--set", "cluster.profile=mine.json")[0][0], "alone")
        best = self.folder / "found/best.json"
        self.ok("tune", self.study, "--set", "cluster.profile=mine.json", "--space", self.write("space.json", {"policies": ["plain"]}),
                "--out", best.parent, "--quiet")
        self.assertEqual(json.loads(best.read_text())["cluster"]["profile"], str(self.folder / "mine.json"))

    def test_mfu_names_its_peak(self):
        self.assertIn("MFU is of 989 TFLOP/s in bf16", self.ok("study", self.study, "--wide"))
        self.assertIn("MFU is of 1979 TFLOP/s in FP8", self.ok("study", self.study, "--wide", "--set", "precision=fp8"))


class Clusters(StudyCase):
    def test_what_no_cluster_has_is_noted(self):
        def notes(*assignments):
            return self.notes_of_study(self.study, "--ignore-memory", *(part for a in assignments for part in ("--set", a)))

        grid = ("parallel.tensor=4", "parallel.context=1", "parallel.pipeline=1", "parallel.data=3")
        found = notes(*grid, "cluster.gpus_per_node=6", "cluster.network.nic_GBps=400", "batch.sequences_per_step=6")
        self.assertEqual(found["unlikely_nic"]["meant"], 50)
        self.assertEqual(found["tensor_over_nodes"], {"tensor": 4, "in_node": 6})
        found = notes(*grid, "cluster.gpus_per_node=8", "batch.sequences_per_step=6")
        self.assertEqual(found["part_node"], {"gpus": 12, "in_node": 8, "last": 4})
        self.assertNotIn("tensor_over_nodes", found)
        self.assertNotIn("smaller_node", found)
        smaller = notes(*grid, "cluster.gpus_per_node=8", "cluster.profile=gb200-nvl72", "batch.sequences_per_step=6")["smaller_node"]
        self.assertEqual(smaller, {"in_node": 8, "profile": "gb200-nvl72", "of_profile": 72})
        found = notes(*grid, "cluster.gpus_per_node=16", "batch.sequences_per_step=6")
        self.assertEqual(found["larger_node"], {"in_node": 16, "profile": "h100-sxm", "of_profile": 8})


class AnotherGpu(StudyCase):
    def test_a_gpu_without_fp8_says_so(self):
        self.refused("study", self.study, "--set", "cluster.profile=a100-sxm", "--set", "precision=fp8",
                     says=["precision: expected bf16 with profile a100-sxm", "NVIDIA A100 SXM4 80GB) has no FP8"])
        head = "gpu,op,M,N,K,dtype,time_ms,tflops,source\n"
        rows = "".join(f"A100,linear,4096,4096,4096,{dtype},0.6,,here\n" for dtype in ("bf16", "fp8", "bf16"))
        result = run("predict", "--profile", "a100-sxm", "--rows", self.write("gemm.csv", head + rows))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sum("A100,linear" in line and line.split(",")[9] != "" for line in result.stdout.splitlines()), 2)
        self.assertIn("has no FP8 GEMMs", result.stdout + result.stderr)

    def test_samples_of_another_gpu_are_named(self):
        head = "gpu,op,M,N,K,dtype,time_ms,tflops,source\n"
        rows = "".join(f"A100,linear,{m},4096,4096,bf16,{m * 1.5e-4},,here\n" for m in (2048, 4096, 8192))
        result = run("fit", self.write("gemm.csv", head + rows), "--base", "h100-sxm", "--out", self.folder / "mine.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("samples of A100 calibrate --base h100-sxm, of NVIDIA H100 SXM5 80GB", result.stderr)
        other = run("fit", self.write("amd.csv", head + rows), "--base", "mi300x", "--out", self.folder / "amd.json")
        self.assertIn("samples of A100 calibrate --base mi300x, of AMD Instinct MI300X", other.stderr)
        own = run("fit", self.write("own.csv", head + rows.replace("A100", "H100")), "--base", "h100-sxm", "--out", self.folder / "own.json")
        self.assertNotIn("calibrate --base", own.stderr)

    def test_a_near_name_ends_alike(self):
        self.refused("study", self.study, "--set", "model=llama3-70b", says=['did you mean "llama3.1-70b"?'])


if __name__ == "__main__":
    unittest.main()

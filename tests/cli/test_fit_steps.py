"""`equipoise fit --steps`: measured steps in, a framework preset out.

EQUIPOISE names the program; ctest sets it.
"""

import csv
import io
import json
import math
import subprocess
import sys
import unittest
from pathlib import Path

from support import PROGRAM, Case, run

COLUMNS = "row_id,group,gpu,model_id,seq_len,tp,cp,pp,dp,mbs,gbs_seqs,precision,act_recompute,step_time_s".split(",")
# Five benchmarks with unlike shares of GEMMs, attention and elementwise kernels.
ROWS = [
    ("a", "small_v1", 2048, 1, 1, 1, 2, 4, 16),
    ("b", "small_v2", 2048, 2, 1, 1, 2, 4, 16),
    ("c", "long_v1", 32768, 1, 1, 1, 2, 1, 4),
    ("d", "long_v2", 65536, 2, 1, 1, 1, 1, 2),
    ("e", "split", 4096, 4, 1, 1, 2, 2, 16),
    ("f", "staged", 8192, 1, 1, 2, 2, 1, 16),
    ("g", "spread", 16384, 1, 2, 1, 1, 1, 4),
]
TRUTH = (1.3, 1.6, 1.9)
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import published_acceptance  # noqa: E402
import published_errors  # noqa: E402
import published_steps  # noqa: E402


class Presets(unittest.TestCase):
    def test_megatron_without_graphs_is_megatron_but_for_its_host_and_its_products(self):
        megatron, eager = (json.loads((ROOT / f"sim/framework/presets/{name}.json").read_text()) for name in ("megatron", "megatron-eager"))
        self.assertEqual(eager, published_steps.eager_preset(megatron, eager))


class Published(unittest.TestCase):
    def test_a_source_is_a_repository_or_a_paper(self):
        for source, name in (("https://github.com/NVIDIA/dgxc-benchmarking@35a9aecc8d5b:nemotron/README_15b.md (tag v24.11.1)", "NVIDIA/dgxc-benchmarking"),
                             ("NVIDIA/dgxc-benchmarking@e6afea3aea32:grok1/README_314b.md", "NVIDIA/dgxc-benchmarking"),
                             ("https://arxiv.org/abs/2504.14960 (Table 4)", "arXiv 2504.14960"), ("arXiv 2503.07680v1 Table 4", "arXiv 2503.07680"),
                             ("mlcommons/training_results_v5.1@441d:a/results/b", "mlcommons/training_results")):
            self.assertEqual(published_errors.source_of({"group": "g", "source": source}), name)
        self.assertEqual(published_errors.source_of({"group": "ultrascale_nanotron-1b"}), "ultrascale")

    def test_a_kind_may_not_become_worse_by_more_than_a_point_or_its_standard_error(self):
        stated = {"a": {"mean_abs_error": 0.02, "standard_error": 0.004, "benchmarks": 6},
                  "b": {"mean_abs_error": 0.15, "standard_error": 0.03, "benchmarks": 4}}

        def found(a, b, benchmarks=6):
            return {"a": {**stated["a"], "mean_abs_error": a, "benchmarks": benchmarks}, "b": {**stated["b"], "mean_abs_error": b}}

        self.assertEqual(list(published_acceptance.worse(stated, found(0.029, 0.179))), [])
        self.assertEqual([line[:2] for line in published_acceptance.worse(stated, found(0.031, 0.181))], ["a:", "b:"])
        self.assertEqual(list(published_acceptance.worse(stated, found(0.01, 0.1, benchmarks=5))), ["a: 6 benchmarks were predicted, now 5"])
        self.assertEqual([line[:2] for line in published_acceptance.worse(stated, {"b": stated["b"]})], ["a:", "a:"])
        # Small steps do not add up: the smaller error stays stated, with its own standard error.
        self.assertEqual(published_acceptance.kept(stated["a"], {"mean_abs_error": 0.029, "standard_error": 0.02, "benchmarks": 7}),
                         {**stated["a"], "benchmarks": 7})
        self.assertEqual(published_acceptance.kept(stated["a"], found(0.01, 0)["a"])["mean_abs_error"], 0.01)

    def test_benchmarks_of_a_kind_count_once(self):
        kind = {"framework": "megatron", "experts": False, "lora": True, "architecture": "Hopper", "precision": "fp8"}
        evidence = [{"kind": kind, "benchmark": benchmark, "log": -math.log1p(error)}
                    for benchmark, error in (("a", 0.1), ("a", -0.3), ("b", 0.0), ("c", 0.1), ("d", 0.1))]
        name, = published_acceptance.kinds_of(evidence)
        self.assertEqual(name, "megatron, dense, LoRA, Hopper, fp8")
        self.assertAlmostEqual(published_acceptance.kinds_of(evidence)[name]["mean_abs_error"], 0.1)
        self.assertEqual(published_acceptance.kinds_of(evidence[:4]), {})


class FitSteps(Case):
    def table(self, rows):
        path = self.folder / "runs.csv"
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(rows)
        return path

    def rows(self, times):
        return [(i, g, "H100", "wlb-550m", seq, tp, cp, pp, dp, mbs, gbs, "bf16", "none", time)
                for (i, g, seq, tp, cp, pp, dp, mbs, gbs), time in zip(ROWS, times)]

    def predict(self, path, slowdowns):
        result = run("fit", "--steps", path, "--slowdowns", slowdowns)
        self.assertEqual(result.returncode, 0, result.stderr)
        return [float(row["predicted_seconds"]) for row in csv.DictReader(io.StringIO(result.stdout))]

    def made_up(self):
        """Rows as long as TRUTH makes them, give or take 2 percent."""
        seconds = self.predict(self.table(self.rows([1] * len(ROWS))), ",".join(map(str, TRUTH)))
        return self.table(self.rows([s * (1 + 0.02 * (-1) ** i) for i, s in enumerate(seconds)]))

    def refused(self, *arguments):
        result = run("fit", *arguments)
        self.assertEqual(result.returncode, 2, (arguments, result.stdout, result.stderr))
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        return result.stderr

    def test_intervals_are_made_of_benchmarks_and_measured_on_others(self):
        """Six benchmarks that take 1.1 times their prediction, give or take 1 %."""
        own = json.loads((ROOT / "sim/framework/presets/megatron.json").read_text())["kernels"]["slowdowns"]
        seconds = self.predict(self.table(self.rows([1] * len(ROWS))), f"{own['gemm']},{own['attention']},{own['elementwise']}")
        rows = [(*row[:-1], 1.1 * (1 + 0.01 * (-1) ** i) * row[-1]) for i, row in enumerate(self.rows(seconds))]
        rows += [(f"{row[0]}2", "more", *row[2:]) for row in rows[2:3]]
        models = self.write("models.csv", "model_id,n_layers,hidden,n_heads,ffn_hidden,vocab,gated_mlp\nwlb-550m,16,1536,12,4096,32000,1\n")
        command = [sys.executable, ROOT / "tests/published_errors.py", "--program", PROGRAM, "--models", models]
        # Ratios of two policies, 2 % below or above their prediction: of two sources, so that the interval is 1.5 times as wide.
        ratios = [{"source": "AB"[i % 2], "benchmark": f"windows of {i}", "framework": "megatron", "policies": True,
                   "measured": 1.2 * 1.02 ** (-1) ** i, "predicted": 1.2} for i in range(6)]
        command += ["--ratios", self.write("ratios.json", ratios)]
        done = subprocess.run([*command, "--rows", self.table(rows)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, rf"\[True, 'megatron', False\] +{1.02 ** -1.5:.3f} +{1.02 ** 1.5:.3f} .* 6 of 6 benchmarks")
        self.assertRegex(done.stdout, r"all +8 +100\.0 +2\.0 ")
        self.assertRegex(done.stdout, r"\['megatron', False, False, 'Hopper', 'bf16'\] +1\.0[789]\d +1\.1[123]\d .* 8 of 6 benchmarks")
        few = subprocess.run([*command, "--rows", self.table(rows[:3])], capture_output=True, text=True, check=False)
        self.assertIn("expected steps of at least 6 benchmarks, found 2", few.stderr)

    def test_a_preset_from_made_up_runs_predicts_them_and_serves_a_study(self):
        rows = self.made_up()
        mine = self.folder / "mine.json"
        result = run("fit", "--steps", rows, "--preset", "megatron", "--out", mine)
        self.assertEqual(result.returncode, 0, result.stderr)
        preset = json.loads(mine.read_text())
        kernels = preset["kernels"]
        self.assertEqual(preset["name"], "mine")
        self.assertEqual(kernels["gpu_families"], ["H100"])
        self.assertEqual(kernels["fit"]["rows"], len(ROWS))
        self.assertEqual(sorted(kernels["left_out"]["benchmarks"]), ["long", "small", "split", "spread", "staged"])
        self.assertLess(kernels["fit"]["error_in_sample"]["mean_abs_error"], 0.03)
        self.assertIn("all held out", result.stdout)
        study = {"trace": {"uniform": 4096}, "model": "wlb-550m", "batch": {"context_window": 4096, "steps": 1},
                 "policies": ["plain"], "framework": "mine.json"}
        (self.folder / "study.json").write_text(json.dumps(study))
        summary = run("study", self.folder / "study.json", "--format", "json")
        self.assertEqual(summary.returncode, 0, summary.stderr)
        self.assertEqual(json.loads(summary.stdout)["study"]["framework"], "mine")
        # The preset written predicts as its own numbers do.
        by_hand = ",".join(str(kernels["slowdowns"][k]) for k in ("gemm", "attention", "elementwise"))
        as_preset = run("fit", "--steps", rows, "--preset", mine, "--slowdowns", "preset")
        self.assertEqual([float(r["predicted_seconds"]) for r in csv.DictReader(io.StringIO(as_preset.stdout))],
                         self.predict(rows, by_hand))

    def test_steps_in_milliseconds_ask_for_their_unit(self):
        seconds = self.predict(self.table(self.rows([1] * len(ROWS))), ",".join(map(str, TRUTH)))
        result = run("fit", "--steps", self.table(self.rows([1000 * s for s in seconds])), "--out", self.folder / "x.json")
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertIn("excluded: a: step_time_s: expected a time in seconds", result.stderr)
        self.assertIn("in which unit is it?", result.stderr.splitlines()[-1])

    def test_the_fit_does_not_depend_on_threads(self):
        rows = self.made_up()
        files = []
        for jobs in ("1", "3"):
            out = self.folder / "x.json"
            self.assertEqual(run("fit", "--steps", rows, "--out", out, "--jobs", jobs).returncode, 0)
            files.append(out.read_text())
        self.assertEqual(*files)

    def test_each_benchmark_is_predicted_by_the_fit_of_the_others(self):
        path, out, less = self.made_up(), self.folder / "x.json", self.folder / "less.csv"
        self.assertEqual(run("fit", "--steps", path, "--out", out).returncode, 0)
        held_out = json.loads(out.read_text())["kernels"]["left_out"]["benchmarks"]["staged"]["slowdowns"]
        less.write_text("".join(line for line in path.read_text().splitlines(True) if ",staged," not in line))
        self.assertEqual(run("fit", "--steps", less, "--out", out).returncode, 0)
        slowdowns = json.loads(out.read_text())["kernels"]["slowdowns"]
        self.assertEqual(held_out, [slowdowns[kind] for kind in ("gemm", "attention", "elementwise")])

    def test_rows_of_another_precision_are_excluded_and_named(self):
        rows = self.rows([1] * len(ROWS))
        rows[0] = rows[0][:11] + ("fp8",) + rows[0][12:]
        out = self.folder / "x.json"
        result = run("fit", "--steps", self.table(rows), "--out", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("excluded: a: precision fp8", result.stderr)
        self.assertEqual(json.loads(out.read_text())["kernels"]["fit"]["rows"], len(ROWS) - 1)

    def test_sharded_rows_with_a_pipeline_are_predicted(self):
        """A framework that shards weights (FSDP) keeps them gathered in a pipeline."""
        path = self.table(self.rows([1] * len(ROWS)))
        header, *rows = path.read_text().splitlines()
        path.write_text("\n".join([f"{header},fsdp_shard", *(f"{row},2" for row in rows)]))
        result = run("fit", "--steps", path, "--preset", "torchtitan", "--slowdowns", "preset")
        self.assertEqual([row["row_id"] for row in csv.DictReader(io.StringIO(result.stdout))], [row[0] for row in ROWS], result.stderr)

    def test_errors_are_one_line(self):
        rows = self.table(self.rows([1] * len(ROWS)))
        self.assertIn("no/such.csv", self.refused("--steps", "no/such.csv"))
        self.assertIn('did you mean "megatron"', self.refused("--steps", rows, "--preset", "megatronn"))
        self.assertIn("--slowdowns: expected preset, or three numbers", self.refused("--steps", rows, "--slowdowns", "1,2"))
        self.assertIn("--slowdowns", self.refused("--steps", rows, "--slowdowns", "1,2,x"))
        self.assertIn("--steps", self.refused("--models", rows))
        self.assertIn("found both", self.refused("--steps", rows, "--samples", "x.json"))
        empty = self.folder / "empty.csv"
        empty.write_text("gpu,model_id\n")
        self.assertIn("expected a column called seq_len", self.refused("--steps", empty))
        none = self.folder / "none.csv"
        none.write_text(",".join(COLUMNS) + "\n")
        self.assertIn("expected at least one row that can be simulated", self.refused("--steps", none))


if __name__ == "__main__":
    unittest.main()

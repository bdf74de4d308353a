#!/usr/bin/env python3
"""Measured steps compared with the simulator's: the plan of a run, the report's figures, a table of runs from end to end."""
import csv
import gzip
import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

from support import PROGRAM, Case

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "sim/python"))

from measured.distca import padded, read_distca  # noqa: E402
from measured.forms import PUBLISHED as FORMS  # noqa: E402
from measured.forms import attention_times, forms_table, predict_forms  # noqa: E402
from measured.layers import layer_table, packings, predict_layers  # noqa: E402
from measured.others import (  # noqa: E402
    PUBLISHED, Figure, all_figures, best_fit, consecutive, flexsp_batches, in_groups, predict_figures, rollouts, shared_out, table, windows_of,
)
from measured.recorder import StepRecorder  # noqa: E402
from measured.ratios import of_figures, of_runs  # noqa: E402
from measured.report import Predicted, away_gains, choices, gains, layouts, points, summary, text, within_runs  # noqa: E402
from measured.runs import Run, RunsError, Step, plan_of, predict, read_runs  # noqa: E402

MODEL = {"name": "tiny", "layers": 2, "hidden": 512, "heads": 8, "ffn": 1024, "vocab": 4096}
# Seven documents in step 0 and three in step 1: a batch of a study has equally many.
LANES = [[[[4096, 96, 32, 64], [512]], [[2048], [1024]]], [[[4096]], [[64, 1984]]]]


def a_run(seconds=(2.0, 1.0), context=2, policy="per-sequence", group="g", shard="per-sequence"):
    study = {"model": MODEL, "cluster": {"profile": "h100-sxm"}, "parallel": {"tensor": 1, "context": context, "data": 2}}
    steps = [Step(lanes, s) for lanes, s in zip(LANES, seconds)]
    return Run("r", study, steps, policy, shard, group, window=64 << 10)


class Layers(Case):
    def test_the_page_has_what_the_program_predicts_for_measured_layers(self):
        page = (ROOT / "docs/results/measured-steps.md").read_text(encoding="utf-8")
        self.assertIn(layer_table(predict_layers(PROGRAM, self.folder, packings())), page)


class Forms(Case):
    def test_the_page_has_what_the_program_predicts_for_forms_of_context_parallelism(self):
        page = (ROOT / "docs/results/measured-steps.md").read_text(encoding="utf-8")
        published = json.loads(FORMS.read_text(encoding="utf-8"))
        self.assertIn(forms_table(predict_forms(PROGRAM, self.folder), published), page)

    def test_the_attention_of_a_layer_is_between_the_rotary_embedding_and_the_projection(self):
        forward = [("compute", "rope", 0, 5), ("cp", "cp_all_gather", 5, 8), ("compute", "attention", 8, 20), ("compute", "out_gemm", 21, 25)]
        backward = [("compute", "B0", 30, 90), ("compute", "weight_gradient", 30, 40), ("cp", "cp_all_gather", 41, 45),
                    ("compute", "attention", 45, 70), ("cp", "cp_reduce_scatter", 70, 80), ("compute", "rope", 80, 85)]
        self.assertEqual(attention_times(forward + backward), (16e-9, 39e-9))


class Plans(Case):
    def test_each_step_has_its_documents_and_what_fills_the_last_batch_comes_behind(self):
        plan, lengths, per_step = plan_of(a_run())
        self.assertEqual(lengths[:10], [4096, 96, 32, 64, 512, 2048, 1024, 4096, 64, 1984])
        self.assertEqual(len(lengths), per_step * 3)
        first, second, fill = plan["steps"]
        self.assertEqual([s[0] for m in first["lanes"][0]["micro_batches"] for s in m["slices"]], [0, 1, 2, 3, 4])
        self.assertEqual(second["lanes"][1]["micro_batches"][0]["slices"], [[8, 0, 64], [9, 0, 1984]])
        self.assertTrue(fill["tail"])
        arrived = {d for d, _, _ in first["carried"]}
        self.assertEqual(arrived, set(range(7, per_step)))

    def test_the_harness_pads_a_short_lane(self):
        self.assertEqual(padded([1000], 2, 3), [1000, 512, 512 + 24])

    def test_the_simulator_takes_them(self):
        seconds = predict(PROGRAM, a_run(), self.folder)
        self.assertEqual(len(seconds), 2)
        self.assertGreater(seconds[0], seconds[1])

    def test_gradients_the_optimizer_and_kept_kv_are_skipped_by_their_keys(self):
        def step(**framework):
            run = a_run()
            run.study["framework"] = {"preset": "none", "overlap_param_gather": False, **framework}
            return predict(PROGRAM, run, self.folder / str(len(framework)))[0]

        usual = step()
        local = step(reduce_gradients=False)
        bare = step(reduce_gradients=False, optimizer_step=False)
        kept = step(reduce_gradients=False, optimizer_step=False, keep_gathered_kv=True)
        self.assertTrue(usual >= local > bare > kept, (usual, local, bare, kept))


class Others(Case):
    def test_documents_as_flexsp_packs_them(self):
        self.assertEqual(flexsp_batches([1] * 511 + [400_000, 129], 384), [[128] * 511 + [256]])  # one is too long
        self.assertEqual(best_fit([3, 6, 5, 2], 8), [[6, 2], [5, 3]])
        self.assertEqual(consecutive([1, 5, 2, 4], 2), [[5], [4, 2, 1]])
        self.assertEqual(in_groups([[6, 2], [5, 3], [4, 1]], 2), [[[6, 2], [4]], [[5, 3], [1]]])

    def test_documents_as_a_trainer_shares_them_out(self):
        self.assertEqual(shared_out([9, 1, 2, 3], 2, "padded"), [[9, 9], [3, 3]])
        self.assertEqual(shared_out([9, 1, 2, 3], 2, "padding-free"), [[9, 1], [2, 3]])
        self.assertEqual(shared_out([9, 1, 2, 3], 2, "multipack"), [[9], [3, 2, 1]])
        for window in windows_of(65536, 8192, 65536):
            self.assertLessEqual(sum(window), 65536)
            self.assertEqual([n % 32 for n in window], [0] * len(window))
        lengths = rollouts(4096)
        self.assertTrue(1550 < sum(lengths) / len(lengths) < 1650 and max(lengths) <= 5120)  # 1,597 and 5,120 are stated

    def test_each_published_figure_has_one_that_is_predicted(self):
        (self.folder / "lengths").mkdir()
        with gzip.open(self.folder / "lengths/flexsp_wikipedia.txt.gz", "wt") as file:
            file.write("300\n" * 600)
        figures = all_figures(self.folder)
        published = json.loads(PUBLISHED.read_text())
        names = {(f.source, f.setting, f.method) for f in figures}
        self.assertEqual(len(names), len(figures))
        self.assertEqual(names, {(s, k, m) for s, of in published.items() for k, methods in of.items() for m in methods})
        self.assertEqual({(f.source, f.setting, f.over) for f in figures if f.over} - names, set())
        self.assertNotIn("FlexSP", {f.source for f in all_figures(None)})
        wanted = [f for f in figures if f.setting == "7B, 384K" or f.setting == "2 GPUs, 2 documents of 289"]
        fixed, one, many, padded_rate, free_rate = (found for (found,) in predict_figures(PROGRAM, wanted, self.folder))
        self.assertTrue(fixed > one >= many > 0 and 0 < padded_rate < free_rate, (fixed, one, many, padded_rate, free_rate))

    def test_a_method_is_shown_with_the_one_it_is_compared_with(self):
        figures = [Figure("A", "x", "old", "s", []), Figure("A", "x", "new", "s", [], "old"), Figure("B", "y", "it", "tokens/s", [])]
        rows = table(figures, [[4.0], [2.0], [100, 90, 120]], {"A": {"x": {"old": 3.0, "new": 2.0}}, "B": {"y": {"it": 110}}})
        self.assertEqual(rows.splitlines()[2:], [
            "| A | x: old → new, s | 3 → 2 | 4 → 2 | +33, +0 | 1.50 | 2.00 |", "| B | y: it, tokens/s | 110 | 100 (90 to 120) | -9 |  |  |"])


class Reports(unittest.TestCase):
    def test_errors(self):
        found = summary([0.1, -0.2])
        self.assertEqual(found["steps"], 2)
        self.assertAlmostEqual(found["mean_abs"], 15)
        self.assertAlmostEqual(found["mean"], -5)
        self.assertAlmostEqual(found["worst"], -20)

    def test_correlation_is_taken_inside_a_run(self):
        self.assertEqual(within_runs([Predicted(a_run(), [4.0, 2.0])]), [])  # two steps say nothing
        run = a_run()
        run.steps.append(Step(LANES[0], 3.0))
        self.assertAlmostEqual(within_runs([Predicted(run, [20.0, 10.0, 30.0])])[0], 1)

    def test_a_wrong_choice_costs_what_was_measured(self):
        results = [Predicted(a_run((2.0, 2.0), 2), [2.0, 2.0]), Predicted(a_run((3.0, 3.0), 4), [1.5, 1.5])]
        (name, best, chosen, regret), = choices(layouts(results))
        self.assertEqual((name, best, chosen), (("g", "per-sequence"), 2, 4))
        self.assertAlmostEqual(regret, 0.5)

    def test_ratios_are_of_two_rows_of_one_group(self):
        results = [Predicted(a_run((2.0, 1.0), 2), [1.8, 1.2]), Predicted(a_run((1.0, 1.0), 2, "per-document"), [1.0, 1.0]),
                   Predicted(a_run((4.0, 2.0), 4), [6.0, 3.0]), Predicted(a_run((9.0, 9.0), 2, group="another"), [9.0, 9.0])]
        found = {(r["policies"], r["benchmark"]): (r["measured"], r["predicted"]) for r in of_runs(results, "S")}
        self.assertEqual(found.pop((True, "S, g, CP 2")), (2 / 3, 2 / 3))
        self.assertEqual(set(found), {(False, "S, g")})  # CP 2 and 4
        # Seconds: the second over the first is the first's time over the second's. Rates: the other way round.
        figures = [Figure("S", "7B, 8K", name, unit, [], "a" * (name == "b")) for unit in ("s", "tokens/s") for name in "ab"]
        for pair, speed in ((figures[:2], 2.0), (figures[2:], 0.5)):
            (ratio,) = of_figures(pair, [[6.0], [3.0]], {"S": {"7B, 8K": {"a": 4.0, "b": 2.0}}})
            self.assertEqual((ratio["measured"], ratio["predicted"], ratio["benchmark"]), (speed, speed, "S, 7B"))

    def test_the_gain_of_a_sharding_is_of_the_same_layout(self):
        results = [
            Predicted(a_run((3.0, 3.0)), [3.3, 3.3]),
            Predicted(a_run((2.0, 2.0), policy="per-document"), [2.0, 2.0]),
        ]
        (group, context, measured, ours), = gains(layouts(results))
        self.assertEqual((group, context), ("g", 2))
        self.assertAlmostEqual(measured, 1.5)
        self.assertAlmostEqual(ours, 1.65)
        self.assertIn("| g | 2 | 1.50 | 1.65 |", text(results, "x"))
        self.assertEqual(points(results)["tiny, per-document"], [[2.0, 2.0], [2.0, 2.0]])


class Tables(Case):
    def steps(self, seconds):
        return "".join(json.dumps({"seconds": s, "lanes": lanes}) + "\n" for s, lanes in zip(seconds, LANES))

    def table(self, **changes):
        run = {"name": "mine", "policy": "per-sequence", "study": a_run().study, "steps": "steps.jsonl", **changes}
        return self.write("runs.json", {"schema": "equipoise.runs/1", "runs": [run]})

    def test_from_end_to_end(self):
        self.write("steps.jsonl", self.steps((1.0, 1.0)))
        predictions = self.folder / "predictions.json"
        command = [sys.executable, "-m", "measured", self.table(), "--program", PROGRAM, "--predictions", predictions]
        done = subprocess.run(command, cwd=ROOT / "sim/python", capture_output=True, text=True, check=True)
        seconds = json.loads(predictions.read_text())["seconds"]["mine"]
        self.assertEqual(len(seconds), 2)
        errors = summary([s - 1 for s in seconds])
        self.assertIn(f"| all steps | 2 | {errors['mean_abs']:.1f} | {errors['mean']:+.1f} |", done.stdout)

    def test_predictions_are_written_before_a_measured_time_is_read(self):
        self.write("steps.jsonl", "".join(json.dumps({"seconds": "unread", "lanes": lanes}) + "\n" for lanes in LANES))
        predictions = self.folder / "predictions.json"
        command = [sys.executable, "-m", "measured", self.table(), "--program", PROGRAM, "--predictions", predictions]
        done = subprocess.run(command, cwd=ROOT / "sim/python", capture_output=True, text=True, check=False)
        self.assertIn("steps.jsonl: line 1: expected", done.stderr)
        self.assertEqual(len(json.loads(predictions.read_text())["seconds"]["mine"]), 2)

    def test_what_is_wrong_is_named(self):
        self.write("steps.jsonl", self.steps((1.0, 0.0)))
        with self.assertRaisesRegex(RunsError, "steps.jsonl: line 2: expected"):
            read_runs(self.table())
        with self.assertRaisesRegex(RunsError, "steps: expected the path"):
            read_runs(self.table(steps=None))
        with self.assertRaisesRegex(RunsError, "unknown key colour"):
            read_runs(self.table(colour="red"))
        self.write("steps.jsonl", self.steps((1.0, 1.0)).replace("[[2048], [1024]]", "[[2048]]", 1))
        self.assertEqual(len(read_runs(self.table())[0].steps), 2)
        self.write("steps.jsonl", '{"seconds": 1, "lanes": [[[5]]]}')
        with self.assertRaisesRegex(RunsError, "lanes: expected 2"):
            read_runs(self.table())

    def test_a_recorder_writes_what_is_read(self):
        recorder = StepRecorder(self.folder / "steps.jsonl")
        recorder.micro_batch([4096, 32])
        recorder.step_done()
        study = dict(a_run().study, parallel={"context": 1})
        (run,) = read_runs(self.table(study=study))
        self.assertEqual(run.steps[0].lanes, [[[4096, 32]]])

    def test_files_of_the_published_steps(self):
        row = {"id": "a#1", "run": "a", "model": "llama-8b", "layers": 4, "policy": "wlbllm", "sharding": "per-document", "gpus": 64,
               "tp": 8, "cp": 4, "pp": 1, "dp": 2, "window": 65536, "step_ms": 1500, "optimizer": 0, "recompute": "mlp", "date": "2025-10-20"}
        with open(self.folder / "steps.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, row)
            writer.writeheader()
            writer.writerows([row, dict(row, id="b#1", run="b", policy="d2", sharding="disaggregated", cp=1, date="2025-08-09")])
        with gzip.open(self.folder / "documents.csv.gz", "wt") as file:
            file.write("id,windows,micro_batches\na#1,x,1000;24|64\nb#1,1000;24|64|1;2|3,\n")
        run, away = read_distca(self.folder)
        self.assertEqual(run.steps[0].lanes, [[[1000, 24]], [[64, 512]]])
        self.assertEqual(run.steps[0].seconds, 1.5)
        self.assertFalse(run.study["framework"]["optimizer_step"])
        self.assertEqual(run.study["framework"]["loss"], "sum")
        self.assertEqual(away.study["framework"]["loss"], "mean-square")  # as its script had it by then
        self.assertFalse(away.study["framework"]["fused_rope"])
        self.assertEqual(away.steps[0].lanes, [[[1000, 24, 64, 1, 2, 3]]])  # one pool, windows in their order
        self.assertEqual((away.shard, away.steps[0].sample), ("contiguous", "1000;24|64|1;2|3"))
        parallel = away.study["parallel"]
        self.assertEqual([parallel[k] for k in ("context", "data", "context_comm")], [2, 1, "disaggregated"])

    def test_what_disaggregation_gains_is_of_equal_samples(self):
        def a_result(policy, context, seconds, ours, samples=("a", "b")):
            result = Predicted(a_run(seconds, context, policy), ours)
            for step, sample in zip(result.run.steps, samples):
                step.sample = sample
            return result

        results = [
            a_result("per-document", 2, (4.0, 4.0), [3.0, 3.0]),
            a_result("per-document", 4, (3.0, 3.0), [6.0, 6.0]),
            a_result("disaggregated", 8, (2.0, 9.0), [2.0, 9.0], ("a", "c")),
        ]
        self.assertEqual(away_gains(results), [("g", 1, 1.5, 1.5)])
        self.assertEqual(away_gains(results[:2]), [])

    @unittest.skipUnless(os.environ.get("EQUIPOISE_PUBLIC_DATA"), "EQUIPOISE_PUBLIC_DATA names no folder with the published steps")
    def test_the_page_has_the_figures_of_the_published_steps(self):
        """Whatever moves one of them fails here: `./run.sh measured --distca FOLDER` says what the page then has to say."""
        steps = Path(os.environ["EQUIPOISE_PUBLIC_DATA"]) / "unequal_steps"
        page = (ROOT / "docs/results/measured-steps.md").read_text().splitlines()
        for which, least in ((["--distca", steps], 50), (["--others"], 30)):
            command = [sys.executable, "-m", "measured", *which, "--program", PROGRAM, "--predictions", self.folder / "p.json"]
            done = subprocess.run(command, cwd=ROOT / "sim/python", capture_output=True, text=True, check=True)
            figures = [line for line in done.stdout.splitlines() if line.endswith(tuple(f"{i} |" for i in range(10)))]
            figures = [line for line in figures if "disaggregated, CP" not in line]
            self.assertGreater(len(figures), least)
            self.assertEqual([line for line in figures if line not in page], [])


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""What `./run.sh papers` prints around its simulations: figures, tables from a paper's file, the table of docs/accuracy.md."""
import io
import json
import os
import re
import sys
import unittest
import unittest.mock
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "sim/python"))

from support import Case  # noqa: E402

from papers.__main__ import ACCURACY, DATA, PAPERS, RESULTS, data_text, digests_of, other_tables, stale_files, with_counts  # noqa: E402
from papers.figure import Experiment, Figure, Table, mean_of  # noqa: E402
from papers.inputs import documents, in_tokens, iterations_of_packs, whole_documents  # noqa: E402
from papers.measures import MEASURES  # noqa: E402
from papers.page import BEGIN, END, block_of, markdown, page_of, row_of, score_of  # noqa: E402
from papers.perfetto import peaks  # noqa: E402
from papers.runner import Runner  # noqa: E402
from papers.seeds import Progress, median_or_none, merged, tables_of  # noqa: E402
from papers.tables import Paper, filled  # noqa: E402


class Figures(unittest.TestCase):
    def test_a_ratio_agrees_by_its_share_of_the_printed_gain(self):
        self.assertAlmostEqual(Figure("x", 1.4, 1.3).share, 0.75)
        self.assertTrue(Figure("x", 1.4, 1.301).agrees)
        self.assertFalse(Figure("x", 1.4, 1.299).agrees)  # within 15 % of the figure, but not of the gain
        self.assertFalse(Figure("x", 1.4, 1.0).agrees)
        self.assertFalse(Figure("x", 1.4, None).agrees)

    def test_ratios_next_to_one_agree_where_both_are_on_one_side_of_it(self):
        self.assertTrue(Figure("x", 1.01, 1.002).agrees)
        self.assertFalse(Figure("x", 1.01, 0.985).agrees)
        self.assertTrue(Figure("x", 1.01, 0.985).agreed_by(0.985, either_side=True))
        self.assertFalse(Figure("x", 1.01, 1.03).agrees)
        self.assertTrue(Figure("x", 1.0, 1.02).agrees)

    def test_what_is_no_ratio_agrees_within_15_percent(self):
        self.assertTrue(Figure("x", 2.0, 2.29, unit="s").agrees)
        self.assertFalse(Figure("x", 2.0, 2.31, unit="s").agrees)
        self.assertTrue(Figure("abr", 0.002, 0.005, kind="abr", small=0.01).agrees)
        self.assertFalse(Figure("abr", 0.002, 0.05, kind="abr", small=0.01).agrees)

    def test_a_speed_up_agrees_in_sign_on_the_same_side_of_one(self):
        self.assertTrue(Figure("x", 1.4, 1.01).agrees_in_sign)
        self.assertFalse(Figure("x", 1.4, 0.99).agrees_in_sign)
        self.assertFalse(Figure("x", 1.4, None).agrees_in_sign)

    def test_what_differs_says_so_with_the_reason_where_one_is_known(self):
        table = Table("P", "T")
        table.add("a", 1.2, 2.0)
        table.add("b", 1.2, 2.0, cannot="links")
        table.add("c", 1.2, 1.2, cannot="unused")
        text = markdown(table)
        self.assertIn("| a | 1.200 | 2.000 | - | 5.00 | differs, predicted |", text)
        self.assertIn("differs: links", text)
        self.assertNotIn("unused", text)

    def test_a_mean_over_a_missing_row_is_missing(self):
        self.assertEqual(mean_of([1, 3]), 2)
        self.assertIsNone(mean_of([1, None]))


class Page(unittest.TestCase):
    def setUp(self):
        table = Table("HBP", "Gain by model, days")
        table.add("8b", 1.4, 1.6, headline=True, unchosen=1.3, draws=(1.65, 1.59))
        table.add("8b again", 1.4, 1.3, counted=("before",), unchosen=1.3)
        table.add("of a lane: abr", 0.5, 0.51, kind="abr", unchosen=0.51)
        table.add("of a pack: abr", 0.2, 0.4, kind="abr", unchosen=0.3, cannot="lanes")
        self.tables = [table, Experiment("HBP", "E", ["", "x"], [["row", 1.5], [[1.0, 2.0], (3, "oom")]], note="N.")]

    def test_a_printed_number_counts_once_and_the_former_count_is_there_too(self):
        block = block_of("\n".join(score_of(self.tables)))
        # 1.6 has 1.5 of the printed gain, 1.3 has 0.75.
        self.assertIn("| HBP | 1 | 0 | 1 | 0 |", block)
        self.assertIn("As counted before (repeated numbers, either side of 1): 1 of 2, of which the null model has 0.", block)

    def test_what_is_no_ratio_has_a_row_for_each_kind(self):
        text = markdown(self.tables[0])
        self.assertIn("| **8b** | 1.400 | 1.600 (1.590-1.650) | 1.300 | 1.50 | differs, predicted |", text)
        self.assertIn("| 8b again | 1.400 | 1.300 |  | 0.75 | agrees, predicted (not counted) |", text)
        self.assertIn("| abr: of a lane; of a pack | 0.500, 0.200 | 0.510, 0.400 | 0.510, 0.300 |  | 1 of 2 agree, predicted; differs: lanes |", text)

    def test_ratios_that_are_off_for_one_reason_have_one_row(self):
        table = Table("P", "T")
        for what, ours, cannot in (("a", 1.0, "links"), ("b", 1.5, "links"), ("c", 1.1, "links"), ("d", 1.0, "hosts")):
            table.add(what, 1.5, ours, cannot=cannot, unchosen=ours)
        text = markdown(table)
        self.assertIn("| a; c | 1.500, 1.500 | 1.000, 1.100 |  | 0.00, 0.20 | 0 of 2 agree, predicted; differs: links |", text)
        self.assertIn("| b | 1.500 | 1.500 |  | 1.00 | agrees, predicted |", text)
        self.assertIn("| d | 1.500 | 1.000 |  | 0.00 | differs: hosts, predicted |", text)

    def test_a_paper_has_its_hypothesis_its_figures_and_what_it_cannot(self):
        paper = unittest.mock.Mock(data={"how": "predicted"}, cannot={"lanes": "because."}, not_here=[["Fig. 9", "no numbers"]], draws=1)
        paper.name = "HBP"
        paper.hypothesis = [{"what": "NIC", "text": "nothing", "unchosen": "50", "chosen": "18", "by": "Table 2"}]
        text = page_of([paper], self.tables)
        parts = ["## HBP", "| NIC | nothing | 50 | 18 | Table 2 |", "of one draw", "| **8b** |", "- **lanes**: because.", "### E", "| 1.000, 2.000 | 3 oom |", "- Fig. 9: no numbers"]
        self.assertEqual(sorted(parts, key=text.index), parts)

    def test_the_null_model_is_right_about_what_gains_nothing(self):
        table = Table("P", "T")
        table.add("nothing", 1.01, 1.5)
        table.add("something", 1.5, 1.5)
        self.assertIn("| all | 2 | 1 | 0 | 1 |", "\n".join(score_of([table])))


class FakeProgram:
    """A program that says how often it was called, and what with."""

    def __init__(self):
        self.calls = []

    def __call__(self, *command):
        self.calls.append(command)
        return json.dumps({"policies": [], "command": command})


class Seeds(unittest.TestCase):
    def table(self, ours, unchosen, cell):
        table = Table("P", "T")
        table.add("gain", 2.0, ours, unchosen=unchosen)
        return [table, Experiment("P", "E", ["", "x", "GiB"], [["row", [cell, 7], (cell, "oom" if cell > 2 else "")]])]

    def test_a_figure_is_the_median_of_the_draws_with_their_range(self):
        made = [self.table(*values) for values in ((1.5, 1.0, 1), (1.1, 1.2, 3), (1.9, 1.1, 5))]
        [figure] = merged([tables[0] for tables in made]).figures
        self.assertEqual((figure.ours, figure.draws, figure.unchosen), (1.5, (1.1, 1.9), 1.1))
        [row] = merged([tables[1] for tables in made]).rows
        self.assertEqual(row, ["row", [3, 7], (3, "oom 2/3")])

    def test_what_no_draw_changes_has_no_range_and_what_did_not_run_once_is_missing(self):
        same = merged([Table("P", "T", figures=[Figure("x", 2.0, 1.5)]) for _ in range(8)])
        self.assertIsNone(same.figures[0].draws)
        gone = merged([Table("P", "T", figures=[Figure("x", 2.0, ours)]) for ours in (1.5, None)])
        self.assertIsNone(gone.figures[0].ours)
        self.assertIsNone(median_or_none([1, None]))

    def test_a_table_whose_first_draw_is_another_is_named(self):
        first, second = self.table(1.5, None, 1)
        kept = json.loads(data_text([first, second], [first, second]))["first_draw"]
        self.assertEqual(other_tables(kept, digests_of([first, second])), [])
        changed, _ = self.table(1.6, None, 1)
        [complaint] = other_tables(kept, digests_of([changed, second]))
        self.assertTrue(complaint.startswith("P: T: the first draw"), complaint)
        self.assertEqual(len(other_tables(kept, digests_of([first]))), 1)
        self.assertEqual(len(other_tables([], digests_of([first, second]))), 2)

    def test_a_name_that_depends_on_the_draw_is_refused(self):
        with self.assertRaises(ValueError):
            merged([Table("P", "T", figures=[Figure(what, 2.0, 1.5)]) for what in "ab"])
        with self.assertRaises(ValueError):
            merged([Experiment("P", "E", [""], [[text]]) for text in "ab"])

    def test_each_draw_of_a_study_is_run_once_and_what_draws_nothing_once_for_all(self):
        run = Runner("none", open(os.devnull, "w"))
        self.addCleanup(run.log.close)
        run.call = FakeProgram()

        def drawn(run):
            run.summary("skrull-7b", keys={"batch.steps": 1})
            run.summary("skrull-7b", keys={"batch.steps": 1, "trace": {"uniform": 800}})
            run.summary("skrull-7b", keys={"batch.steps": 1, "trace": {"distribution": "wikipedia", "seed": 5}})
            return Table("P", "T")

        tables_of([drawn, drawn], run, 8)
        self.assertEqual(len(run.call.calls), 8 + 1)  # the draw of seed 5 is one of the eight
        seeds = {s for call in run.call.calls for s in range(8) if f'"seed": {s}' in " ".join(call)}
        self.assertEqual(seeds, set(range(8)))

    def test_an_error_in_one_thread_reaches_the_caller(self):
        def fails(run):
            raise RuntimeError("refused")

        with self.assertRaises(RuntimeError):
            tables_of([fails], Runner("none", sys.stderr), 2)


class WhatIsLeft(unittest.TestCase):
    def test_half_in_10_s_leaves_10_s_and_a_file_gets_no_line(self):
        log = io.StringIO()
        progress = Progress(4, log)
        progress.what = "HBP"
        self.assertEqual(progress.text(0), "HBP: 0 of 4 tables and draws")
        progress.step()
        progress.step()
        self.assertEqual(progress.text(10), "HBP: 2 of 4 tables and draws, 10 s left")
        self.assertEqual(log.getvalue(), "")


class Accuracy(unittest.TestCase):
    def test_a_number_that_differs_from_the_results_is_found(self):
        results = RESULTS.read_text()
        text = ACCURACY.read_text()
        self.assertEqual(stale_files({ACCURACY: with_counts(text, results, ACCURACY)}), [])
        block = block_of(results)
        changed = results.replace(block, block.replace("Of ", "Of 1", 1))
        self.assertEqual(len(stale_files({ACCURACY: with_counts(text, changed, ACCURACY)})), 1)

    def test_the_front_page_has_the_counts_of_the_ratios(self):
        found = re.search(r"^\| all \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", block_of(RESULTS.read_text()), re.MULTILINE)
        count, agree, unchosen, null = found.groups()
        said = f'{agree} of {count} ratios agree, {unchosen} with the fewest choices. A model that always says "no gain" has {null}.'
        self.assertIn(said, (ROOT / "README.md").read_text())

    def test_the_data_agree_as_the_page_counts(self):
        counted = [f for f in json.loads(DATA.read_text())["figures"] if f["kind"] == "ratio" and not f["unit"] and "now" in f["counted"]]
        self.assertIn(f"| all | {len(counted)} | {sum(f['agrees'] for f in counted)} |", block_of(RESULTS.read_text()))

    def test_the_row_of_what_is_validated_comes_from_the_counts(self):
        block = "| all | 82 | 38 | 9 | 8 |\n"
        self.assertIn("| papers | 82 printed ratios", row_of(block))
        self.assertTrue(row_of(block).endswith("| 38 agree by share of gain, 9 with the fewest choices, 8 of a null model's |\n"))
        results = f"{BEGIN}{block}{END}"
        text = f"| papers | 81 printed ratios | 1 agree |\n{BEGIN}{END}"
        self.assertEqual(with_counts(text, results, "accuracy.md"), f"{row_of(block)}{BEGIN}{block}{END}")

    def test_a_file_without_marks_or_row_ends_with_one_line(self):
        results = f"{BEGIN}| all | 82 | 38 | 9 | 8 |\n{END}"
        for text in (f"| papers |\n{END} and {BEGIN}", f"{BEGIN}{END}"):
            with self.assertRaises(SystemExit):
                with_counts(text, results, "accuracy.md")


PAPER = """
paper = "P"
draws = 2
not_here = []
policy = { own = { name = "wlb", queues = "$queues" } }
setting = { base = { study = "skrull-7b", "parallel.context" = 8, "$queues" = 2 }, wide = { like = "base", "parallel.context" = 16 } }
list = { both = ["base", "wide"] }

[[hypothesis]]
set = { "batch.steps" = [1, 3], "$documents" = [4, 5] }

[cannot]
why = "because"

[[table]]
title = "T"
at = { like = "base", policies = ["plain", "own", { like = "own", queues = 3, max_tokens = { windows = 1.5 } }], "batch.context_window" = "1K" }
measure = ["told", "$label"]
cannot = "why"
figures = [
  { what = "one", published = 2.0, counted = ["now"] },
  { what = "one: abr", label = "two", published = [3.0, 2.0], each = "both", combine = "most", how = "fitted" },
  { what = "over", published = 2.0, over = { "batch.steps" = 4 }, at = { "batch.steps" = 8 }, change = "percent" },
]

[[table]]
title = "E"
at = { like = "base" }
measure = ["told", "$column"]
columns = ["", "a", { title = "b", at = { like = "wide" } }]
rows = [{ is = ["row"], at = { "batch.steps" = 5 } }, { is = ["none"], cells = ["-", {}] }, { is = ["list"], list = [{}, { "batch.steps" = 1 }] }]
"""


class Papers(Case):
    """A paper's file: settings are merged, figures combined and divided as it says."""

    def made(self):
        told = {}

        def tell(case, label):
            told.setdefault(label, []).append((case.study, case.policies, case.keys))
            return case.keys["parallel.context"] * case.keys.get("batch.steps", 1)

        with unittest.mock.patch.dict("papers.tables.MEASURES", {"told": tell}):
            return [make(Runner("none")) for make in Paper(self.write("paper.toml", PAPER)).makers], told

    def test_a_figure_is_made_as_chosen_and_with_nothing_chosen(self):
        (table, _), told = self.made()
        one, combined, over = table.figures
        self.assertEqual((one.ours, one.unchosen, one.cannot, one.kind, one.counted), (24, 8, "why", "ratio", ("now",)))
        self.assertEqual((combined.published, combined.ours, combined.how, combined.kind), (1.5, 48, "fitted", "abr"))
        self.assertEqual(over.ours, 100 * (64 / 32 - 1))
        own = {"name": "wlb", "queues": 2}
        rows = ["plain", own, {"name": "wlb", "queues": 3, "max_tokens": 1536}]
        self.assertEqual(told["one"][0], ("skrull-7b", rows, {"batch.steps": 3, "parallel.context": 8, "batch.context_window": "1K"}))

    def test_a_cell_takes_the_keys_of_table_row_and_column(self):
        (_, experiment), _ = self.made()
        self.assertEqual(experiment.columns, ["", "a", "b"])
        self.assertEqual(experiment.rows, [["row", 40, 80], ["none", "-", 48], ["list", [24, 8], [48, 16]]])

    def test_every_paper_s_file_names_measures_settings_and_texts_that_are_there(self):
        for paper in PAPERS.values():
            self.assertEqual([spec["title"] for spec in paper.data["table"] if not ("rows" in spec or "figures" in spec)], [])
            for spec in paper.data["table"]:
                used = [part["measure"][0] for part in (spec, *spec.get("figures", ()), *spec.get("rows", ())) if "measure" in part]
                self.assertLessEqual(set(used), set(MEASURES))
                reasons = {part["cannot"] for part in (spec, *spec.get("figures", ())) if "cannot" in part}
                self.assertLessEqual(reasons, set(paper.cannot))

    def test_every_choice_says_what_the_paper_prints_and_which_figure_chose_it(self):
        for paper in PAPERS.values():
            for choice in paper.hypothesis:
                self.assertLessEqual({"what", "text", "unchosen", "chosen", "by"}, set(choice), paper.name)
                self.assertEqual({len(pair) for pair in choice.get("set", {}).values()} - {2}, set())

    def test_nothing_is_predicted_whose_setting_was_chosen(self):
        """A figure whose data depend on a choice of its paper's figures is at best fitted."""
        for f in json.loads(DATA.read_text())["figures"]:
            if f["how"] == "predicted":
                self.assertEqual(f["ours"], f["unchosen"], f"{f['paper']}: {f['what']}")

    def test_every_experiment_that_a_reason_names_is_there(self):
        for paper in PAPERS.values():
            titles = " ".join(spec["title"] for spec in paper.data["table"])
            for named in re.findall(r'\("([^"]+)"\)', " ".join(paper.cannot.values())):
                self.assertIn(named.casefold(), titles.casefold())


class Inputs(unittest.TestCase):
    def test_a_name_is_replaced_and_the_difference_of_two_taken(self):
        names = {"$pack": 4096, "$slack": 32}
        self.assertEqual(filled(["$pack", {"threshold": "$pack - $slack"}, "4 - 2", "$pack - 1"], names), [4096, {"threshold": 4064}, "4 - 2", "$pack - 1"])

    def test_documents_are_filtered_before_they_are_counted_and_cut(self):
        run = unittest.mock.Mock()
        run.lengths.return_value = [10, 2000, 300, 5000, 40]
        self.assertEqual(documents(run, {"from": "x", "count": 5, "at_least": 40, "first": 3, "cut": 1000}), [1000, 300, 1000])
        self.assertEqual(documents(run, {"from": "x", "count": 5, "skip": 3}), [5000, 40])
        # 1024 (300 / 1024)^p, where p brings 250 to 125.
        self.assertEqual(documents(run, {"from": "x", "count": 5, "median": 125, "at_most": 2000})[1:3], [2000, 164])

    def test_a_number_of_windows_is_tokens(self):
        self.assertEqual(in_tokens([{"a": {"windows": [0.25, 1.03]}, "b": 3}], "128K"), [{"a": [32768, 135004], "b": 3}])
        self.assertEqual(in_tokens({"windows": 0.5}, 4096), 2048)

    def test_iterations_hold_their_tokens_on_the_mean(self):
        # 10 + 20 + 30 + 40 are the first 100 tokens: four documents, two an iteration of 50.
        self.assertEqual(whole_documents([10, 20, 30, 40, 50], 2, 50), 2)
        # 101 need a fifth, so that an iteration has three.
        self.assertEqual(whole_documents([10, 20, 30, 40, 50, 60], 2, 50.5), 3)
        with self.assertRaises(ValueError):
            whole_documents([10, 20], 2, 50)

    def test_long_packs_hold_whole_documents_and_short_ones_come_in_windows(self):
        drawn = [1024] * 3000
        self.assertEqual(iterations_of_packs(drawn, 32 * 1024, 8, 2)["documents_per_step"], 512)
        self.assertNotIn("documents_per_step", iterations_of_packs(drawn, 4 * 1024, 32, 2))
        self.assertEqual(iterations_of_packs(drawn, 32 * 1024, 32, 2)["sequences_per_step"], 32)  # a pack a lane at least

    def test_the_peak_of_a_counter_is_read_from_a_timeline(self):
        def message(*parts):
            data = b""
            for number, value in parts:
                key = number << 3 | (0 if isinstance(value, int) else 2)
                data += varint(key) + (varint(value) if isinstance(value, int) else varint(len(value)) + value)
            return data

        def varint(value):
            low, rest = value & 0x7F, value >> 7
            return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])

        def track(uuid, name, parent):
            return (1, message((60, message((1, uuid), (2, name), (5, parent)))))

        def count(uuid, value):
            return (1, message((8, 77), (11, message((9, 4), (11, uuid), (30, value)))))

        data = message(
            track(1, b"cp 0", 9), track(2, b"memory", 1), track(3, b"memory: logits", 1), track(4, b"cp 1", 9), track(5, b"memory", 4),
            count(2, 300), count(2, 1 << 35), count(3, 1 << 40), count(5, 7), count(2, 5),
        )
        self.assertEqual(peaks(data, "memory"), {"cp 0": 1 << 35, "cp 1": 7})


if __name__ == "__main__":
    unittest.main()

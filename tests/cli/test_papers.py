#!/usr/bin/env python3
"""What `./run.sh papers` prints around its simulations: figures, the README's table, the plot."""
import sys
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "sim/python"))

from papers.__main__ import README, RESULTS, stale_files, with_block  # noqa: E402
from papers.figure import Experiment, Figure, Table, markdown, mean_of  # noqa: E402
from papers.plot import svg  # noqa: E402
from papers.summary import BEGIN, END, block_of, figures_of, summary_of  # noqa: E402


class Figures(unittest.TestCase):
    def test_a_ratio_agrees_by_its_share_of_the_printed_gain(self):
        self.assertAlmostEqual(Figure("x", 1.4, 1.3).share, 0.75)
        self.assertTrue(Figure("x", 1.4, 1.301).agrees)
        self.assertFalse(Figure("x", 1.4, 1.299).agrees)  # within 15 % of the figure, but not of the gain
        self.assertFalse(Figure("x", 1.4, 1.0).agrees)
        self.assertFalse(Figure("x", 1.4, None).agrees)

    def test_ratios_next_to_one_agree_where_both_are(self):
        self.assertTrue(Figure("x", 1.01, 0.985).agrees)
        self.assertFalse(Figure("x", 1.01, 1.03).agrees)
        self.assertTrue(Figure("x", 1.0, 1.02).agrees)

    def test_what_is_no_ratio_agrees_within_15_percent(self):
        self.assertTrue(Figure("x", 2.0, 2.29, unit="s").agrees)
        self.assertFalse(Figure("x", 2.0, 2.31, unit="s").agrees)
        self.assertTrue(Figure("abr", 0.002, 0.005, kind="abr", small=0.01).agrees)
        self.assertFalse(Figure("abr", 0.002, 0.05, kind="abr", small=0.01).agrees)

    def test_a_band_explains_only_the_figure_that_it_contains(self):
        self.assertTrue(Figure("x", 4.0, 2.0, band=(2.0, 4.1)).explained)
        self.assertFalse(Figure("x", 4.0, 2.0, band=(2.0, 3.9)).explained)
        self.assertFalse(Figure("x", 4.0, 2.0, band=(None, 4.1)).explained)

    def test_a_speed_up_agrees_in_sign_on_the_same_side_of_one(self):
        self.assertTrue(Figure("x", 1.4, 1.01).agrees_in_sign)
        self.assertFalse(Figure("x", 1.4, 0.99).agrees_in_sign)
        self.assertFalse(Figure("x", 1.4, None).agrees_in_sign)

    def test_what_differs_says_so_even_where_nobody_wrote_a_cause(self):
        table = Table("P", "T")
        table.add("a", 1.0, 2.0)
        table.add("b", 2.0, 2.1, cause="unused")
        text = markdown(table)
        self.assertIn("cause not shown", text)
        self.assertNotIn("unused", text)

    def test_a_mean_over_a_missing_row_is_missing(self):
        self.assertEqual(mean_of([1, 3]), 2)
        self.assertIsNone(mean_of([1, None]))


class Summary(unittest.TestCase):
    def setUp(self):
        table = Table("HBP", "Gain by model, days")
        table.add("8b", 1.4, 1.6, headline=True, band=(1.5, 1.7))
        table.add("days", 3.0, 4.0, unit="s")
        self.tables = [table, Experiment("HBP", "E", ["", "x"], [["row", 1.5]])]

    def test_the_score_stands_between_the_marks_beside_the_null_model_and_headlines_after_it(self):
        summary = summary_of(self.tables)
        block = block_of(summary)
        # One ratio, which neither ours nor 1 meets; one figure in seconds, of which no mean of others is known.
        self.assertIn("| HBP | 1 | 0 | 0 | 0 | 1 |", block)
        self.assertIn("| no ratios: seconds, memory, balance | 1 | 0 | 0 | 0 | 1 |", summary)
        self.assertIn(
            "| HBP | Gain by model: 8b | 1.400 | 1.600 (1.500 to 1.700) | 1.50 | predicted, differs; cause not shown |",
            summary[summary.index(block) + len(block) :],
        )

    def test_the_null_model_is_right_about_what_gains_nothing(self):
        table = Table("P", "T")
        table.add("nothing", 1.01, 1.5)
        table.add("something", 1.5, 1.5)
        self.assertIn("| all | 2 | 1 | 1 | 0 | 1 |", summary_of([table]))

    def test_the_plot_is_valid_and_has_the_ratio_but_not_the_seconds(self):
        figure = ElementTree.fromstring(svg(figures_of(self.tables)))
        titles = [t.text for t in figure.iter("{http://www.w3.org/2000/svg}title")]
        self.assertEqual(titles, ["HBP: 8b"])


class Readme(unittest.TestCase):
    def test_a_number_that_differs_from_the_results_is_found(self):
        block = block_of(RESULTS.read_text())
        text = README.read_text()
        self.assertEqual(stale_files({README: with_block(text, block, README)}), [])
        self.assertEqual(len(stale_files({README: with_block(text, block.replace("1", "2", 1), README)})), 1)

    def test_a_file_without_marks_ends_with_one_line(self):
        with self.assertRaises(SystemExit):
            with_block(f"{END} and {BEGIN}", "x", "README.md")


if __name__ == "__main__":
    unittest.main()

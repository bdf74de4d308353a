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
    def test_deviation_is_of_the_published_figure(self):
        self.assertAlmostEqual(Figure("x", 2.0, 2.2).deviation, 0.1)
        self.assertFalse(Figure("x", 2.0, 2.29).beyond())
        self.assertTrue(Figure("x", 2.0, 2.31).beyond())
        self.assertTrue(Figure("x", 2.0, None).beyond())

    def test_ratios_next_to_zero_are_compared_by_their_difference(self):
        self.assertFalse(Figure("abr", 0.002, 0.005, small=0.01).beyond())
        self.assertTrue(Figure("abr", 0.002, 0.05, small=0.01).beyond())

    def test_a_speed_up_agrees_in_sign_on_the_same_side_of_one(self):
        self.assertTrue(Figure("x", 1.4, 1.01).agrees_in_sign)
        self.assertFalse(Figure("x", 1.4, 0.99).agrees_in_sign)
        self.assertFalse(Figure("x", 1.4, None).agrees_in_sign)

    def test_what_is_beyond_says_so_even_where_nobody_wrote_a_cause(self):
        table = Table("P", "T")
        table.add("a", 1.0, 2.0)
        table.add("b", 1.0, 1.1, cause="unused")
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

    def test_headlines_stand_first_and_all_figures_are_counted_between_the_marks(self):
        summary = summary_of(self.tables)
        block = block_of(summary)
        self.assertIn("| HBP | Gain by model: 8b | 1.400 | 1.600 (1.500 to 1.700) | +14 % | predicted |",
                      summary[:summary.index(block)])
        self.assertIn("Of all 2 figures", block)
        self.assertIn("| 2 | 1 | 1, for 0 of them", block)

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

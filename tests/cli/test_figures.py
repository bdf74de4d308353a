#!/usr/bin/env python3
"""The figures of pages in Python: what they show is what their pages say, and equal data make equal bytes."""
import importlib.util
import json
import re
import sys
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from support import Case

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "sim/python"))

from figures import RESULTS, data, digest, draw_papers, page, ratios_of  # noqa: E402


class Data(unittest.TestCase):
    def test_ratios_are_counted_figures_without_a_unit_that_gain_something(self):
        figure = {"kind": "ratio", "unit": "", "counted": ["now", "before"], "published": 1.4}
        others = [{"kind": "abr"}, {"unit": "s"}, {"counted": ["before"]}, {"published": 1.0}]
        self.assertEqual(ratios_of({"figures": [figure, *({**figure, **other} for other in others)]}), [figure])

    def test_the_data_of_the_papers_have_every_ratio_that_the_page_counts(self):
        counted = int(re.search(r"Of (\d+) printed ratios", page("papers.md")).group(1))
        papers = data("papers/results.json")
        exactly_one = [f for f in papers["figures"] if f["kind"] == "ratio" and f["published"] == 1 and "now" in f["counted"]]
        self.assertEqual(len(ratios_of(papers)) + len(exactly_one), counted)

    def test_the_atlas_shows_the_cells_of_its_page(self):
        atlas, shown = data("atlas/atlas.json"), page("atlas.md")
        for cell in atlas["cells"]:
            fastest = max((row for row in cell["rows"].values() if "gain" in row), key=lambda row: row["of_fastest"])
            self.assertRegex(shown, re.escape(f"| {cell['job']} | {cell['trace']} | ") + r"[^|]*\| " + f"{fastest['gain']:.2f}x")
        for policy in atlas["policies"]:
            self.assertIn(f"| {policy} | ", shown)

    def test_the_steps_are_as_many_as_the_page_counts(self):
        steps = data("measured/steps.json")
        away = sum(len(pairs) for kind, pairs in steps.items() if kind.endswith("disaggregated"))
        counted = int(re.search(r"\| all steps \| (\d+) \|", page("measured-steps.md")).group(1))
        self.assertEqual(sum(map(len, steps.values())) - away, counted)

    def test_the_shipped_figures_are_of_the_shipped_data(self):
        pictures = {"papers.svg": ratios_of(data("papers/results.json")), "atlas.svg": data("atlas/atlas.json"),
                    "measured-steps.svg": data("measured/steps.json")}
        for name, shown in pictures.items():
            self.assertIn(f"<dc:description>{digest(shown)}</dc:description>", page(name), f"{RESULTS / name}: `./run.sh figures` draws it anew")


@unittest.skipUnless(importlib.util.find_spec("matplotlib"), "no matplotlib")
class Drawn(Case):
    def test_equal_data_make_equal_bytes_of_an_svg_whose_text_is_text(self):
        first, second = self.folder / "first.svg", self.folder / "second.svg"
        for path in (first, second):
            draw_papers(data("papers/results.json"), path)
        self.assertEqual(first.read_bytes(), second.read_bytes())
        texts = [t.text for t in ElementTree.parse(first).iter("{http://www.w3.org/2000/svg}text")]
        self.assertLessEqual({"published ratio", "simulated ratio", "Skrull"}, set(texts))


if __name__ == "__main__":
    unittest.main()

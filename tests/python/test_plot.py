#!/usr/bin/env python3
"""Figures: they draw what the results say, refuse other kinds of result, and nothing in them covers another."""

import copy
import importlib.util
import io
import pickle
import tempfile
import unittest
import warnings
from pathlib import Path

import equipoise
from equipoise import plot
from support import STUDY

SPACE = {
    "parallel.tensor": [1, 2, 4],
    "parallel.context": [1, 2],
    "parallel.pipeline": [1, 2],
    "policies": ["plain-4d", {"name": "wlb", "queues": [1, 2]}],
}
LONG = "a row with a name that is longer than any figure has room for, however wide it may be"


def drawn(figure):
    """The figure, laid out."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as a layout that did not fit
        figure.savefig(io.BytesIO(), format="png")
    return figure


def bars_by_row(axes):
    """Widths of the bars of each row, from the left."""
    rows = {}
    for bar in axes.patches:
        rows.setdefault(round(bar.get_y() + bar.get_height() / 2), []).append(bar.get_width())
    return rows


@unittest.skipUnless(importlib.util.find_spec("matplotlib"), "no matplotlib")
class Figures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.shared = Path(folder.name)
        cls.study = {**STUDY, "batch": {**STUDY["batch"], "steps": 3}}
        cls.result = equipoise.study(cls.study, out=cls.shared / "out")
        cls.page = cls.result.page()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def assert_all_within(self, figure):
        """Every text is in the figure, and no two labels of rows touch."""
        drawn(figure)
        whole = figure.bbox
        for axes in figure.axes:
            low, high = sorted(axes.get_ylim())
            ticks = [tick for place, tick in zip(axes.get_yticks(), axes.get_yticklabels()) if low <= place <= high and tick.get_text()]
            texts = [axes.title, axes.xaxis.label, axes.yaxis.label, *ticks]
            for text in texts:
                box = text.get_window_extent()
                self.assertTrue(not text.get_text() or (whole.x0 - 1 <= box.x0 and box.x1 <= whole.x1 + 1 and whole.y0 - 1 <= box.y0
                                                        and box.y1 <= whole.y1 + 1), (text.get_text(), box, whole))
            boxes = sorted((tick.get_window_extent() for tick in ticks), key=lambda box: box.y0)
            for below, above in zip(boxes, boxes[1:]):
                self.assertLessEqual(below.y1, above.y0 + 0.5, [tick.get_text() for tick in ticks])
            if axes.get_legend():
                self.assertLessEqual(axes.get_legend().get_window_extent().x1, whole.x1 + 1)

    def test_a_figure_takes_axes_or_a_size_and_embeds_truetype_fonts(self):
        from matplotlib.figure import Figure

        pair = Figure(figsize=(9, 3))
        left, right = pair.subplots(1, 2)
        self.assertIs(plot.comparison(self.result, ax=left), pair)
        self.assertIs(plot.gpus(self.result, policy="plain", ax=right), pair)
        self.assertEqual([text.get_text() for text in left.get_yticklabels()], [row["label"] for row in reversed(self.result.policies)])
        for draw in (plot.memory, plot.steps, plot.losses, plot.lengths, plot.delay):
            with self.subTest(draw.__name__):
                axes = Figure().subplots()
                self.assertIs(draw(self.result, ax=axes), axes.get_figure())
        for draw in (plot.comparison, plot.imbalance, plot.memory_by_stage, plot.pipeline):
            self.assertEqual(list(draw(self.result, figsize=(7, 5)).get_size_inches()), [7, 5])
        for wrong, text in (({"ax": left, "figsize": (7, 5)}, "figsize: expected none with ax"), ({"ax": pair}, "ax: expected Matplotlib's Axes"),
                            ({"figsize": 7}, "figsize: expected .width, height. in inches, found 7")):
            with self.assertRaisesRegex(ValueError, text):
                plot.comparison(self.result, **wrong)
        for kind, font in (("pdf", b"/FontFile2"), ("ps", b"/FontType 42")):
            file = io.BytesIO()
            plot.comparison(self.result).savefig(file, format=kind)
            self.assertIn(font, file.getvalue())

    def test_a_pages_figures_draw_its_data(self):
        """A result and its folder give the same figure."""
        rows = [row["label"] for row in self.result.policies]
        for given in (self.result, self.shared / "out", str(self.shared / "out/report.html"), pickle.loads(pickle.dumps(self.result))):
            losses = bars_by_row(drawn(plot.losses(given)).axes[0])
            for place, row in enumerate(self.page["rows"]):
                self.assertAlmostEqual(sum(losses[place]), 1, 9)
                self.assertAlmostEqual(losses[place][0], 1 - sum(loss["share"] for loss in row["losses"]), 9)
        axes = plot.losses(self.result).axes[0]
        self.assertEqual([tick.get_text() for tick in axes.get_yticklabels()], rows)
        self.assertGreater(*axes.get_ylim())  # the first row on top
        self.assertIn("simulated", axes.get_xlabel())
        dots = drawn(plot.imbalance(self.result)).axes
        for axes, key in zip(dots, ("imbalance", "cp_imbalance")):
            lines = [line for line in axes.lines if line.get_marker() == "o"]
            for line, row in zip(lines, self.page["rows"]):
                place = row["steps"]["columns"].index(key)
                self.assertEqual(list(line.get_xdata()), [step[place] for step in row["steps"]["rows"] if not step[1]])
        delays = bars_by_row(drawn(plot.delay(self.result)).axes[0])
        frame = self.result.frame()
        for place, row in enumerate(self.page["rows"]):
            self.assertAlmostEqual(delays[place][0], row["tokens_by_delay"][0] / sum(row["tokens_by_delay"]), 9)
        said = " ".join(text.get_text() for text in plot.delay(self.result).axes[0].texts)
        self.assertIn(f"mean {frame.loc['wlb', 'token_delay_mean']:.2g}, longest {frame.loc['wlb', 'token_delay_max']:.0f}", said)
        stages = drawn(plot.memory_by_stage(self.result)).axes
        self.assertEqual([axes.get_title() for axes in stages], rows)
        for axes, row in zip(stages, self.result.policies):
            held = {}
            for bar in axes.patches:
                held[bar.get_x()] = held.get(bar.get_x(), 0) + bar.get_height() * 2**30
            self.assertEqual(len(held), self.study["parallel"]["pipeline"])
            self.assertAlmostEqual(max(held.values()) / row["memory"]["peak_bytes"], 1, 6)
        with self.assertRaisesRegex(ValueError, 'result: expected a critical path, which study.fidelity="op", .* found none with fidelity stage'):
            plot.critical_path(self.result)
        op = equipoise.study(self.study, fidelity="op", out=self.folder / "op")
        for place, row in enumerate(op.page()["rows"]):
            path = bars_by_row(drawn(plot.critical_path(op)).axes[0])[place]
            self.assertAlmostEqual(sum(path), row["critical_path"]["steps"][0]["step_seconds"], 6)

    def test_a_timeline_is_the_steps(self):
        names = lambda figure: [axes.get_title().split(",")[0] for axes in figure.axes]
        self.assertEqual(names(drawn(plot.pipeline(self.result))), list(dict.fromkeys(["plain", self.page["winner"]])))
        figure = drawn(plot.pipeline(self.result, ["plain", "wlb"]))
        self.assertEqual(names(figure), ["plain", "wlb"])
        for axes in figure.axes:
            self.assertEqual(list(axes.get_yticks()), list(range(self.study["parallel"]["pipeline"])))
        step = self.page["rows"][2]["drawn"][-1]
        figure = drawn(plot.pipeline(self.result, "wlb", step["step"]))
        self.assertIn(f"step {step['step']}", figure.axes[0].get_title())
        ops = step["lanes"][0]["ops"]
        boxes = [path for bars in figure.axes[0].collections[:-1] for path in bars.get_paths()]
        self.assertEqual(len(boxes), len(ops) // 6)
        self.assertAlmostEqual(max(box.get_extents().x1 for box in boxes), max(s + t for s, t in zip(ops[4::6], ops[5::6])) / 1e6, 9)
        steps = self.result.steps()
        seconds = steps[(steps["policy"] == "wlb") & (steps["step"] == step["step"])]["step_seconds"].iloc[0]
        self.assertAlmostEqual(figure.axes[0].get_xlim()[1], seconds, 5)
        for arguments, text in (
            ({"policy": "nobody"}, 'policy: expected one of plain, fixed-greedy, wlb, found "nobody"'),
            ({"policy": ["plain", "wlb", "plain"]}, "policy: expected the label of a row, or a list of one or two"),
            ({"policy": []}, "policy: expected the label of a row, or a list of one or two"),
            ({"step": 77}, r"step: expected one of \d.*median time.* of plain, found 77"),
            ({"step": True}, "step: expected an integer from 0, found True"),
        ):
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                plot.pipeline(self.result, **arguments)

    def test_lengths_are_counted(self):
        lengths = equipoise.draw_trace("wlb-128k", 3000)
        for given, total in ((lengths, None), (list(map(int, lengths)), None), (self.result, self.page["lengths"])):
            axes = drawn(plot.lengths(given)).axes[0]
            heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
            for of_kind in heights:
                self.assertAlmostEqual(sum(of_kind), 1, 9)
            if total:
                self.assertAlmostEqual(heights[1][-1], total[-1]["tokens"] / sum(b["tokens"] for b in total), 9)
            else:
                longest = lengths >= 2 ** int(max(lengths)).bit_length() // 2
                self.assertAlmostEqual(heights[1][-1], lengths[longest].sum() / lengths.sum(), 9)
        for wrong, text in (([], "documents: expected at least one document"), (3, "documents: expected one list of integers"),
                            (equipoise.pack([1], "plain"), "documents: expected lengths in tokens, or .* found Plan")):
            with self.assertRaisesRegex(ValueError, text):
                plot.lengths(wrong)

    def test_the_load_of_gpus_is_gpus_csv(self):
        frame = self.result.gpus()
        lines = {line.get_label(): line for line in drawn(plot.gpus(self.result)).axes[0].lines}
        for label, own in frame.groupby("policy"):
            self.assertEqual(list(lines[label].get_ydata()), sorted(own["relative_to_mean"]))
        axes = drawn(plot.gpus(self.result, "wlb")).axes[0]
        of_row = frame[(frame["policy"] == "wlb") & (frame["tp"] == 0)]
        shown = axes.images[0].get_array()
        self.assertEqual(shown.shape, (2, 4))
        self.assertEqual(shown.max(), of_row["relative_to_mean"].max())
        with self.assertRaisesRegex(ValueError, 'policy: expected one of plain, fixed-greedy, wlb, found "nobody"'):
            plot.gpus(self.result, "nobody")

    def test_a_search_is_drawn_as_it_went(self):
        found = equipoise.tune(self.study, SPACE)
        tried = found.tried()
        self.assertEqual(len(tried[tried["outcome"] != "states"]), found.found["counts"]["tried"])
        self.assertEqual((tried["outcome"] == "ok").sum(), found.found["counts"]["outcomes"]["ok"])
        best = tried["tokens_per_second_per_gpu"].max()
        self.assertAlmostEqual(best, found.ranking[0]["metrics"]["tokens_per_second_per_gpu"], 3)
        axes = drawn(plot.tune(found)).axes[0]
        self.assertEqual([bar.get_width() for bar in axes.patches[: len(found.ranking)]],
                         [row["metrics"]["tokens_per_second_per_gpu"] for row in found.ranking])
        self.assertIn("(the study's,", axes.get_yticklabels()[-1].get_text().replace("\n", " "))
        maps = [axes for axes in drawn(plot.layouts(found)).axes if axes.images and axes.get_title()]
        self.assertEqual([axes.get_title() for axes in maps], ["TP 1", "TP 2", "TP 4"])
        cells = tried.groupby(["parallel.tensor", "parallel.context", "parallel.pipeline"])
        self.assertEqual(sum(len(axes.texts) for axes in maps), len(cells))
        said = [text.get_text() for axes in maps for text in axes.texts]
        rates = cells["tokens_per_second_per_gpu"].max()
        for rate in rates.dropna():
            self.assertTrue(any(text.startswith(f"{rate:,.0f}\n") for text in said), (rate, said))
        self.assertEqual(sum(text[0].isalpha() for text in said), rates.isna().sum())  # what did not run says why
        for axes in drawn(plot.frontier(found)).axes:
            dots, front = axes.lines
            self.assertEqual(max(front.get_ydata()), best)
            self.assertEqual(list(front.get_ydata()), sorted(front.get_ydata()))  # more delay or memory is worth it
            for x, y in zip(front.get_xdata(), front.get_ydata()):
                self.assertFalse(any(a <= x and b > y for a, b in zip(dots.get_xdata(), dots.get_ydata())))
        axes = drawn(plot.choices(found)).axes[0]
        self.assertEqual({max(line.get_xdata()) for line in axes.lines}, {1.0})
        self.assertIn("tensor", [tick.get_text() for tick in axes.get_yticklabels()])
        none = equipoise.tune(self.study, {"parallel.tensor": [4], "policies": ["plain-4d"]}, set={"cluster.memory_GB": 1})
        for draw in (plot.tune, plot.frontier, plot.choices):
            with self.assertRaisesRegex(ValueError, "tuned: expected a candidate that ran to its end, found none"):
                draw(none)

    def test_a_validation_is_drawn(self):
        log = self.folder / "log.csv"
        steps = self.result.steps()
        lines = [f"{row['policy']},{row['step']},{row['step_seconds'] * 1.02}" for _, row in steps.iterrows()]
        log.write_text("policy,step,step_seconds\n" + "\n".join(lines) + "\n")
        found = equipoise.validate(self.study, measured=log)
        bars, dots = drawn(plot.validation(found)).axes
        self.assertEqual([bar.get_width() for bar in bars.patches], [row[key] for key in ("predicted_seconds", "measured_seconds") for row in found["policies"]])
        self.assertEqual([text.get_text().strip() for text in bars.texts], ["-2.0 %"] * 3)
        for row in found["policies"]:
            (line,) = [line for line in dots.lines if line.get_label() == row["label"]]
            self.assertEqual(list(line.get_ydata()), [step["error"] for step in row["steps"]])
        op = {"op": "attention", "error": 0.3, "within_limit": False, "count": 3, "predicted_seconds": 1.3, "measured_seconds": 1.0}
        ops = drawn(plot.validation({**found, "ops": [op, {**op, "op": "qkv_gemm", "error": 0.01, "within_limit": True}]})).axes[2]
        self.assertEqual([tick.get_text() for tick in ops.get_yticklabels()], ["attention", "qkv_gemm"])
        with self.assertRaisesRegex(ValueError, "validated: expected steps or ops that were measured, found none"):
            plot.validation({**found, "policies": [], "ops": []})

    def test_other_kinds_are_refused_with_what_draws_them(self):
        tuned = equipoise.tune(self.study, {"parallel.tensor": [4], "policies": ["plain-4d"]})
        paged = (plot.losses, plot.imbalance, plot.delay, plot.pipeline, plot.memory_by_stage, plot.critical_path)
        for draw in paged:
            for wrong, text in (
                (None, r"result: expected what equipoise.study\(..., out=FOLDER\) returns, or that folder, found NoneType"),
                (tuned, "result: .* found Tuned, which plot.tune, plot.layouts, plot.frontier and plot.choices draw"),
                (equipoise.study(self.study), r"result: expected one of study\(..., out=FOLDER\), .* found one without out"),
                (self.folder, "result: .*report.html: expected the page of a study, found none: No such file"),
                ("", 'result: expected a path, found ""'),
            ):
                with self.subTest(draw.__name__, wrong=type(wrong)), self.assertRaisesRegex(ValueError, text):
                    draw(wrong)
        for draw in (plot.tune, plot.layouts, plot.frontier, plot.choices):
            with self.assertRaisesRegex(ValueError, "tuned: expected what equipoise.tune returns, found Result, which plot.comparison, .* draw"):
                draw(self.result)
        with self.assertRaisesRegex(ValueError, "validated: expected what equipoise.validate returns, found Result"):
            plot.validation(self.result)
        validated = {"schema": "equipoise.validation/1"}
        with self.assertRaisesRegex(ValueError, "result: .* found dict, which plot.validation draws"):
            plot.comparison(validated)
        searched = self.folder / "searched"
        equipoise.tune(self.study, {"parallel.tensor": [4], "policies": ["plain-4d"]}, out=searched)
        (self.folder / "report.html").write_text("<p>something else</p>")
        for folder, text in ((searched, "found that of a tune"), (self.folder, "found no such page")):
            with self.assertRaisesRegex(ValueError, f"result: .*report.html: expected the page of a study, {text}"):
                plot.losses(folder)
        own = equipoise.study(self.study, out=self.folder / "again")
        equipoise.study(self.study, set={"batch.context_window": "16K"}, out=self.folder / "again")
        with self.assertRaisesRegex(ValueError, "result: .*report.html: expected this study's page, found another's"):
            plot.losses(own)
        tight = equipoise.study(self.study, set={"cluster.memory_GB": 1}, out=self.folder / "tight")
        for draw in (plot.comparison, plot.steps, plot.gpus, plot.losses, plot.imbalance, plot.pipeline):
            with self.subTest(draw.__name__), self.assertRaisesRegex(ValueError, "result: expected a row that ran, found none; plain: "):
                draw(tight)

    def test_a_row_that_does_not_fit_is_not_called_fastest(self):
        rows = [{"name": "plain", "recompute": "full"}, {"name": "plain", "recompute": "none", "label": "large"}]
        study = {**self.study, "policies": rows}
        bytes_of = equipoise.study(study).frame()["peak_memory_bytes"]
        result = equipoise.study(study, set={"cluster.memory_GB": bytes_of.mean() / 1e9}, ignore_memory=True)
        self.assertEqual([row["status"] for row in result.policies], ["ok", "oom"])
        self.assertGreater(*reversed(result.frame()["tokens_per_second_per_gpu"].tolist()))
        said = [text.get_text() for text in drawn(plot.comparison(result)).axes[0].texts]
        self.assertRegex(said[0], "x, does not fit$")
        self.assertRegex(said[1], "x, fastest$")
        named = [text.get_text() for text in plot.steps(result).axes[0].get_legend().get_texts()]
        self.assertEqual(named, ["plain (fastest)", "large"])

    def test_many_rows_with_long_names_have_room(self):
        rows = [{"name": name, "label": f"{name} {i}, {LONG}"} for i in range(14) for name in ("plain", "wlb")]
        study = {**copy.deepcopy(self.study), "policies": rows, "baseline": rows[0]["label"]}
        many = equipoise.study(study, out=self.folder / "many")
        for draw in (plot.comparison, plot.memory, plot.losses, plot.imbalance, plot.delay, plot.gpus, plot.memory_by_stage, plot.pipeline, plot.lengths):
            with self.subTest(draw.__name__):
                self.assert_all_within(draw(many))
        named = plot.gpus(many).axes[0].get_legend().get_texts()
        self.assertEqual((len(named), named[-1].get_text()), (11, "18 more rows"))
        space = {**SPACE, "policies": [{"name": "wlb", "label": f"wlb {i}, {LONG}", "queues": i} for i in range(1, 5)]}
        found = equipoise.tune(self.study, space)
        for draw in (plot.tune, plot.layouts, plot.frontier, plot.choices):
            with self.subTest(draw.__name__):
                self.assert_all_within(draw(found))

    def test_figures(self):
        result = equipoise.study(self.study)
        for draw in (equipoise.plot.comparison, equipoise.plot.memory, equipoise.plot.steps):
            file = self.folder / f"{draw.__name__}.svg"
            draw(result).savefig(file)
            self.assertIn("</svg>", file.read_text())
        self.assertEqual(len(equipoise.plot.comparison(result).axes[0].patches), len(result.policies))
        long = equipoise.study({**self.study, "name": "a study whose name says all that it is about, " * 4})
        figure = equipoise.plot.comparison(long)
        figure.savefig(self.folder / "long.png")  # which lays it out
        title, whole = figure.axes[0].title.get_window_extent(), figure.bbox
        self.assertTrue(whole.x0 <= title.x0 and title.x1 <= whole.x1 and title.y1 <= whole.y1, (title, whole))
        stacked = {}
        for bar in equipoise.plot.memory(result).axes[0].patches:
            place = round(bar.get_y() + bar.get_height() / 2)
            stacked[place] = stacked.get(place, 0) + bar.get_width() * 2**30
        for place, row in enumerate(result.policies):
            self.assertAlmostEqual(stacked[place] / row["memory"]["peak_bytes"], 1, 9)
        none = equipoise.study(self.study, policies={"none": lambda lengths, options: None})
        axes = equipoise.plot.comparison(none).axes[0]
        self.assertEqual([label.get_text() for label in axes.get_yticklabels()], ["none", "wlb", "fixed-greedy", "plain"])
        self.assertEqual(axes.patches[0].get_width(), 0)
        self.assertIn("refused: policy none: steps: expected", " ".join(text.get_text() for text in axes.texts))
        with self.assertRaisesRegex(ValueError, "result: expected a row that ran, found none; plain: "):
            equipoise.plot.comparison(equipoise.study(self.study, set={"cluster.memory_GB": 1}))
        with self.assertRaisesRegex(ValueError, "policies: expected functions by label"):
            equipoise.study(self.study, policies=[len])
        one = equipoise.sweep(self.study, {"batch.context_window": ["16K", "32K"]})
        self.assertEqual(len(equipoise.plot.sweep(one).axes[0].lines), len(result.policies))
        two = equipoise.sweep(self.study, {"batch.context_window": ["16K", "32K"], "parallel.context": [1, 2]})
        self.assertEqual(equipoise.plot.sweep(two).axes[0].images[0].get_array().shape, (2, 2))
        lines = equipoise.plot.sweep(one, policy="wlb").axes[0].lines
        self.assertEqual([line.get_label() for line in lines], ["wlb"])
        none = {"cluster.memory_GB": [1, 80]}
        lines = equipoise.plot.sweep(equipoise.sweep(self.study, none)).axes[0].lines  # nothing runs with the first value
        self.assertEqual([list(line.get_ydata())[0] != list(line.get_ydata())[0] for line in lines], [True] * len(result.policies))
        with self.assertRaisesRegex(ValueError, "swept: expected a row with mfu, found none; plain: "):
            equipoise.plot.sweep(equipoise.sweep(self.study, {"cluster.memory_GB": [1, 2]}), "mfu")
        for draw, wrong, text in (
            (equipoise.plot.sweep, result, "swept: expected what equipoise.sweep returns, found Result, which plot.comparison"),
            (equipoise.plot.sweep, equipoise.sweep(self.study, {}), "swept: expected a sweep of one or two keys .*, found none"),
            (equipoise.plot.comparison, one, "result: expected what equipoise.study returns, found Sweep, which plot.sweep draws"),
            (equipoise.plot.memory, None, "result: expected what equipoise.study returns, found NoneType"),
            (equipoise.plot.steps, equipoise.pack([1], "plain"), "result: .* found Plan, whose frame"),
            (lambda swept: equipoise.plot.sweep(swept, metric="speed"), one, 'metric: expected one of .*mfu.*, found "speed"'),
        ):
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                draw(wrong)
        with self.assertRaisesRegex(ValueError, "policy: expected one of"):
            equipoise.plot.sweep(two, policy="nobody")

    def test_legends_cover_nothing_and_name_the_fastest(self):
        slow = [{"name": "plain", "label": f"plain {i}, a row with a name that is longer than any legend has room for"} for i in range(12)]
        # Which no framework of today runs: without one it is called fastest.
        study = {**self.study, "framework": "none", "policies": [*slow, {"name": "equipoise", "moves": 200}]}
        many = equipoise.study(study)
        rates = many.frame()["tokens_per_second_per_gpu"]
        self.assertEqual(rates.idxmax(), "equipoise")  # the last row, beyond those that a legend names
        few = equipoise.study(self.study)
        over = equipoise.sweep(study, {"batch.context_window": ["16K", "32K"]})
        best = over.frame().loc[over.frame()["tokens_per_second_per_gpu"].idxmax()]
        self.assertEqual(best["label"], "equipoise")
        for figure, last in (
            (equipoise.plot.steps(many), ["equipoise (fastest)", "3 more rows"]),
            (equipoise.plot.sweep(over), [f"equipoise (fastest, at {best['batch.context_window']})", "3 more rows"]),
            (equipoise.plot.steps(few), None),
            (equipoise.plot.sweep(over, policy="equipoise"), ["equipoise"]),
            (equipoise.plot.memory(many), None),
        ):
            figure.savefig(self.folder / "figure.png")  # which lays it out
            axes = figure.axes[0]
            legend, inside, whole = axes.get_legend().get_window_extent(), axes.get_window_extent(), figure.bbox
            self.assertGreater(legend.x0, inside.x1)
            self.assertTrue(legend.x1 <= whole.x1 and legend.y0 >= whole.y0 and legend.y1 <= whole.y1, (legend, whole))
            self.assertGreater(inside.width, 0.4 * whole.width)  # the long names leave room for the lines
            texts = [text.get_text() for text in axes.get_legend().get_texts()]
            self.assertLessEqual(len(texts), 11)
            if last is not None:
                self.assertEqual(texts[-len(last) :], last)
        lines = equipoise.plot.steps(many).axes[0].lines
        widths = {line.get_label(): line.get_linewidth() for line in lines if line.get_label() in rates.index}
        self.assertEqual(len(widths), 13)
        self.assertEqual([label for label, width in widths.items() if width == max(widths.values())], ["equipoise"])
        texts = [text.get_text() for text in equipoise.plot.steps(few).axes[0].get_legend().get_texts()]
        fastest = few.frame()["tokens_per_second_per_gpu"].idxmax()
        rows = [f"{label} (fastest)" if label == fastest else label for label in few.frame().index]
        self.assertEqual(texts, [*rows, "end of data: empties what was held"])
        bars = equipoise.plot.comparison(many).axes[0]
        self.assertEqual(["x, fastest" in text.get_text() for text in bars.texts], [True] + 12 * [False])
        self.assertEqual(len({bar.get_facecolor() for bar in bars.patches}), 2)

    def test_panels_of_no_row_are_hidden(self):
        rows = [{"name": name, "label": f"{name} {i}"} for i in range(3) for name in ("plain", "wlb")]
        six = equipoise.study({**self.study, "policies": rows, "baseline": "plain 0"}, out=self.folder / "six")
        panels = drawn(plot.memory_by_stage(six)).axes
        self.assertEqual([axes.get_title() for axes in panels], [row["label"] for row in rows] + ["", ""])
        self.assertEqual([axes.axison for axes in panels], 6 * [True] + 2 * [False])

    def test_cells_of_a_map_say_their_values(self):
        swept = equipoise.sweep(self.study, {"cluster.memory_GB": [20, 80], "parallel.context": [1, 2]})
        frame = swept.frame()
        for policy, title in ((None, "plain, one of 3 rows (policy= chooses)"), ("wlb", "wlb, one of 3 rows")):
            figure = plot.sweep(swept, policy=policy)
            self.assert_all_within(figure)
            axes, bar = figure.axes
            self.assertEqual((axes.get_title(), bar.get_ylabel()), (title, "tokens/s/GPU, simulated"))
            said = {(place[1], place[0]): text for text in axes.texts for place in [text.get_position()]}
            own = frame[frame["label"] == (policy or "plain")]
            self.assertEqual(len(said), len(own))
            self.assertLess(own["tokens_per_second_per_gpu"].count(), 4)
            for _, row in own.iterrows():
                text = said[[20, 80].index(row["cluster.memory_GB"]), [1, 2].index(row["parallel.context"])]
                rate = row["tokens_per_second_per_gpu"]
                self.assertEqual(text.get_text(), f"{rate:,.0f}" if rate == rate else {"oom": "no memory", "unplaceable": "too long"}[row["status"]])
        shown = {text.get_text(): text.get_color() for text in axes.texts}
        rates = sorted((text for text in shown if text[0].isdigit()), key=lambda text: int(text.replace(",", "")))
        self.assertEqual((shown[rates[0]], shown[rates[-1]]), ("white", "black"))  # the least is on dark, the most on light
        one = equipoise.sweep({**self.study, "policies": ["plain"]}, {"cluster.memory_GB": [40, 80], "parallel.context": [1, 2]})
        figure = drawn(plot.sweep(one, "peak_memory_bytes"))
        self.assertEqual((figure.axes[0].get_title(), figure.axes[1].get_ylabel()), ("plain", "peak memory bytes, simulated"))
        for text in figure.axes[0].texts:
            self.assertRegex(text.get_text(), r"^[0-9.]+G$")
        wide = equipoise.sweep({**self.study, "policies": ["plain"]}, {"cluster.memory_GB": [40, 80], "batch.steps": list(range(1, 13))})
        axes = drawn(plot.sweep(wide)).axes[0]
        boxes = sorted((text.get_window_extent() for text in axes.texts if text.get_position()[1] == 0), key=lambda box: box.x0)
        self.assertTrue(all(left.x1 < right.x0 for left, right in zip(boxes, boxes[1:])))

    def test_the_mark_of_the_fastest_is_whole(self):
        label = "fixed-greedy, 8 batches"
        study = {**self.study, "policies": ["plain", {"name": "equipoise", "moves": 200, "label": label}]}
        for grid, wanted in (
            ([16384, 65536], "fixed-greedy, 8 b... (fastest, at 16384)"),
            ([{"documents": 4000, "distribution": "wlb-128k", "seed": 3}, {"documents": 3000, "distribution": "wlb-128k", "seed": 3}], None),
        ):
            key = "trace" if wanted is None else "batch.context_window"
            swept = equipoise.sweep(study, {key: grid})
            figure = plot.sweep(swept)
            self.assert_all_within(figure)
            axes = figure.axes[0]
            text = axes.get_legend().get_texts()[1].get_text()
            frame = swept.frame()
            best = frame.loc[frame["tokens_per_second_per_gpu"].idxmax()]
            self.assertEqual(best["label"], label)
            if wanted:
                self.assertEqual(text, wanted)
            else:
                self.assertTrue(text.startswith(label + "\n"), text)  # a mark without room has lines of its own
                self.assertEqual(text.replace("\n", " "), f"{label} (fastest, at {best[key]})")
            self.assertEqual(axes.get_ylabel(), "tokens/s/GPU, simulated")
        self.assertEqual(plot.sweep(swept, "token_delay_mean").axes[0].get_ylabel(), "token delay mean, simulated")

    def test_a_figure_of_delay_names_what_it_leaves_out(self):
        rows = ["plain", {"name": "ffd", "label": "whole", "pack_length": "32K"}]
        result = equipoise.study({**self.study, "policies": rows}, policies={"none": lambda lengths, options: None}, out=self.folder / "left")
        self.assertEqual([bool(row["tokens_by_delay"]) for row in result.page()["rows"]], [True, False, False])
        figure = plot.delay(result)
        self.assert_all_within(figure)
        self.assertEqual(figure.axes[0].get_xlabel().split("\n")[1:], [
            "not drawn (no delay, since they see all documents first): whole", "not drawn (did not run): none"])
        self.assertNotIn("not drawn", plot.delay(self.result).axes[0].get_xlabel())

    def test_steps_at_the_end_of_data_are_in_the_legend(self):
        frame = self.result.steps()
        self.assertTrue(frame["tail"].any())
        legend = drawn(plot.steps(self.result)).axes[0].get_legend()
        self.assertEqual(legend.get_texts()[-1].get_text(), "end of data: empties what was held")
        self.assertEqual(legend.get_lines()[-1].get_marker(), "x")
        plain = equipoise.study({**self.study, "policies": ["plain"]})
        self.assertEqual([text.get_text() for text in plot.steps(plain).axes[0].get_legend().get_texts()], ["plain"])

    def test_every_dot_of_choices_has_its_value(self):
        policies = ["plain-4d", "lpt", {"name": "wlb", "queues": [1, 2, 3, 4, 5]}, {"name": "fixed-greedy", "label": f"greedy, {LONG}"}]
        found = equipoise.tune(self.study, {**SPACE, "policies": policies})
        figure = drawn(plot.choices(found))
        axes = figure.axes[0]
        dots = [(x, y) for line in axes.lines for x, y in zip(line.get_xdata(), line.get_ydata())]
        self.assertEqual([text.xy for text in axes.texts], dots)
        self.assertTrue(all(text.get_text() for text in axes.texts))
        self.assertGreater(len(dots), 10)
        boxes = [text.get_window_extent() for text in axes.texts]
        for place, box in enumerate(boxes):
            for other in boxes[:place]:
                self.assertFalse(box.overlaps(other))
            for x, y in axes.transData.transform(dots):
                self.assertFalse(box.x0 < x < box.x1 and box.y0 < y < box.y1)
            inside = axes.get_window_extent()
            self.assertTrue(inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1)


if __name__ == "__main__":
    unittest.main(verbosity=2)

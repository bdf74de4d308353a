"""Pages as a user sees them: a real browser that has nothing to complain of.

EQUIPOISE names the program; ctest sets it. EQUIPOISE_SCREENSHOTS: a folder for pictures of the pages, to look at.
"""

import csv
import json
import math
import os
import pathlib
import re
import unittest
import xml.etree.ElementTree

from browser import Browser, Page, find_browser
from pages import HOSTILE, SIZES, Pages
from support import STUDY


@unittest.skipUnless(find_browser(), "no Chromium here (Debian: chromium)")
class InABrowser(Pages):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def open(self, file, size="desktop", dark=False):
        """`size`: a name of SIZES, or a width."""
        page = Page(self.browser, file, width=SIZES.get(size, size), dark=dark)
        self.addCleanup(page.close)
        self.assertEqual(page.complaints(), [])
        self.assertEqual(page.requests(), [])
        self.assertEqual(page.evaluate("document.documentElement.dataset.ready"), "true")
        self.check_names(page)
        return page

    def check_names(self, page):
        """As a screen reader has the page: what takes the focus has a name, a figure or a region one of its own; each mark of a
        figure says something, and only a figure that has marks is told to have them."""
        named = {}
        for node in page.send("Accessibility.getFullAXTree")["nodes"]:
            role = node["role"]["value"]
            if not node["ignored"] and (role in ("image", "region") or any(p["name"] == "focusable" and p["value"]["value"] for p in node["properties"])):
                named.setdefault(role, []).append(node["name"]["value"].strip())
        for role, names in named.items():
            self.assertNotIn("", names, role)
        named["group"] = page.evaluate("[...document.querySelectorAll('[role=group]')].map(n => n.getAttribute('aria-label'))")  # details are none
        for role in ("image", "region", "group"):
            names = named.get(role, [])
            self.assertEqual(len(names), len(set(names)), names)
        charts = page.evaluate("[...document.querySelectorAll('.chart[role=img]')].map(c => [(c.marks || []).filter(([, lines]) => !lines()[0]).length, !!c.marks,"
                               "c.tabIndex === 0, c.hasAttribute('aria-description')])")
        for mute, *walked in charts:
            self.assertEqual((mute, len(set(walked))), (0, 1), charts)

    def beyond_and_notes(self, page):
        """The line of what is beyond the profile's samples, and the notes, below the charts: above them is one paragraph."""
        self.assertEqual(page.evaluate("[...document.querySelectorAll('#verdict p:not(.kicker)')].map(p => p.className)"), ["lead"])
        return page.evaluate("[document.querySelector('#notes .beyond')?.textContent, [...document.querySelectorAll('#notes .notes li')].map(n => n.textContent)]")

    def clipped(self, page, selector):
        """Texts of the figures there that their edges cut."""
        return page.evaluate("[...document.querySelectorAll('%s svg')].flatMap(s => { const own = s.getBoundingClientRect(); return [...s.querySelectorAll('text')].filter(t => {"
                             "const b = t.getBoundingClientRect(); return b.width && (b.left < own.left - 0.5 || b.right > own.right + 0.5); }).map(t => t.textContent); })" % selector)

    def assert_whole(self, file, selector):
        """The table there is as wide as its place, in a phone and on a desk."""
        for width in (390, 1280, 1440):
            wide, room = self.open(file, width).evaluate("(() => { const place = document.querySelector('%s').closest('.scroll'); return [place.scrollWidth, place.clientWidth]; })()" % selector)
            self.assertLessEqual(wide, room, (selector, width))

    def hover(self, page, selector, index=0):
        """What the tip says of a mark under the pointer."""
        x, y = page.evaluate("(() => { const n = document.querySelectorAll('%s')[%d]; n.scrollIntoView({block: 'center'}); const b = n.getBoundingClientRect();"
                             "return [b.left + b.width / 2, b.top + b.height / 2]; })()" % (selector, index))
        page.mouse("mouseMoved", x, y, button="none", clickCount=0)
        return page.evaluate("document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText")

    def photograph(self, page, name):
        if folder := os.environ.get("EQUIPOISE_SCREENSHOTS"):
            pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
            page.screenshot(pathlib.Path(folder) / f"{name}.png")

    def look(self, file, name):
        """Both sizes and both colour schemes: nothing to complain of, nothing wider than the window."""
        for size, width in SIZES.items():
            for dark in (False, True):
                page = self.open(file, size, dark)
                self.assertEqual(page.evaluate("document.documentElement.dataset.theme"), "dark" if dark else "light")
                self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
                small = page.evaluate("Math.min(...[...document.querySelectorAll('svg text')].map(t => parseFloat(getComputedStyle(t).fontSize)))")
                self.assertGreaterEqual(small, 11)
                self.photograph(page, f"{name}-{size}-{'dark' if dark else 'light'}")
        self.assertEqual(page.complaints(), [])
        return self.open(file)

    def test_study(self):
        file = self.page(STUDY)
        page = self.look(file, "study")
        summary = json.loads((file.parent / "summary.json").read_text())
        values = page.evaluate("[...document.querySelectorAll('#throughput svg .value')].map(t => t.textContent)")
        rates = sorted((p["metrics"]["tokens_per_second_per_gpu"] for p in summary["policies"]), reverse=True)
        self.assertEqual([value.split()[0] for value in values], ["%.0f" % rate for rate in rates])
        sections = page.evaluate("[...document.querySelectorAll('section')].map(s => s.id)")
        self.assertEqual(sections, ["verdict", "throughput", "losses", "imbalance", "timeline", "lengths", "memory", "gpus",
                                    "delay", "notes", "provenance"])
        self.assert_whole(file, "#comparison")
        self.assertIn("--fidelity op", page.evaluate("document.getElementById('losses').textContent"))
        self.assertEqual(page.evaluate("[...document.querySelectorAll('section')].filter(s => !s.querySelector('p, svg, canvas, table')).length"), 0)
        beyond, notes = self.beyond_and_notes(page)
        self.assertLessEqual(set(self.notes_of(summary)), set(notes))
        self.assertEqual(beyond, "Kernel time beyond the profile’s samples: " + ", ".join(f"{p['label']} {self.share(p)}" for p in summary["policies"]) + ".")
        for chart in page.evaluate("[...document.querySelectorAll('.chart[role=img]')].map(c => [c.getAttribute('aria-label'), c.querySelectorAll('svg, canvas').length])"):
            self.assertTrue(chart[0])
            self.assertEqual(chart[1], 1, chart)

    @staticmethod
    def share(row):
        share = row["provenance"]["beyond_samples_share"]
        return "less than 1 %" if 0 < share < 0.01 else f"{math.floor(100 * share + 0.5)} %"  # a tie goes up, as JavaScript rounds

    @staticmethod
    def notes_of(summary):
        return [note["text"] for part in [summary["study"], *summary["policies"]] for note in part.get("notes", [])]

    def test_memory_of_one_stage_is_a_bar_a_row(self):
        file = self.page(dict(STUDY, parallel=dict(STUDY["parallel"], pipeline=1), policies=["plain-4d", "fixed-greedy", "wlb"]))
        data = self.check_file(file).data
        for width in (400, 1280):
            for dark in (False, True):
                page = self.open(file, width, dark)
                self.photograph(page, f"one-stage-{width}-{'dark' if dark else 'light'}")
                self.assertEqual(page.evaluate("document.querySelectorAll('#memory .chart').length"), 1)
                bars = page.evaluate("[...document.querySelectorAll('#memory svg g.row')].map(g => [g.querySelector('text').textContent, g.querySelectorAll('text')[1].textContent, g.querySelectorAll('rect').length])")
                own = [(row["label"], row["memory"]["stages"][0]["parts"]) for row in data["rows"]]
                self.assertEqual(bars, [[label, f"{sum(parts.values()) / 2**30:.1f} GiB", sum(v > 0 for v in parts.values())] for label, parts in own])
                self.assertEqual(page.evaluate("document.querySelectorAll('#memory line.reference').length"), 3)
                self.assertEqual(self.clipped(page, "#memory"), [])

    def test_controls(self):
        file = self.page(STUDY)
        page = self.open(file)
        background = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(background)
        page.evaluate("document.getElementById('theme').click()")
        self.assertNotEqual(page.evaluate(background), light)
        self.assertEqual(page.evaluate("document.getElementById('theme').textContent"), "Light")
        marks = "document.querySelectorAll('#timeline svg')[1].outerHTML"
        before = page.evaluate(marks)
        page.evaluate("{const s = document.querySelectorAll('#timeline .controls')[1].querySelectorAll('select')[1];"
                      "s.selectedIndex = 1; s.dispatchEvent(new Event('change'))}")
        page.settle()
        self.assertNotEqual(page.evaluate(marks), before)
        page.evaluate("{const s = document.querySelectorAll('#timeline .pipeline')[0]; s.focus();"
                      "s.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}))}")
        tip = page.evaluate("document.getElementById('tip').innerText")
        self.assertRegex(tip, r"(?s)F0.*tokens in .*documents")
        self.assertEqual(page.complaints(), [])

    def shown(self, page, panel=0):
        """First and last second of a pipeline that is shown, by the ticks of its axis."""
        page.settle()
        page.settle()
        return page.evaluate("(() => { const s = document.querySelectorAll('#timeline .pipeline svg')[%d]; const t = [...s.querySelectorAll('.axis .tick')].map(t =>"
                             "[t.getBoundingClientRect().left, Number(t.textContent)]); const [a, b] = [t[0], t[t.length - 1]], r = (b[1] - a[1]) / (b[0] - a[0]);"
                             "const box = s.getBoundingClientRect(); return [a[1] - (a[0] - box.left - 26) * r, b[1] + (box.right - 12 - b[0]) * r]; })()" % panel)

    def middle_of_pipeline(self, page):
        return page.evaluate("(() => { const s = document.querySelector('#timeline .pipeline'); s.scrollIntoView({block: 'center'}); const b = s.getBoundingClientRect();"
                             "return [b.left + b.width / 2, b.top + 20]; })()")

    def test_one_finger_pans_a_pipeline_or_scrolls_the_page(self):
        page = self.open(self.page(STUDY), "phone")
        page.send("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
        page.evaluate("document.querySelector('#timeline button[aria-label=\"Zoom in\"]').click()")
        x, y = self.middle_of_pipeline(page)
        zoomed = self.shown(page)
        # A tap says what the op is. (Right after a drag the browser takes none.)
        at = page.evaluate("(() => { const wide = [...document.querySelectorAll('#timeline .pipeline')[0].querySelectorAll('rect.op')].map(n => n.getBoundingClientRect())"
                             ".reduce((a, b) => (b.width > a.width ? b : a)); return [wide.left + wide.width / 2, wide.top + wide.height / 2]; })()")
        page.touch("touchStart", at)
        page.touch("touchEnd")
        said = page.evaluate("new Promise(done => { let left = 300; const look = () => (!tip.hidden || left-- === 0 ? done(tip.innerText) : requestAnimationFrame(look)); look(); })")
        self.assertRegex(said, r"(?s)[FBDRW]\d+: .*tokens in")
        page.touch("touchStart", (x, y))
        for by in range(10, 90, 10):
            page.touch("touchMove", (x - by, y))
        dragged = self.shown(page)  # while the finger is down
        page.touch("touchEnd")
        width = page.evaluate("document.querySelector('#timeline .pipeline svg').clientWidth") - 38
        span = zoomed[1] - zoomed[0]
        self.assertAlmostEqual(dragged[0] - zoomed[0], span * 80 / width, delta=span * 20 / width)  # 15 pixels are slack before a drag
        self.assertAlmostEqual(dragged[1] - dragged[0], span, delta=span / 20)  # to the pixel of a tick
        self.assertEqual([round(v, 6) for v in self.shown(page)], [round(v, 6) for v in dragged])
        self.assertEqual([round(v, 6) for v in self.shown(page, 1)], [round(v, 6) for v in dragged])
        # Up and down the page goes, and the pipeline stays; a finger after that starts anew.
        top = page.evaluate("scrollY")
        page.touch("touchStart", (x, y))
        for by in range(10, 130, 10):
            page.touch("touchMove", (x, y - by))
        page.touch("touchEnd")
        self.assertEqual([round(v, 6) for v in self.shown(page)], [round(v, 6) for v in dragged])
        self.assertGreater(page.evaluate("scrollY"), top + 50)
        x, y = self.middle_of_pipeline(page)
        page.touch("touchStart", (x, y))
        for by in range(10, 90, 10):
            page.touch("touchMove", (x + by, y))
        page.touch("touchEnd")
        self.assertAlmostEqual(self.shown(page)[0], zoomed[0], delta=span * 25 / width)
        self.assertEqual(page.complaints(), [])

    def test_pipelines_zoom_and_pan(self):
        page = self.open(self.page(STUDY))
        begin, end = self.shown(page)
        self.assertAlmostEqual(begin, 0, delta=end / 50)
        boxes = page.evaluate("document.querySelectorAll('#timeline .pipeline svg')[0].querySelectorAll('rect.op').length")
        numbers = "[...document.querySelectorAll('#timeline .pipeline svg')[0].querySelectorAll('text.op')].map(t => t.textContent)"
        self.assertIn("0", page.evaluate(numbers))
        x, y = self.middle_of_pipeline(page)
        page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-300, modifiers=2)  # with Ctrl
        zoomed = self.shown(page)
        self.assertAlmostEqual(zoomed[1] - zoomed[0], (end - begin) / 2.718, delta=(end - begin) / 20)
        self.assertLessEqual(page.evaluate("document.querySelectorAll('#timeline .pipeline svg')[0].querySelectorAll('rect.op').length"), boxes)
        self.assertEqual([round(v, 6) for v in zoomed], [round(v, 6) for v in self.shown(page, 1)])  # both panels
        page.mouse("mousePressed", x, y)
        page.mouse("mouseMoved", x + 150, y)
        page.mouse("mouseReleased", x + 150, y)
        moved = self.shown(page)
        self.assertLess(moved[0], zoomed[0])
        self.assertAlmostEqual(moved[1] - moved[0], zoomed[1] - zoomed[0], delta=end / 100)
        page.evaluate("document.querySelector('#timeline .pipeline').focus()")
        page.key("0")
        self.assertAlmostEqual(self.shown(page)[1], end, delta=end / 50)
        page.key("+")
        whole = self.shown(page)
        self.assertAlmostEqual(whole[1] - whole[0], (end - begin) / 2, delta=end / 40)
        x, y = self.middle_of_pipeline(page)
        page.evaluate("document.querySelector('#timeline button[aria-label=\"Show the whole step\"]').click()")
        page.send("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
        page.touch("touchStart", (x - 30, y), (x + 30, y))
        for apart in (45, 60, 90, 120):
            page.touch("touchMove", (x - apart, y), (x + apart, y))
        page.touch("touchEnd")
        pinched = self.shown(page)
        self.assertAlmostEqual(pinched[1] - pinched[0], (end - begin) / 4, delta=(end - begin) / 12)
        self.assertEqual(page.complaints(), [])

    def test_figures_are_saved_and_walked(self):
        file = self.page(STUDY)
        page = self.open(file)
        summary = json.loads((file.parent / "summary.json").read_text())
        name, text = page.saved("document.querySelector('#losses .chart + .tools button').click()")
        self.assertTrue(name.endswith(".svg"), name)
        drawing = xml.etree.ElementTree.fromstring(text)
        self.assertEqual(drawing.tag, "{http://www.w3.org/2000/svg}svg")
        self.assertNotIn("var(", text)
        self.assertIn(STUDY["policies"][0], text)
        name, text = page.saved("[...document.querySelectorAll('#throughput button')].find(b => b.textContent === 'CSV').click()")
        rows = list(csv.reader(text.splitlines()))
        self.assertEqual([row[0] for row in rows[1:]], [policy["label"] for policy in summary["policies"]])
        name, _ = page.saved("document.querySelector('#gpus .chart + .tools button').click()")
        self.assertTrue(name.endswith(".png"), name)
        unnamed = page.evaluate("[...document.querySelectorAll('button, select, input, .chart, [tabindex]')].filter(n => !(n.getAttribute('aria-label') || n.textContent || n.closest('label'))).length")
        self.assertEqual(unnamed, 0)
        page.evaluate("document.querySelector('#imbalance .chart').focus()")
        page.key("ArrowRight")
        self.assertRegex(page.evaluate("document.getElementById('tip').innerText"), r"(?s)step 0.*slowest / mean")
        page.key("ArrowRight")
        self.assertRegex(page.evaluate("document.getElementById('tip').innerText"), r"step 1")

    def test_without_the_chart_library_there_are_tables(self):
        file = self.page(STUDY)
        text, count = re.subn(r"<script>[^<]*d3js.org.*?</script>", "", file.read_text(), flags=re.DOTALL)
        if count == 0:
            self.skipTest("built without D3: every test here is of tables")
        file.write_text(text)
        page = self.open(file)
        self.assertEqual(page.evaluate("document.querySelectorAll('svg, canvas').length"), 0)
        folded = page.evaluate("[...document.querySelectorAll('details')].filter(d => d.querySelector('table') && !d.open).length")
        self.assertEqual(folded, 0)
        self.assertGreater(page.evaluate("document.querySelectorAll('#memory table, #losses table, #lengths table').length"), 2)
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), SIZES["desktop"])

    def test_op_fidelity(self):
        file = self.page(STUDY, "--fidelity", "op")
        page = self.look(file, "op")
        paths = [json.loads((file.parent / "critical_path" / f"{policy}.json").read_text())["steps"][0] for policy in ("plain-4d", "wlb")]
        names = {"compute": "computation", "tp": "TP communication", "cp": "CP communication", "pp": "transfers between stages", "dp": "gradient and parameter exchange"}
        self.assertEqual(page.evaluate("[...document.querySelectorAll('#path .legend li')].map(n => n.textContent)"), list(names.values()))
        # A bar for each policy, of its kinds of op in one order, as long as its step relative to the longest.
        longest = max(path["step_seconds"] for path in paths)
        bars = page.evaluate("[...document.querySelectorAll('#path svg g.row')].map(g => [...g.querySelectorAll('rect')].map(r => r.getBoundingClientRect()).map(b => [b.left, b.right]))")
        full = max(bar[-1][1] for bar in bars) - bars[0][0][0]
        for path, bar in zip(paths, bars):
            self.assertEqual(len(bar), len(names))
            for axis, (left, right) in zip(names, bar):
                self.assertAlmostEqual(right - left, full * path["by_axis"][axis] / longest, delta=1.5)
        self.assertEqual(self.hover(page, "#path svg g.row rect", 2).splitlines(), [
            "CP communication", f"plain-4d: {1e3 * paths[0]['by_axis']['cp']:.1f} ms, {100 * paths[0]['by_axis']['cp'] / paths[0]['step_seconds']:.1f} % of the step"])
        cells = page.evaluate("[...document.querySelectorAll('#path table')].map(t => [...t.tBodies[0].rows].map(r => [...r.cells].map(c => c.textContent)))")
        self.assertEqual(cells[0], [[policy, *("%.4f" % s for s in (path["step_seconds"], *(path["by_axis"][axis] for axis in names)))] for policy, path in zip(("plain-4d", "wlb"), paths)])
        free = [[policy, names.get(what, what.replace("_", " ")), "%.4f" % found["step_seconds"], "%.3fx" % found["speedup"]]
                for policy, path in zip(("plain-4d", "wlb"), paths) for what, found in path["if_free"].items()]
        self.assertEqual(sorted(cells[1]), sorted(free))

    def test_kinds_of_op_next_to_a_log(self):
        page = self.look(self.validation(ops=(("attention", 0.004), ("gemm", 0.02))), "validation-ops")
        ops = json.loads(page.evaluate("document.getElementById('data').textContent"))["validation"]["ops"]
        self.assertEqual({op["op"] for op in ops}, {"attention", "gemm"})
        signed = lambda share: ("+" if share >= 0 else "−") + f"{abs(100 * share):.1f} %"
        dots = page.evaluate("[...document.querySelectorAll('#ops svg circle')].map(c => [c.parentNode.querySelector('text').textContent, c.style.fill])")
        self.assertEqual(dots, [[op["op"], "var(--p0)" if op["within_limit"] else "var(--bad)"] for op in ops])
        self.assertRegex(self.hover(page, "#ops svg circle"), "(?s)^%s.*%s of " % (ops[0]["op"], re.escape(signed(ops[0]["error"]))))
        rows = page.evaluate("[...document.querySelectorAll('#ops tbody tr')].map(r => [r.cells[0].textContent, r.cells[4].textContent])")
        self.assertEqual(rows, [[op["op"], signed(op["error"])] for op in ops])
        self.assertIn(signed(ops[1]["error"]), page.evaluate("document.querySelector('#ops .chart').getAttribute('aria-label')"))

    def test_hostile_names(self):
        study = dict(STUDY, name=HOSTILE, policies=[{"name": "plain-4d", "label": HOSTILE}, "wlb"], baseline=HOSTILE)
        page = self.open(self.page(study))
        self.assertEqual(page.evaluate("document.images.length"), 0)
        self.assertEqual(page.evaluate("document.title"), HOSTILE)
        self.assertTrue(page.evaluate("document.querySelector('#losses svg').textContent.includes('</script><img')"))

    def test_rows_that_do_not_run(self):
        self.look(self.page(dict(STUDY, cluster={"memory_GB": 4})), "oom")

    def test_sweep(self):
        file = self.page(STUDY, "--sweep", "batch.context_window=8K,16K", "--sweep", "parallel.context=1,2")
        page = self.look(file, "sweep")
        cases = json.loads(page.evaluate("document.getElementById('data').textContent"))["cases"]
        cells = "[...document.querySelectorAll('#sweep svg g.cell')].map(g => [...g.querySelectorAll('text')].map(t => t.textContent))"
        shown = page.evaluate(cells)
        self.assertEqual(len(shown), 4)
        self.assertEqual(page.evaluate("document.querySelector('h1').textContent"), self.finding(cases) + ", on 4 or 8 GPUs")
        for case in cases:  # a case is nobody's where intervals overlap
            self.assertIn(case["winner"] + ("" if case["significant"] else "?"), [cell[0] for cell in shown])
        choose = "{const s = [...document.querySelectorAll('#%s select')].find(s => s.closest('label').textContent.startsWith('%s')); s.value = '%s'; s.dispatchEvent(new Event('change'))}"
        page.evaluate(choose % ("sweep", "View", "lines"))
        page.settle()
        self.assertEqual(page.evaluate("document.querySelectorAll('#sweep svg path[d]:not(.domain)').length"), 4 * len(STUDY["policies"]))
        column = "[...document.querySelectorAll('#cases tbody tr')].filter(r => !r.hidden).map(r => r.cells[%d].textContent)"
        page.evaluate("[...document.querySelectorAll('#cases th button')].find(b => b.textContent === 'tokens/s/GPU').click()")
        rates = [float(text) for text in page.evaluate(column % 5)]
        self.assertEqual(rates, sorted(rates, reverse=True))
        self.assertEqual(page.evaluate("document.querySelector('#cases th[aria-sort]').getAttribute('aria-sort')"), "descending")
        page.evaluate(choose % ("cases", "policy", "wlb"))
        self.assertEqual(page.evaluate(column % 3), ["wlb"] * 4)
        page.evaluate("{const i = document.querySelector('#cases input'); i.value = '16k'; i.dispatchEvent(new Event('input'))}")
        self.assertEqual(page.evaluate(column % 0), ["16K"] * 2)
        self.assertIn("2 of 8 rows", page.evaluate("document.querySelector('#cases [role=status]').textContent"))
        _, text = page.saved("[...document.querySelectorAll('#cases button')].find(b => b.textContent === 'CSV').click()")
        self.assertEqual(len(text.splitlines()), 3)
        links = page.evaluate("[...document.querySelectorAll('#cases a')].map(a => decodeURIComponent(a.pathname))")
        for link in links:
            self.assertTrue(pathlib.Path(link).exists(), link)
        beyond, notes = self.beyond_and_notes(page)
        most = {p["label"]: max((row for case in cases for row in case["rows"] if row["label"] == p["label"]), key=lambda row: row["beyond_samples"]) for p in cases[0]["rows"]}
        self.assertEqual(beyond, "Kernel time beyond the profile’s samples: " + ", ".join(f"{label} up to {100 * row['beyond_samples']:.0f} %" for label, row in most.items()) + ".")
        self.assertEqual(len(notes), len({note["text"] for case in cases for note in case["notes"]}))
        for case in cases:  # its own with its keys, what all have alone
            summary = json.loads((file.parent / case["folder"] / "summary.json").read_text())
            self.assertEqual(case["notes"], summary["study"]["notes"])
            for note in case["notes"]:
                with_it = [other for other in cases if note in other["notes"]]
                self.assertIn(note["text"] if len(with_it) == len(cases) else ", ".join(" ".join(other["assignments"]) for other in with_it) + ": " + note["text"], notes)

    @staticmethod
    def finding(cases):
        """By how much the second value of each key moves the fastest row, against the first, over the values of the other key."""
        rates = {tuple(text.split("=")[1] for text in case["assignments"]): max(row["tokens_per_second_per_gpu"] for row in case["rows"]) for case in cases}
        said = []
        for place, assignment in enumerate(cases[0]["assignments"]):
            key, first = assignment.split("=")
            other = next(values[place] for values in rates if values[place] != first)
            moved = sorted(rate / rates[tuple(first if i == place else v for i, v in enumerate(values))] - 1 for values, rate in rates.items() if values[place] == other)
            digits = 1 if max(map(abs, moved)) < 0.1 else 0
            low, high = moved[0], moved[-1]
            verb, low, high = ("adds", low, high) if low >= 0 else ("costs", -high, -low)
            span = " to ".join(dict.fromkeys(f"{100 * share:.{digits}f}" for share in (low, high)))
            name = {"parallel.context": "CP"}.get(key, key.rsplit(".", 1)[-1])
            said.append((max(map(abs, moved)), f"{name} {other} {verb} {span} % a GPU against {first}"))
        return "; ".join(text for size, text in sorted(said, key=lambda one: -one[0]) if size >= 0.01)

    def test_search(self):
        page = self.look(self.tune(), "tune")
        found = json.loads((self.folder / "tuned" / "tune.json").read_text())
        values = page.evaluate("[...document.querySelectorAll('#ranking svg .value')].map(t => t.textContent.split(/\\s/)[0])")
        rates = [row["metrics"]["tokens_per_second_per_gpu"] for row in found["ranking"] + [found["baseline"]]]
        self.assertEqual(values, ["%.0f" % rate for rate in rates])
        degrees = {tuple(layout[key] for key in ("parallel.tensor", "parallel.context", "parallel.data")) for layout in found["layouts"]}
        self.assertEqual(page.evaluate("document.querySelectorAll('#layouts svg g.cell').length"), len(degrees))
        ran = [one for one in found["tried"] if one["outcome"] == "ok"]
        dots = page.evaluate("[...document.querySelectorAll('#frontier .chart')].map(c => c.querySelectorAll('circle').length)")
        self.assertEqual(dots[-1], len(ran))
        self.assertEqual(page.evaluate("[...document.querySelectorAll('section')].map(s => s.id)"),
                         ["verdict", "ranking", "layouts", "frontier", "choices", "what_if", "candidates", "notes", "provenance"])
        for width in (360, 400, 430):
            lines = self.open(self.folder / "tuned" / "report.html", width).evaluate("[...document.querySelectorAll('#frontier code')].map(n => [n.textContent, n.getClientRects().length])")
            self.assertEqual(lines, [["--max-delay", 1]])
        fastest = 1 / min(one["seconds_per_token"] for one in ran) / found["study"]["gpus"]
        self.assertIn("%.0f" % fastest, page.evaluate("document.querySelector('#frontier table').textContent"))
        shares = page.evaluate("[...document.querySelectorAll('#ranking tbody tr')].map(r => r.cells[r.cells.length - 1].textContent)")
        self.assertEqual(shares, ["%.1f" % (100 * row["provenance"]["beyond_samples_share"]) for row in found["ranking"]])

    def test_a_search_has_its_notes_below(self):
        page = self.look(self.tune(gpus=16, batch={"oversize": "truncate"}), "tune-notes")
        found = json.loads((self.folder / "tuned" / "tune.json").read_text())
        beyond, notes = self.beyond_and_notes(page)
        sides = {"the winner": found["ranking"][0], "the study’s baseline": found["baseline"]}
        self.assertEqual(beyond, "Kernel time beyond the profile’s samples: " + ", ".join(f"{name} {self.share(row)}" for name, row in sides.items()) + ".")
        own = {name: [note["text"] for note in row["study_notes"] + row.get("notes", [])] for name, row in sides.items()}
        self.assertIn("batch.oversize has no effect without batch.max_length", notes)  # of the study, and so of both
        self.assertTrue([note for note in notes if note.startswith("the winner: network ")], notes)  # the baseline is on one node
        self.assertEqual(sorted(notes), sorted({note if all(note in other for other in own.values()) else f"{name}: {note}" for name, all_ in own.items() for note in all_}))

    def test_a_search_says_what_does_not_fit(self):
        file = self.tune(memory_GB=14)
        page = self.look(file, "tune-oom")
        found = json.loads((file.parent / "tune.json").read_text())
        reasons = {one["reason"] for one in found["tried"] if one["outcome"] == "oom"}
        self.assertTrue(reasons)
        shown = page.evaluate("document.querySelector('#layouts table').textContent")
        self.assertTrue(any(reason in shown for reason in reasons), shown)
        for width in (400, 1280):
            page = self.open(file, width)
            # A cell's word is short enough for the narrowest cell; what it stands for is above the maps and under the pointer.
            cells = page.evaluate("[...document.querySelectorAll('#layouts svg g.cell')].map(g => g.querySelector('text')).map(t => [t.textContent, t.getComputedTextLength()])")
            self.assertIn("memory", [word for word, _ in cells])
            self.assertLess(max(wide for _, wide in cells), 52)
            self.assertIn("memory: out of memory", page.evaluate("document.querySelector('#layouts .words').textContent"))
            self.assertIn("memory: out of memory", self.hover(page, "#layouts svg g.cell rect", [word for word, _ in cells].index("memory")))
            # Each dot of a choice has its name, no grid line runs through a text and no edge cuts one.
            self.assertEqual(page.evaluate("[...document.querySelectorAll('#choices svg g.row')].filter(g => g.querySelectorAll('text.dot').length !== g.querySelectorAll('circle').length).length"), 0)
            self.assertEqual(self.clipped(page, "#choices"), [])
            crossed = page.evaluate("(() => { const boxes = (what) => [...document.querySelectorAll('#choices svg ' + what)].map(n => n.getBoundingClientRect());"
                                    "return boxes('text').filter(t => boxes('line').some(l => l.left < t.right && l.right > t.left && l.top < t.bottom - 2 && l.bottom > t.top + 2)).length; })()")
            self.assertEqual(crossed, 0)

    def test_sweep_of_three_keys(self):
        file = self.page(STUDY, "--sweep", "batch.context_window=8K,16K", "--sweep", "parallel.context=1,2", "--sweep", "parallel.virtual_pipeline=1,2")
        page = self.look(file, "sweep-3")
        self.assertEqual(page.evaluate("document.querySelectorAll('#sweep svg path.case').length"), 8 * len(STUDY["policies"]))
        for width in (360, 400, 1280):
            boxes = self.open(file, width).evaluate("[...document.querySelectorAll('#sweep svg > text')].map(t => t.getBoundingClientRect()).map(b => [b.left, b.right, b.top, b.bottom])")
            self.assertEqual(len(boxes), 4)
            for i, a in enumerate(boxes):
                for b in boxes[:i]:
                    self.assertFalse(a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3], (width, boxes))

    def test_a_gap_of_a_sweep_says_why(self):
        file = self.page(STUDY, "--sweep", "parallel.tensor=1,5,2")
        page = self.look(file, "sweep-gap")
        reasons = [row["reason"] for case in json.loads(page.evaluate("document.getElementById('data').textContent"))["cases"] for row in case["rows"] if row["reason"]]
        self.assertEqual(len(reasons), 2)
        self.assertNotIn("map", page.evaluate("document.getElementById('sweep').innerText"))  # one key has none
        for i, policy in enumerate(("plain-4d", "wlb")):
            said = self.hover(page, "#sweep svg text.gap", i)
            for part in (f"{policy}, parallel.tensor 5", "refused", reasons[i]):
                self.assertIn(part, said)
        page.evaluate("document.querySelector('#sweep .chart').focus()")
        for _ in range(2 * 2 + 1):
            page.key("ArrowRight")
        self.assertIn(reasons[0], page.evaluate("document.getElementById('tip').innerText"))
        shown = page.evaluate("[...document.querySelectorAll('#cases tbody tr')].map(r => r.cells[r.cells.length - 1].textContent)")
        self.assertEqual(shown, ["–", "–", *reasons, "–", "–"])

    def test_words_of_a_sweep_are_whole(self):
        label = "fixed-greedy-of-two"
        study = dict(STUDY, batch=dict(STUDY["batch"], steps=8), policies=[{"name": "plain-4d", "label": label}, "wlb"], baseline=label)
        file = self.page(study, "--sweep", "batch.context_window=4K,8K,12K,16K,20K,24K", "--sweep", "parallel.tensor=1,5")
        text = file.read_text()
        self.assertIn('"significant":', text)
        text = re.sub(r'"significant": ?true', '"significant":false', re.sub(r'"winner": ?"wlb"', f'"winner":"{label}"', text))
        file.write_text(text.replace('"refused"', '"unplaceable"'))
        for width in (400, 1280):
            for dark in (False, True):
                page = self.open(file, width, dark)
                self.photograph(page, f"sweep-words-{width}-{'dark' if dark else 'light'}")
                names = page.evaluate("[...document.querySelectorAll('#sweep svg g.cell')].map(g => g.querySelector('text').textContent)"
                                      ".filter(name => name !== 'none')")
                self.assertEqual(len(names), 6)
                self.assertEqual([name for name in names if not re.fullmatch("fix.*[?]", name)], [], (width, names))
                rows = page.evaluate("[...document.querySelectorAll('#cases tbody tr')].filter(r => r.cells[4].textContent === 'unplaceable').map(r => { const words = document.createRange();"
                                     "words.selectNodeContents(r.cells[4]); return [words.getClientRects().length, r.getBoundingClientRect().height, r.cells[r.cells.length - 1].getBoundingClientRect().right]; })")
                self.assertEqual(len(rows), 12)
                for lines, height, right in rows:
                    self.assertEqual(lines, 1, width)  # no word is broken
                    self.assertLessEqual(right, width)  # the reason is inside of the window, or below the table
                    if width == 400:
                        self.assertLess(height, 80)
                reasons = page.evaluate("[...document.querySelectorAll('#cases .reason')].map(p => p.textContent)")
                self.assertEqual(len(reasons), 12)

    def test_comparison(self):
        before, after = self.two()
        file = self.folder / "changes.html"
        self.ok("report", before, after, "--out", file)
        page = self.look(file, "comparison")
        self.assertEqual(page.evaluate("document.querySelectorAll('#changes svg .whisker').length"), 2)
        self.assertIn("plain-4d", page.evaluate("document.querySelector('#changes .chart').getAttribute('aria-label')"))
        self.assertEqual(page.evaluate("document.querySelector('#changes svg text.name').textContent"), "second over first, tokens/s/GPU; lines are 95 % intervals")
        self.assert_whole(file, "#changes-table")
        text = file.read_text()
        self.assertIn("0.00 -&gt; 0.00", text)
        for key, value in (("ratio", 1.003), ("low", 1.0), ("high", 1.01)):
            text = re.sub(r'"%s": ?[0-9.]+' % key, f'"{key}":{value}', text)  # a tick at the left edge
        edges = self.write("edges.html", text)
        for width in (400, 1280):
            other = self.open(edges, width)
            self.assertIn("0.990x", other.evaluate("document.querySelector('#changes svg').textContent"))
            self.assertEqual(self.clipped(other, "#changes"), [], width)
        beyond, notes = self.beyond_and_notes(page)
        summaries = [json.loads((folder / "summary.json").read_text()) for folder in (before, after)]
        own = [self.notes_of(summary) for summary in summaries]
        both = [note for note in own[0] if note in own[1]]
        self.assertTrue(both)
        self.assertTrue([note for note in own[0] if note not in both])
        self.assertEqual(sorted(notes), sorted(set(both + [f"only the {side}: {note}" for side, all_ in zip(("first", "second"), own) for note in all_ if note not in both])))
        for row in summaries[0]["policies"]:
            other = next((p for p in summaries[1]["policies"] if p["label"] == row["label"]), None)
            self.assertIn(f"{row['label']} {self.share(row)}" if other and self.share(other) == self.share(row) else f"{row['label']} in the first {self.share(row)}", beyond)

    def test_a_forged_result_has_a_page_or_is_refused(self):
        before, after = self.two()
        summary = json.loads((before / "summary.json").read_text())
        for notes in (7, [3, None, {"a": 1}], {"a": "b"}, "text"):
            summary["study"]["notes"] = summary["policies"][0]["notes"] = summary["policies"][0]["provenance"]["beyond_samples_share"] = notes
            (before / "summary.json").write_text(json.dumps(summary))
            if isinstance(notes, list):
                self.refused("report", before, after, "--out", self.folder / "changes.html", says=["expected what `equipoise study --out` writes"])
                continue
            self.ok("report", before, after, "--out", self.folder / "changes.html")
            self.assertEqual(len(self.open(self.folder / "changes.html").evaluate("[...document.querySelectorAll('#changes-table tbody tr')]")), 3)

    def test_validation(self):
        page = self.look(self.validation(), "validation")
        values = page.evaluate("[...document.querySelectorAll('#steps svg .value')].map(t => t.textContent)")
        self.assertEqual(values, ["\u22122.0 %"] * len(STUDY["policies"]))
        text = page.evaluate("document.getElementById('report').innerText")
        self.assertIn("single steps 2.0 % on the mean, the farthest -2.0 %", text)
        self.assertNotIn("Failed", text)
        found = json.loads(page.evaluate("document.getElementById('data').textContent"))["validation"]["policies"]
        fast, slow = (pick(found, key=lambda p: p["measured_speedup"]) for pick in (max, min))
        self.assertEqual(page.evaluate("document.querySelector('h1').textContent"),
                         f"{fast['label']} is simulated {fast['predicted_speedup'] / slow['predicted_speedup']:.2f}x as fast as {slow['label']} and was measured "
                         f"{fast['measured_speedup'] / slow['measured_speedup']:.2f}x as fast")
        values = page.evaluate("[...document.querySelectorAll('#speedups svg .value')].map(t => t.textContent)")
        self.assertEqual(values, [f"{p['predicted_speedup']:.2f}x, measured {p['measured_speedup']:.2f}x" for p in found[1:]])
        self.assertNotRegex(text, r"\d%")
        noise = page.evaluate("JSON.parse(document.getElementById('data').textContent).validation.policies.some(p => p.noise_seconds)")
        self.assertIn("measured, with its noise" if noise else "measured", page.evaluate("[...document.querySelectorAll('#steps .legend li')].map(n => n.textContent)"))
        beyond, notes = self.beyond_and_notes(page)
        summary = json.loads((self.folder / "own" / "summary.json").read_text())
        self.assertEqual(beyond, "Kernel time beyond the profile’s samples: " + ", ".join(f"{p['label']} {self.share(p)}" for p in summary["policies"]) + ".")
        self.assertTrue(summary["study"]["notes"])
        self.assertLessEqual(set(self.notes_of(summary)), set(notes))
        steps = json.loads(page.evaluate("document.getElementById('data').textContent"))["validation"]["policies"]
        self.assertEqual(page.evaluate("document.querySelectorAll('#by_step svg circle').length"), sum(len(p["steps"]) for p in steps))


if __name__ == "__main__":
    unittest.main()

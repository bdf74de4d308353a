"""report.html as a user sees it: one file that asks nothing of a network, escaped names, the figures of summary.json,
and a real browser that has nothing to complain of.

EQUIPOISE names the program; ctest sets it. EQUIPOISE_SCREENSHOTS: a folder for pictures of the pages, to look at.
"""

import csv
import html.parser
import json
import os
import pathlib
import re
import unittest

from browser import Browser, Page, find_browser
from support import STUDY, Case

HOSTILE = '</script><img src=x onerror="document.title=1"><!--<script>&amp;\'"'
LIMIT_BYTES = 3_000_000
SIZES = {"phone": 360, "desktop": 1280}


class Outline(html.parser.HTMLParser):
    """Tags of a page, its text outside scripts and styles, and the data that it draws."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.blocks, self.inside = [], "", {}, None
        self.feed(text)
        self.data = json.loads(self.blocks["data"])

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self.inside = dict(attributes).get("id", tag)

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self.inside = None

    def handle_data(self, text):
        if self.inside:
            self.blocks[self.inside] = self.blocks.get(self.inside, "") + text
        else:
            self.text += text

    def count(self, tag):
        return sum(name == tag for name, _ in self.tags)


class Pages(Case):
    """Pages of each kind, and what holds of every file."""

    def page(self, study, *arguments):
        out = self.folder / "out"
        self.ok("study", self.write("study.json", study), "--out", out, "--quiet", *arguments)
        return out / "report.html"

    def check_file(self, file):
        text = file.read_text()
        self.assertLess(len(text.encode()), LIMIT_BYTES)
        self.assertIsNone(re.search(r"""\b(src|href)\s*=\s*["']?\s*(http|//)""", text, re.IGNORECASE))
        outline = Outline(text)
        for _, attributes in outline.tags:
            self.assertFalse({"src", "srcset", "action"} & attributes.keys())
        return outline

    def tune(self):
        out = self.folder / "tuned"
        space = {"parallel.tensor": [1, 2], "parallel.context": [1, 2], "policies": ["plain-4d", {"name": "wlb", "queues": [1, 2], "shard": "adaptive"}]}
        self.ok("tune", self.write("study.json", STUDY), "--space", self.write("space.json", space), "--gpus", 4, "--out", out, "--quiet")
        return out / "report.html"

    def validation(self):
        """Of a log that says what the simulator says, but 2 % slower."""
        study = self.write("study.json", STUDY)
        self.ok("study", study, "--out", self.folder / "own", "--quiet")
        with open(self.folder / "own" / "steps.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        log = "policy,step,step_seconds\n" + "".join(f"{row['policy']},{row['step']},{float(row['step_seconds']) * 1.02}\n" for row in rows)
        out = self.folder / "validated"
        self.ok("validate", study, "--measured", self.write("measured.csv", log), "--out", out)
        return out / "report.html"


class Report(Pages):
    def test_it_has_the_figures_of_summary_json(self):
        file = self.page(STUDY)
        outline = self.check_file(file)
        summary = json.loads((file.parent / "summary.json").read_text())
        summary.pop("receipt")  # of the file alone
        for policy in summary["policies"]:
            policy.pop("gpu_compute_seconds", None)
            self.assertRegex(outline.text, r"\b%.0f\b" % policy["metrics"]["tokens_per_second_per_gpu"])
            self.assertIn(policy["label"], outline.text)
        self.assertEqual(outline.data["summary"], summary)
        best = max(summary["policies"], key=lambda p: p["metrics"]["tokens_per_second_per_gpu"])
        self.assertEqual(outline.data["winner"], best["label"])
        self.assertRegex(outline.text, re.escape(best["label"]) + "(, the baseline,)? trains fastest")
        table = self.ok("study", self.folder / "study.json", "--quiet")
        for part in re.search(r"is fastest; it is limited by (.*?)(; .*)?\.\n", table).group(1).split(", "):
            self.assertIn(part, outline.text)

    def test_what_it_draws_adds_up(self):
        file = self.page(STUDY)
        data = self.check_file(file).data
        lines = (file.parent / "steps.csv").read_text().splitlines()[1:]
        for row, policy in zip(data["rows"], data["summary"]["policies"]):
            own = [line.split(",") for line in lines if line.startswith(policy["label"] + ",")]
            self.assertEqual(row["steps"]["of"], len(own))
            for drawn, line in zip(row["steps"]["rows"], own):
                self.assertAlmostEqual(drawn[2], float(line[4]), delta=1e-6)
                self.assertEqual(drawn[3], int(line[3]))
            full = [step for step in row["steps"]["rows"] if not step[1]]
            mean = sum(step[4] for step in full) / len(full)
            self.assertAlmostEqual(mean, policy["metrics"]["imbalance_degree"], delta=1e-3)
            memory = [sum(stage["parts"].values()) for stage in row["memory"]["stages"]]
            self.assertEqual(len(memory), STUDY["parallel"]["pipeline"])
            self.assertAlmostEqual(max(memory), policy["memory"]["peak_bytes"], delta=16)
            delays = row["tokens_by_delay"]
            self.assertEqual(sum(delays), policy["metrics"]["total_tokens"])
            waited = sum(n * steps for steps, n in enumerate(delays)) / sum(delays)
            self.assertAlmostEqual(waited, policy["metrics"]["token_delay_mean"], places=9)
            self.assertEqual(len(delays) - 1, policy["metrics"]["token_delay_max"])
            for step in row["drawn"]:
                ends = []
                for lane in step["lanes"]:
                    ops = [lane["ops"][i : i + 6] for i in range(0, len(lane["ops"]), 6)]
                    forwards = [op for op in ops if op[1] == 0]
                    self.assertEqual(len(forwards), len(lane["micro_batches"]) * STUDY["parallel"]["pipeline"])
                    ends.append(max(op[4] + op[5] for op in ops))
                self.assertAlmostEqual(max(ends), step["pipeline"], delta=2)
                self.assertAlmostEqual(step["end"] / 1e6, float(own[step["step"]][4]), delta=1e-5)
            relative = row["gpus"]["relative"]
            self.assertEqual(len(relative), 4)  # 2 stages x 2 CP ranks, 2 TP ranks do the same
            self.assertAlmostEqual(sum(relative) / len(relative), 1000, delta=1)
        tokens = sum(one["tokens"] for one in data["lengths"])
        self.assertEqual(tokens, data["summary"]["study"]["tokens"])

    def test_names_cannot_leave_their_place(self):
        plain = self.check_file(self.page(STUDY))
        study = dict(STUDY, name=HOSTILE, policies=[{"name": "plain-4d", "label": HOSTILE}, "wlb"], baseline=HOSTILE)
        hostile = self.check_file(self.page(study))
        self.assertEqual(hostile.data["summary"]["study"]["name"], HOSTILE)
        self.assertEqual(hostile.data["summary"]["policies"][0]["label"], HOSTILE)
        self.assertIn(HOSTILE, hostile.text)
        for tag in ("script", "img", "table", "style"):
            self.assertEqual(hostile.count(tag), plain.count(tag), tag)

    def test_rows_that_do_not_run_say_why(self):
        file = self.page(dict(STUDY, cluster={"memory_GB": 4}))
        outline = self.check_file(file)
        for policy in outline.data["summary"]["policies"]:
            self.assertEqual(policy["status"], "oom")
            self.assertIn(policy["reason"], outline.text)
        self.assertIsNone(outline.data["winner"])
        self.assertIn("No policy of this study runs", outline.text)

    def test_a_sweep_has_a_page_over_its_cases(self):
        file = self.page(STUDY, "--sweep", "batch.context_window=8K,16K", "--sweep", "parallel.context=1,2")
        data = self.check_file(file).data
        self.assertEqual(len(data["cases"]), 4)
        for case in data["cases"]:
            own = file.parent / case["folder"]
            summary = json.loads((own / "summary.json").read_text())
            self.check_file(own / "report.html")
            for row, policy in zip(case["rows"], summary["policies"]):
                for key in ("tokens_per_second_per_gpu", "speedup", "speedup_low", "peak_memory_bytes"):
                    self.assertEqual(row[key], policy["metrics"][key])


    def test_a_search_has_a_page(self):
        file = self.tune()
        outline = self.check_file(file)
        found = json.loads((file.parent / "tune.json").read_text())
        self.assertEqual(outline.data["tune"], {key: value for key, value in found.items() if key not in ("tried", "layouts", "rows")})
        best = min(one["seconds_per_token"] for one in found["tried"] if one["outcome"] == "ok")
        self.assertEqual(min(seconds for _, seconds in outline.data["ran"]), best)
        winner = found["ranking"][0]
        self.assertRegex(outline.text, r"%s on .* is the fastest of %d candidates: %.0f tokens/s/GPU" % (
            winner["label"], found["counts"]["candidates"], winner["metrics"]["tokens_per_second_per_gpu"]))

    def test_a_validation_has_a_page(self):
        file = self.validation()
        outline = self.check_file(file)
        found = json.loads((file.parent / "validation.json").read_text())
        self.assertEqual(outline.data["validation"], found)
        self.assertIn("Passed: a policy's mean step is simulated at most 2.0% off what was measured", outline.text)


    def test_a_saved_result_is_shown_again(self):
        file = self.page(STUDY)
        again = self.folder / "again.html"
        table = self.ok("report", file.parent, "--out", again)
        self.assertEqual(again.read_text(), file.read_text())
        summary = json.loads((file.parent / "summary.json").read_text())
        self.assertEqual(json.loads(self.ok("report", file.parent / "summary.json", "--format", "json")), summary)
        self.assertEqual(summary["study"]["settings"], STUDY)
        for policy, line in zip(summary["policies"], table.splitlines()[2:]):
            self.assertRegex(line, r"^%s +ok +%.0f " % (policy["label"], policy["metrics"]["tokens_per_second_per_gpu"]))
        rows = list(csv.DictReader(self.ok("report", file.parent, "--format", "csv").splitlines()))
        self.assertEqual(float(rows[1]["mfu"]), summary["policies"][1]["metrics"]["mfu"])
        file.unlink()
        self.refused("report", file.parent, "--out", again, says=["report.html", "`study --out` writes them"])
        self.refused("report", self.folder / "none", says=["none: no such file", "`study --out` wrote"])
        self.refused("report", file.parent, "--out", "page.txt", says=["page.txt", ".html"])

    def two(self):
        """Before and after: one row 10 % faster by a network, another that the second does not have."""
        study = dict(STUDY, batch=dict(STUDY["batch"], steps=8), policies=STUDY["policies"] + [{"name": "plain", "label": HOSTILE}])
        before = self.page(study).parent.rename(self.folder / "before")
        study = dict(study, policies=study["policies"][:2], cluster={"network": {"nic_GBps": 200}, "gpus_per_node": 2})
        return before, self.page(study).parent.rename(self.folder / "after")

    def test_two_results_side_by_side(self):
        before, after = self.two()
        page = self.folder / "changes.html"
        found = json.loads(self.ok("report", before, after, "--format", "json", "--out", page))
        summaries = [json.loads((folder / "summary.json").read_text()) for folder in (before, after)]
        self.assertTrue(found["same_documents"])
        self.assertEqual([row["label"] for row in found["rows"]], ["plain-4d", "wlb", HOSTILE])
        for row, one, other in zip(found["rows"], *(summary["policies"] for summary in summaries)):
            speed = [p["metrics"]["total_tokens"] / p["metrics"]["total_seconds"] for p in (one, other)]
            self.assertAlmostEqual(row["ratio"], speed[1] / speed[0], places=9)
            self.assertLessEqual(row["low"], row["ratio"])
            self.assertGreaterEqual(row["high"], row["ratio"])
            self.assertEqual(row["verdict"], "not told apart" if row["low"] <= 1 <= row["high"] else "faster" if row["ratio"] > 1 else "slower")
        self.assertEqual(found["rows"][2]["verdict"], "only in the first")
        differ = {d["key"]: (d["first"], d["second"]) for d in found["differences"]}
        self.assertEqual(differ["cluster.network.nic_GBps"], ("-", "200"))
        self.assertNotIn("parallel.tensor", differ)
        outline = self.check_file(page)
        self.assertEqual(outline.data["comparison"], found)
        self.assertIn("only in the first: " + HOSTILE, outline.text)
        text = self.ok("report", before, after)
        self.assertIn("cluster.network.nic_GBps", text)
        self.assertIn("Both runs trained the same documents", text)
        rows = list(csv.DictReader(self.ok("report", before, after, "--format", "csv").splitlines()))
        self.assertEqual(float(rows[0]["ratio"]), found["rows"][0]["ratio"])

    def test_a_result_beside_itself_and_beside_what_does_not_run(self):
        file = self.page(STUDY)
        text = self.ok("report", file.parent, file.parent)
        self.assertIn("the same: plain-4d, wlb.", text)
        self.assertIn("1.000x (1.000-1.000)" if STUDY["batch"]["steps"] >= 4 else "1.000x", text)
        self.assertIn("Their settings do not differ.", text)
        before = file.parent.rename(self.folder / "before")
        after = self.page(dict(STUDY, cluster={"memory_GB": 4}))
        self.assertIn("ok -> oom: plain-4d, wlb.", self.ok("report", before, after.parent))
        other = self.folder / "other"
        self.ok("study", self.write("study.json", dict(STUDY, trace={"distribution": "wlb-128k", "seed": 4})), "--out", other, "--quiet")
        self.assertIn("(no interval)", self.ok("report", before, other))


@unittest.skipUnless(find_browser(), "no Chromium here (Debian: chromium)")
class InABrowser(Pages):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def open(self, file, size="desktop", dark=False):
        page = Page(self.browser, file, width=SIZES[size], dark=dark)
        self.addCleanup(page.close)
        self.assertEqual(page.complaints(), [])
        self.assertEqual(page.requests(), [])
        self.assertEqual(page.evaluate("document.documentElement.dataset.ready"), "true")
        return page

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
        self.assertEqual(sections, ["verdict", "throughput", "losses", "imbalance", "timeline", "lengths", "memory", "path", "gpus",
                                    "delay", "provenance"])
        self.assertIn("--fidelity op", page.evaluate("document.getElementById('path').textContent"))
        for chart in page.evaluate("[...document.querySelectorAll('.chart[role=img]')].map(c => [c.getAttribute('aria-label'), c.querySelectorAll('svg, canvas').length])"):
            self.assertTrue(chart[0])
            self.assertEqual(chart[1], 1, chart)

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
        page.evaluate("{const s = document.querySelectorAll('#timeline .scroll')[0]; s.focus();"
                      "s.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}))}")
        tip = page.evaluate("document.getElementById('tip').innerText")
        self.assertRegex(tip, r"(?s)F0.*tokens in .*documents")
        wide = "document.querySelector('#timeline .scroll').%sWidth"
        once = page.evaluate(wide % "client")
        page.evaluate("{const s = document.querySelectorAll('#timeline .controls')[0].querySelectorAll('select')[3];"
                      "s.value = '4'; s.dispatchEvent(new Event('change'))}")
        page.settle()
        page.settle()
        self.assertAlmostEqual(page.evaluate(wide % "scroll"), 4 * once, delta=4)
        self.assertEqual(page.complaints(), [])

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
        path = json.loads((file.parent / "critical_path" / "wlb.json").read_text())
        shown = page.evaluate("document.getElementById('path').textContent")
        self.assertIn("%.4f" % path["steps"][0]["step_seconds"], shown)

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
        self.assertEqual(page.evaluate("document.querySelectorAll('#sweep svg path[d]:not(.domain)').length"), len(STUDY["policies"]))
        links = page.evaluate("[...document.querySelectorAll('#cases a')].map(a => decodeURIComponent(a.pathname))")
        for link in links:
            self.assertTrue(pathlib.Path(link).exists(), link)


    def test_search(self):
        page = self.look(self.tune(), "tune")
        found = json.loads((self.folder / "tuned" / "tune.json").read_text())
        values = page.evaluate("[...document.querySelectorAll('#ranking svg .value')].map(t => t.textContent.split(/\\s/)[0])")
        rates = [row["metrics"]["tokens_per_second_per_gpu"] for row in found["ranking"] + [found["baseline"]]]
        self.assertEqual(values, ["%.0f" % rate for rate in rates])

    def test_comparison(self):
        before, after = Report.two(self)
        file = self.folder / "changes.html"
        self.ok("report", before, after, "--out", file)
        page = self.look(file, "comparison")
        self.assertEqual(page.evaluate("document.querySelectorAll('#changes svg .whisker').length"), 2)
        self.assertIn("plain-4d", page.evaluate("document.querySelector('#changes .chart').getAttribute('aria-label')"))

    def test_validation(self):
        page = self.look(self.validation(), "validation")
        values = page.evaluate("[...document.querySelectorAll('#steps svg .value')].map(t => t.textContent)")
        self.assertEqual(values, ["\u22122.0 %"] * len(STUDY["policies"]))


if __name__ == "__main__":
    unittest.main()

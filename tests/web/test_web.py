"""The simulator in a page: it says what the program says, and a reader can use it.

EQUIPOISE names the program, EQUIPOISE_PAGE the page that `./run.sh web` makes. EQUIPOISE_WEB_STUDIES=all runs every shipped
study whose rows take less than a minute; else a few."""

import json
import math
import os
import pathlib
import shlex
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/cli"))
from browser import Browser, Page  # noqa: E402

PROGRAM = os.environ.get("EQUIPOISE", ROOT / "build/release/bin/equipoise")
PAGE = pathlib.Path(os.environ.get("EQUIPOISE_PAGE", ROOT / "dist/equipoise.html"))
# Those that take longer in one thread, and those that run kernels.
SLOW = {"405b-131k-gpus", "wlb-8k-gpus", "llama3-405b-16k-gpus", "deepseek-v3", "hbp-8b", "execute-gpu"}
FEW = ["7b-128k", "hbp-deepseek-v2", "seq1f1b-7b", "group-cast-70b", "disaggregated-8b"]
RELATIVE = 1e-9
MEASURED = {"measured", "pack_ms"}  # on the machine
SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
HOSTILE = "<img src=x onerror=document.title=1>.txt"


def difference(one, other, path=""):
    """Path and both values of the first difference that is more than rounding; None where there is none."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = (one.keys() | other.keys()) - MEASURED - {"receipt"}
        pairs = [(f"{path}.{key}", one.get(key), other.get(key)) for key in sorted(keys)]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(one, other))]
    elif isinstance(one, float) and isinstance(other, float):
        return None if math.isclose(one, other, rel_tol=RELATIVE) else (path, one, other)
    else:
        return None if one == other else (path, one, other)
    return next((found for at, a, b in pairs if (found := difference(a, b, at))), None)


class SameAsTheProgram(unittest.TestCase):
    def test_studies(self):
        names = FEW
        if os.environ.get("EQUIPOISE_WEB_STUDIES") == "all":
            names = sorted({file.stem for file in (ROOT / "traces/studies").glob("*.json")} - SLOW)
        done = subprocess.run(["node", ROOT / "tests/web/run_studies.js", PAGE, *names], text=True, capture_output=True, check=True)
        results = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([result["name"] for result in results], names)
        for result in results:
            name = result["name"]
            own = subprocess.run([PROGRAM, "study", f"traces/studies/{name}.json", "--format", "json", "--quiet"], cwd=ROOT, text=True, capture_output=True)
            with self.subTest(name):
                if own.returncode:
                    self.assertIn(result.get("error", "no error"), own.stderr)
                    continue
                self.assertNotIn("error", result)
                self.assertIsNone(difference(json.loads(own.stdout), result["summary"], name))
                print(f"{name}: {result['seconds']:.1f} s", file=sys.stderr)


class InABrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser(seconds=300)
        cls.addClassCleanup(cls.browser.close)

    def open(self, size="desktop", dark=False):
        width, height = SIZES[size]
        page = Page(self.browser, PAGE, width=width, height=height, dark=dark)
        self.addCleanup(page.close)
        return page

    def until(self, page, condition, what="condition"):
        """Waits for a condition of the page, two minutes at most: the machine may be busy."""
        done = page.evaluate("new Promise(done => { const begin = Date.now(); const look = () => { if (%s) done(true); else if (Date.now() - begin > 120000) done(false); "
                             "else setTimeout(look, 50); }; look(); })" % condition)
        self.assertTrue(done, f"{what}: {self.status(page)}")

    def status(self, page):
        return page.evaluate("document.getElementById('status').textContent + ' | ' + document.getElementById('error').textContent")

    def finished(self, page):
        self.until(page, "document.getElementById('report').getAttribute('aria-busy') === 'false' && document.getElementById('study-report') && !document.querySelector('.next')", "a report")

    def choose(self, page, label, value):
        """Sets the field with that label, as a hand does."""
        page.evaluate("(() => { const own = [...document.querySelectorAll('#fields label')].find(l => l.firstChild.textContent === %s);"
                      "const input = own.querySelector('input, select'); input.value = %s; input.dispatchEvent(new Event('change', {bubbles: true})); })()" % (json.dumps(label), json.dumps(value)))

    def only(self, page, *policies):
        page.evaluate("(() => { study.policies = study.policies.filter(p => %s.includes(labelOf(p))); return commit(); })()" % json.dumps(policies))
        self.finished(page)

    def drop(self, page, name, text):
        """As a hand does, and waits until the page has read it."""
        page.evaluate("takeAll([new File([%s], %s)])" % (json.dumps(text), json.dumps(name)))

    def inside(self, page, script):
        return page.evaluate(f"(() => {{ const inside = document.getElementById('study-report').contentDocument; return {script}; }})()")

    def labels(self, page):
        return self.inside(page, "[...inside.querySelectorAll('#comparison tbody th')].map(n => n.textContent)")

    def test_a_study_from_load_to_link(self):
        for size, dark in (("desktop", False), ("phone", True)):
            with self.subTest(size):
                page = self.open(size, dark)
                self.until(page, "document.getElementById('study-report')", "first rows")
                self.only(page, "plain", "fixed-4d")
                self.assertEqual(page.complaints(), [])
                self.assertEqual([url for url in page.requests() if not url.startswith("blob:")], [])
                self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), SIZES[size][0])
                self.assertEqual(page.evaluate("(() => { document.getElementById('fold').open = true; const right = document.getElementById('inputs').getBoundingClientRect().right;"
                                               "return [...document.querySelectorAll('#fields *')].filter(n => n.getBoundingClientRect().right > right).length; })()"), 0)
                self.assertEqual(self.inside(page, "inside.documentElement.dataset.theme"), "dark" if dark else "light")
                self.assertEqual(len(self.labels(page)), 2)
                before = self.inside(page, "inside.querySelector('#comparison').textContent")
                self.choose(page, "NIC of one GPU, GB/s", "100")
                self.finished(page)
                self.assertNotEqual(self.inside(page, "inside.querySelector('#comparison').textContent"), before)
                self.assertIn("Fastest", self.status(page))
                # A bad file is refused by its name, and the page goes on.
                self.drop(page, HOSTILE, "1 2 three")
                self.assertIn("three", page.evaluate("document.getElementById('error').textContent"))
                self.assertNotEqual(page.evaluate("document.title"), "1")
                self.drop(page, "lengths.txt", "\n".join(str(100 + 37 * i % 5000) for i in range(20000)))
                self.finished(page)
                self.assertEqual(page.evaluate("study.trace.file"), "lengths.txt")
                self.assertIn("SHA-256", page.evaluate("document.getElementById('taken').textContent"))
                # Back to the trace before, then by the link to this one, whose file is asked for.
                link = page.evaluate("location.hash")
                page.evaluate("history.back()")
                self.until(page, "study.trace.file !== 'lengths.txt'", "the state before")
                self.finished(page)
                page.evaluate("files.clear(); location.hash = %s" % json.dumps(link))
                self.until(page, "document.getElementById('error').textContent.includes('lengths.txt')", "a question for the file")

    def test_names_for_a_screen_reader(self):
        page = self.open()
        self.finished(page)
        for node in page.send("Accessibility.getFullAXTree")["nodes"]:
            if not node["ignored"] and any(p["name"] == "focusable" and p["value"]["value"] for p in node["properties"]) and node["role"]["value"] != "RootWebArea":
                self.assertTrue(node["name"]["value"].strip(), node["role"])

    def test_stop_go_on_and_a_damaged_link(self):
        page = self.open()
        self.until(page, "document.getElementById('status').textContent.startsWith('Running')", "a run")
        page.evaluate("document.getElementById('stop').click()")
        self.until(page, "!document.getElementById('go').hidden", "a stop")
        page.evaluate("document.getElementById('go').click()")
        self.only(page, "plain")
        page.evaluate("location.hash = '#damaged'")
        self.until(page, "document.getElementById('error').textContent.includes('link is damaged')", "a message")
        self.finished(page)
        self.assertEqual(len(self.labels(page)), 7)

    def test_layout_sweep_and_files(self):
        page = self.open()
        self.until(page, "document.getElementById('study-report')", "first rows")
        self.only(page, "plain", "wlb-llm")
        page.evaluate("(() => { findsLayout = true; return commit(); })()")
        self.finished(page)
        self.assertTrue(page.evaluate("study.parallel.tensor >= 1 && gpusOf(study) === 64"))
        page.evaluate("(() => { sweep = ['cluster.network.nic_GBps', '25,100']; return commit(); })()")
        self.finished(page)
        self.assertTrue(page.evaluate("!!document.getElementById('sweep-report')"))
        self.assertIn("--sweep=cluster.network.nic_GBps=25,100", page.evaluate("document.getElementById('command').textContent"))
        saved = page.evaluate("JSON.stringify(last.summary)")
        page.evaluate("(() => { sweep = ['', '']; study.batch.steps = 5; return commit(); })()")
        self.drop(page, "summary.json", saved)
        self.finished(page)
        self.assertEqual(page.evaluate("study.batch.steps"), 48)
        self.drop(page, "million.txt", "1000\n" * 1_000_000)
        self.finished(page)
        self.assertEqual(page.evaluate("document.getElementById('error').textContent"), "")

    def refused(self, page, script):
        """The message with which a promise of the page is refused."""
        return page.evaluate(f"{script}.then(() => 'not refused', error => error.message)")

    def error(self, page):
        """Waits until the page is not busy; what it complains about then."""
        self.until(page, "document.getElementById('report').getAttribute('aria-busy') === 'false'", "an end")
        return page.evaluate("document.getElementById('error').textContent")

    def assert_no_result(self, page):
        self.assertEqual(page.evaluate("document.querySelectorAll('iframe').length"), 0)
        self.assertNotIn("Download report.html", page.evaluate("document.getElementById('taken').textContent"))

    def small(self):
        """A page whose study has one row of few steps."""
        page = self.open()
        self.until(page, "document.getElementById('study-report')", "first rows")
        page.evaluate("(() => { study.batch.steps = 2; })()")
        self.only(page, "plain")
        return page

    def test_a_link_runs_with_its_own_file_alone(self):
        page = self.small()
        for length in (1000, 2000):
            self.drop(page, "lengths.txt", f"{length}\n" * 100_000)
            self.finished(page)
        mine = page.evaluate("files.get('lengths.txt').sha256")
        page.evaluate("history.back()")
        self.until(page, "missing.size", "the state before")
        self.assertIn(page.evaluate("missing.get('lengths.txt')"), self.error(page))
        self.assertNotEqual(page.evaluate("missing.get('lengths.txt')"), mine)
        self.assert_no_result(page)
        self.drop(page, "lengths.txt", "2000\n" * 100_000)
        self.assertIn(f"found {mine}", self.error(page))
        # Another study does not need the file, and its link does not name it.
        page.evaluate("(() => { study.trace = {distribution: 'wlb-128k'}; return commit(); })()")
        self.finished(page)
        self.assertEqual(page.evaluate("stateOf(location.hash).then(state => state.files)"), {})
        page.evaluate("history.back()")
        self.until(page, "missing.size", "the state before")
        self.drop(page, "lengths.txt", "1000\n" * 100_000)
        self.finished(page)
        self.assertEqual(self.error(page), "")

    def test_a_refused_file_changes_nothing(self):
        page = self.small()
        self.drop(page, "lengths.txt", "1000\n" * 100_000)
        self.finished(page)
        self.drop(page, "lengths.txt", "1 2 three")
        self.assertIn("three", self.error(page))
        page.evaluate("commit()")
        self.finished(page)
        self.assertEqual(self.error(page), "")
        page.evaluate("(() => { delete study.trace; })()")
        self.drop(page, "other.txt", "1000\n" * 100_000)
        self.finished(page)
        self.assertEqual(page.evaluate("study.trace.file"), "other.txt")

    def test_no_result_of_another_study(self):
        page = self.small()
        page.evaluate("(() => { sweep = ['batch.steps', '2,3']; return commit(); })()")
        self.finished(page)
        self.assertTrue(page.evaluate("!!document.getElementById('sweep-report') && !!last.html"))
        page.evaluate("(() => { sweep = ['', '']; return commit(); })()")
        self.finished(page)
        self.assertEqual(page.evaluate("[...document.querySelectorAll('iframe')].map(frame => frame.id)"), ["study-report"])
        for change, says in (("study.batch.steps = -1", "batch.steps"), ("study.policies = [null]", "null")):
            page.evaluate("(() => { %s; return commit(); })()" % change)
            self.assertIn(says, self.error(page))
            self.assert_no_result(page)
        self.assertIn("a row that has run", self.refused(page, "ask('open', {study: shippedStudy(kFirst), file: kStudyFile}).then(() => ask('report', {}))"))

    def test_more_than_a_page_holds(self):
        page = self.small()
        page.evaluate("(() => { study.trace = {distribution: 'wlb-128k'}; study.batch.steps = 1000; study.policies.push({name: 'wlb', max_tokens: 1, oversize: 'split'}); return commit(); })()")
        said = self.error(page)
        self.assertIn("the limit is 2 GB (a page's memory)", said)
        self.assertNotIn("--", said)
        self.assertTrue(page.evaluate("(async () => { const state = {names: Array.from({length: 5}, () => [...crypto.getRandomValues(new Uint32Array(10000))])};"
                                      "return JSON.stringify(await stateOf(await linkOf(state))) === JSON.stringify(state); })()"))

    def test_a_command_is_one_for_any_link(self):
        page = self.small()
        hostile = ["a b'; echo $(id)", "`id`\n1"]
        page.evaluate("(() => { sweep = %s; drawTaken(); })()" % json.dumps(hostile))
        command = page.evaluate("document.getElementById('command').textContent")
        self.assertEqual(shlex.split(command), ["equipoise", "study", "study.json", f"--sweep={hostile[0]}={hostile[1]}", "--out", "out"])

    def test_only_policies_that_can_be_rows_are_offered(self):
        page = self.small()
        own = json.loads(subprocess.run([PROGRAM, "list", "policies", "--format", "json"], text=True, capture_output=True, check=True).stdout)
        rows = {policy["name"] for policy in own if policy["kind"] in ("packing", "preset")}
        shown = set(page.evaluate("[...document.querySelectorAll('#more-policies label')].map(label => label.textContent)"))
        self.assertEqual(shown, rows - set(page.evaluate("[...offered.keys()]")))

    def test_a_worker_that_does_not_start_is_said(self):
        page = self.small()
        own = page.evaluate("document.getElementById('worker').textContent")
        page.evaluate("(() => { stopWorker(); globalThis.ownModule = module; module = new WebAssembly.Module(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0])); })()")
        self.assertIn("the simulator ended", self.refused(page, "ask('lists', {})"))
        page.evaluate("(() => { module = ownModule; document.getElementById('worker').textContent = JSON.stringify('throw new Error(\"no start\")'); })()")
        self.assertIn("no start", self.refused(page, "ask('lists', {})"))
        page.evaluate("(() => { document.getElementById('worker').textContent = %s; return commit(); })()" % json.dumps(own))
        self.finished(page)
        self.assertEqual(self.error(page), "")


if __name__ == "__main__":
    unittest.main()

"""The simulator in a page: it says what the program says, and a reader can use it.

EQUIPOISE names the program, EQUIPOISE_PAGE the page that `./run.sh web` makes. EQUIPOISE_WEB_STUDIES=all runs every shipped
study whose rows take less than a minute; else a few."""

import base64
import functools
import gzip
import http.server
import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import unicodedata
import unittest
import zlib

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


def text_of(pdf):
    """The text of a PDF that Chromium has made, in the order in which it is drawn."""
    objects = dict(re.findall(rb"(\d+) 0 obj\s(.*?)\sendobj", pdf, re.S))

    def content(body):
        data = body.split(b"stream", 1)[1].lstrip(b"\r\n")
        return zlib.decompressobj().decompress(data) if b"/FlateDecode" in body else data

    letters = {}  # by font and code
    for font, body in objects.items():
        if (table := re.search(rb"/ToUnicode (\d+) 0 R", body)):
            text, own = content(objects[table[1]]), letters.setdefault(font, {})
            for first, last, to in re.findall(rb"<(\w+)> <(\w+)> <(\w+)>", text):
                own.update({int(first, 16) + i: chr(int(to, 16) + i) for i in range(int(last, 16) - int(first, 16) + 1)})
            for part in re.findall(rb"beginbfchar(.*?)endbfchar", text, re.S):
                own.update({int(code, 16): bytes.fromhex(to.decode()).decode("utf-16-be") for code, to in re.findall(rb"<(\w+)> <(\w+)>", part)})
    text, font = "", {}
    for body in objects.values():
        if b"stream" in body and not re.search(rb"/(Image|FontFile2?|Length1)\b", body[:300]):
            for name, codes in re.findall(rb"/F(\d+) [\d.]+ Tf|<([0-9A-Fa-f]+)> Tj", content(body)):
                font = letters.get(name, {}) if name else font
                text += "".join(font.get(int(codes[i:i + 4], 16), "") for i in range(0, len(codes), 4))
    return text


def words_of(text):
    """A text without what a line break or a ligature changes."""
    return re.sub(r"\s", "", unicodedata.normalize("NFKC", text))


class SameAsTheProgram(unittest.TestCase):
    def test_studies(self):
        names = FEW
        if os.environ.get("EQUIPOISE_WEB_STUDIES") == "all":
            names = sorted({file.stem for file in (ROOT / "traces/studies").glob("*.json")} - SLOW)
        folder = self.enterContext(tempfile.TemporaryDirectory())
        done = subprocess.run(["node", ROOT / "tests/web/run_studies.js", PAGE, folder, *names], text=True, capture_output=True, check=True)
        results = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([result["name"] for result in results], names)
        for result in results:
            name = result["name"]
            own = subprocess.run([PROGRAM, "study", f"traces/studies/{name}.json", "--format", "json", "--quiet", "--out", f"{folder}/{name}"],
                                 cwd=ROOT, text=True, capture_output=True)
            with self.subTest(name):
                if own.returncode:
                    self.assertIn(result.get("error", "no error"), own.stderr)
                    continue
                self.assertNotIn("error", result)
                self.assertIsNone(difference(json.loads(own.stdout), result["summary"], name))
                plans = [json.loads(pathlib.Path(file).read_text()) for file in (f"{folder}/{name}/plan.json", f"{folder}/{name}.json")]
                self.assertTrue(any(plan["steps"] for plan in plans[0]["plans"]))
                self.assertIsNone(difference(*plans, f"plans of {name}"))
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

    def drop(self, page, name, content):
        """Drops a text or bytes as a hand does, and waits until the page has read it."""
        part = f"new Uint8Array({list(content)})" if isinstance(content, bytes) else json.dumps(content)
        page.evaluate("takeAll([new File([%s], %s)])" % (part, json.dumps(name)))

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

    def test_one_key_by_a_slider(self):
        page = self.small()
        page.evaluate("(() => { study.batch.steps = 4; sweep = ['cluster.network.nic_GBps', '12.5,25,50,100']; return commit(); })()")
        self.finished(page)
        swept = "(() => { const inside = document.getElementById('sweep-report').contentDocument; return %s; })()"
        # As many lines as figures; and the points in the order of the sweep, whichever Worker ran them.
        self.assertEqual(page.evaluate(swept % "inside.querySelectorAll('#sweep svg path[d]:not(.domain)').length"), 4)
        self.assertEqual(page.evaluate(swept % "JSON.parse(inside.getElementById('data').textContent).cases.map(one => one.assignments[0].split('=')[1])"), ["12.5", "25", "50", "100"])
        rates = page.evaluate(swept % "JSON.parse(inside.getElementById('data').textContent).cases.map(one => one.rows[0].tokens_per_second_per_gpu)")
        page.evaluate("(() => { globalThis.shown = document.getElementById('sweep-report'); document.getElementById('slider').focus(); })()")
        page.key("ArrowRight")
        self.finished(page)
        self.assertEqual(page.evaluate("study.cluster.network.nic_GBps"), 100)
        self.assertEqual(page.evaluate("last.summary.policies[0].metrics.tokens_per_second_per_gpu"), rates[3])
        self.assertIn("100", page.evaluate("document.querySelector('label:has(#slider)').textContent"))
        self.assertTrue(page.evaluate("document.activeElement.id === 'slider' && document.getElementById('sweep-report') === shown"))
        self.assertEqual(page.evaluate("stateOf(location.hash).then(state => state.study.cluster.network.nic_GBps)"), 100)
        # Another study's sweep is not this one's.
        page.evaluate("(() => { study.batch.steps = 5; return commit(); })()")
        self.finished(page)
        self.assertFalse(page.evaluate("document.getElementById('sweep-report') === shown"))

    def test_names_of_files(self):
        page = self.small()
        for name in (".", "..", "tmp", "traces", "dev", "study.json"):
            self.drop(page, name, "1000")
            self.assertIn("expected another name", self.error(page), name)
        for name in ("__proto__", "constructor", "a'b; $(id).txt", "../../share", "ÿ\u202e.txt", HOSTILE):
            self.drop(page, name, "1000\n" * 100_000)
            self.finished(page)
            self.assertEqual(self.error(page), "", name)
            self.assertRegex(page.evaluate("study.trace.file"), r"^[\w.-]+$")
        page.evaluate("(() => { sweep = ['__proto__.toString', '1,2']; return commit(); })()")
        self.assertIn("__proto__", self.error(page))
        self.assertEqual(page.evaluate("({}).toString()"), "[object Object]")

    def test_bad_files(self):
        page = self.small()
        page.evaluate("(() => { globalThis.good = structuredClone(study); })()")
        for name, text in (("empty.txt", ""), ("binary.idx", b"MMIDIDX\0\0\1"), ("cut.gz", gzip.compress(b"5\n" * 1000)[:-9]), ("minus.txt", "5\n-7\n"), ("zero.txt", "5\n0\n"),
                           ("huge.txt", "99999999999999999999\n"), ("bad.json", "{"), ("list.json", "[]"), ("config.json", '{"model_type": "llama"}'), ("summary.json", '{"schema": "equipoise.summary/1"}')):
            self.drop(page, name, text)
            said = self.error(page)
            self.assertIn(name, said)
            self.assertEqual(page.evaluate("document.querySelectorAll('#error *').length"), 0)
            page.evaluate("use(structuredClone(good), 'study.json')")
            self.finished(page)
            self.assertEqual(self.error(page), "")

    def test_rows_come_as_they_are_ready(self):
        page = self.open()
        self.finished(page)
        page.evaluate("(() => { globalThis.said = []; globalThis.drawn = []; new MutationObserver(() => said.push([$('status').textContent, $('progress').hidden, $('stop').hidden]))"
                      ".observe($('status'), {childList: true}); const own = show; show = (name, html) => { drawn.push(last.summary.policies.length); own(name, html); }; return commit(); })()")
        self.finished(page)
        labels = ["plain", "fixed-4d", "wlb-llm", "skrull", "chunkflow", "hbp", "equipoise"]  # trials and searches are last
        self.assertEqual([one for one in page.evaluate("said") if one[0].startswith("Running")], [[f"Running {label}, {i} of 7.", False, False] for i, label in enumerate(labels, 1)])
        self.assertEqual(page.evaluate("drawn").count(6), 1)  # what is fast does not wait for it
        self.assertEqual(page.evaluate("drawn")[-1], 7)
        # Files in memory are memory: those of a row end with it.
        self.assertIn("plain.pftrace", self.refused(page, "ask('hash', {file: '/tmp/out/timeline/plain.pftrace'})"))

    def test_lengths_are_shown_before_a_run(self):
        page = self.small()
        page.evaluate("(() => { const own = runOnce; runOnce = () => { runOnce = own; throw new Error('not yet'); }; })()")
        self.drop(page, "lengths.txt", "1000\n" * 90_000 + "30000\n" * 10_000)
        self.until(page, "document.getElementById('lengths-report')", "a histogram")
        self.assertEqual(page.evaluate("[...document.querySelectorAll('iframe')].map(frame => frame.id)"), ["lengths-report"])
        inside = "(() => { const inside = document.getElementById('lengths-report').contentDocument; return %s; })()"
        self.assertIn("100,000 documents, 390,000,000 tokens, longest 30,000", page.evaluate(inside % "inside.querySelector('h1').textContent"))
        self.assertEqual(page.evaluate(inside % "inside.querySelectorAll('#lengths svg rect.area').length"), 6)  # from 512 to 32K
        page.evaluate("(() => { study.trace = {distribution: 'wlb-128k'}; return commit(); })()")
        self.finished(page)
        self.assertFalse(page.evaluate("!!document.getElementById('lengths-report')"))

    def test_by_keyboard_alone(self):
        page = self.small()
        focus = ("(() => { const own = document.activeElement; return [...(own.labels?.[0] ?? own).childNodes].map(n => n.nodeType === 3 ? n.data : '').join('').trim(); })()")
        page.evaluate("document.activeElement.blur()")
        seen = []
        while len(seen) < 60 and "chunkflow" not in seen:
            page.key("Tab")
            seen.append(page.evaluate(focus))
        self.assertIn("chunkflow", seen)
        for name in ("Choose a file", "Inputs", "NIC of one GPU, GB/s", "CP", "Find the fastest that fits"):
            self.assertIn(name, seen)
        page.key(" ")
        self.finished(page)
        self.assertEqual(len(self.labels(page)), 2)
        self.assertEqual(page.evaluate(focus), "chunkflow")
        self.assertNotEqual(page.evaluate("getComputedStyle(document.activeElement).outlineStyle"), "none")

    def test_print(self):
        page = self.small()
        page.send("Emulation.setEmulatedMedia", media="print")
        self.assertEqual(page.evaluate("[...document.querySelectorAll('#inputs, .state, #taken')].filter(n => n.offsetHeight).length"), 0)
        printed = words_of(text_of(base64.b64decode(page.send("Page.printToPDF")["data"])))
        cells = self.inside(page, "[...inside.querySelectorAll('table')].flatMap(table => [...table.querySelectorAll('th, td')].filter(cell => !cell.querySelector('details')).map(cell => cell.textContent))")
        self.assertGreater(len(cells), 100)
        self.assertEqual([cell for cell in cells if words_of(cell) not in printed], [])

    def test_from_a_server(self):
        class Quiet(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=PAGE.with_suffix("")))
        self.addCleanup(server.server_close)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.shutdown)
        address = f"http://127.0.0.1:{server.server_port}/"
        page = Page(self.browser, address)
        self.addCleanup(page.close)
        self.finished(page)
        self.assertEqual(page.complaints(), [])
        self.assertEqual(sorted(url.removeprefix(address) for url in page.requests() if not url.startswith("blob:")), ["shipped.bin", "simulator.wasm"])
        self.assertEqual(len(self.labels(page)), 7)

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
        page.evaluate("(() => { stopWorkers(); globalThis.ownModule = module; module = new WebAssembly.Module(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0])); })()")
        self.assertIn("the simulator ended", self.refused(page, "ask('lists', {})"))
        page.evaluate("(() => { module = ownModule; document.getElementById('worker').textContent = JSON.stringify('throw new Error(\"no start\")'); })()")
        self.assertIn("no start", self.refused(page, "ask('lists', {})"))
        page.evaluate("(() => { document.getElementById('worker').textContent = %s; return commit(); })()" % json.dumps(own))
        self.finished(page)
        self.assertEqual(self.error(page), "")


if __name__ == "__main__":
    unittest.main()

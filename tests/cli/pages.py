"""What the tests of the pages share: pages of each kind, and what holds of every file."""

import csv
import html.parser
import json
import re

from support import STUDY, Case, run

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

    def tune(self, gpus=4, batch=None, **cluster):
        out = self.folder / "tuned"
        space = {"parallel.tensor": [1, 2], "parallel.context": [1, 2], "policies": ["plain-4d", {"name": "wlb", "queues": [1, 2], "shard": "adaptive"}]}
        self.ok("tune", self.write("study.json", dict(STUDY, cluster=cluster, batch=dict(STUDY["batch"], **(batch or {})))), "--space", self.write("space.json", space), "--gpus", gpus, "--out", out, "--what-if", "--quiet")
        return out / "report.html"

    def validation(self, ops=()):
        """The page of a log that says what the simulator says, but 2 % slower, and of so many seconds of a step in kinds of op."""
        study = self.write("study.json", STUDY)
        self.ok("study", study, "--out", self.folder / "own", "--quiet")
        with open(self.folder / "own" / "steps.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        log = "policy,step,step_seconds,op,seconds\n" + "".join(
            f"{row['policy']},{row['step']},{float(row['step_seconds']) * 1.02},,\n" + "".join(f"{row['policy']},{row['step']},,{op},{seconds}\n" for op, seconds in ops)
            for row in rows)
        out = self.folder / "validated"
        done = run("validate", study, "--measured", self.write("measured.csv", log), "--out", out)
        self.assertEqual(done.returncode, 1 if ops else 0, done.stderr)  # the kinds' seconds are made up
        return out / "report.html"

    def two(self):
        """Before and after: one row 10 % faster by a network, another that the second does not have."""
        study = dict(STUDY, batch=dict(STUDY["batch"], steps=8), policies=STUDY["policies"] + [{"name": "plain", "label": HOSTILE}])
        before = self.page(study).parent.rename(self.folder / "before")
        study = dict(study, policies=study["policies"][:2], cluster={"network": {"nic_GBps": 200}, "gpus_per_node": 2})
        return before, self.page(study).parent.rename(self.folder / "after")

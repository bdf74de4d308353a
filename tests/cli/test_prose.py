"""What the program says can be read: sentences of helps, of the first output and of pages, by the measure of check_docs.py.

EQUIPOISE names the program; ctest sets it.
"""

import pathlib
import re
import statistics
import sys
import unittest

from pages import Outline, Pages
from support import STUDY
from test_docs import help_of, inner_of, names_in

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from check_docs import MEDIAN_OF_SENTENCES, WORDS_OF_SENTENCE, sentences_of  # noqa: E402


class ProseOfPage(Outline):
    """The text of a page's paragraphs and list items, without a row's reason, which is one line."""

    PROSE, OTHER = {"p", "li", "h1"}, {"table", "svg", "noscript", "button", "select"}

    def __init__(self, text):
        self.paragraphs, self.is_prose, self.skipped = [], False, 0
        super().__init__(text)

    def handle_starttag(self, tag, attributes):
        super().handle_starttag(tag, attributes)
        self.skipped += tag in self.OTHER
        if tag in self.PROSE:
            self.is_prose = dict(attributes).get("class") != "reason"
            self.paragraphs += [""] * self.is_prose

    def handle_endtag(self, tag):
        super().handle_endtag(tag)
        self.skipped -= tag in self.OTHER

    def handle_data(self, text):
        super().handle_data(text)
        if self.is_prose and not self.inside and not self.skipped:
            self.paragraphs[-1] += text

    @property
    def prose(self):
        return "\n\n".join(" ".join(paragraph.split()) for paragraph in self.paragraphs)


def prose_of_screen(text):
    """What follows the labels of the first output, a paragraph each. Commands and the table are none."""
    found = []
    for line in text.splitlines():
        word = re.match(r"([A-Z][a-z]+) {2,}(?=\S)", line)
        if word:
            found.append([word.group(1), line[word.end() :]])
        elif found and line.startswith(" " * 10):
            found[-1][1] += " " + line.strip()
    return "\n\n".join(text for word, text in found if word not in ("Next", "Report", "Layout", "Layouts"))


def prose_of_help(text):
    """What a help says of its command: before its options, without examples and lists."""
    if text.startswith("usage: "):  # of a Python script
        text = text.split("\n\n", 1)[1].split("\npositional arguments:")[0]
    return re.sub(r"(?m)^(?:Example: .*| {2,}.*)$", "", text.split("\nUsage: ")[0])


class Prose(Pages):
    def readable(self, what, prose):
        sentences = sentences_of(prose)
        self.assertGreater(len(sentences), 1, what)
        for sentence in sentences:
            self.assertLessEqual(len(sentence), WORDS_OF_SENTENCE, (what, " ".join(sentence)))
        self.assertLessEqual(statistics.median(map(len, sentences)), MEDIAN_OF_SENTENCES, (what, sentences))

    def test_of_helps(self):
        helps = [help_of(*words) for command in names_in(help_of()) for words in [(command,), *((command, inner) for inner in inner_of(command))]]
        self.readable("helps", "\n\n".join(map(prose_of_help, [help_of(), *helps])))

    def test_of_the_first_output(self):
        readme = (ROOT / "README.md").read_text()
        self.readable("README's output", prose_of_screen(re.search(r"\$ ./run.sh study\n(.*?)```", readme, re.DOTALL).group(1)))
        rows = ["plain-4d", {"name": "wlb", "queues": 2}, "skrull", {"name": "chunkflow", "chunk_size": "4K", "keep": 2}, "equipoise"]
        study = self.write("study.json", dict(STUDY, batch=dict(STUDY["batch"], steps=8), policies=rows))
        self.readable("five rows", prose_of_screen(self.ok("study", study, "--ignore-memory")))
        none_runs = prose_of_screen(self.ok("study", study, "--set", "cluster.memory_GB=4"))
        self.readable("no row runs", re.sub(r"(?m)^\S+ is out of memory: .*", "", none_runs))  # a reason is one line

    def test_of_other_screens(self):
        """Those of a sweep, a search and a saved result."""
        study = self.write("study.json", dict(STUDY, batch=dict(STUDY["batch"], steps=8)))
        sweep = ("study", study, "--sweep", "parallel.context=1,2", "--sweep")
        self.ok("study", study, "--out", self.folder / "out")
        screens = [
            self.ok(*sweep, "cluster.network.nic_GBps=25,50"),
            self.ok(*sweep, "cluster.network.nic_GBps=10,15,20,25,30,35,40,45,50"),
            self.ok("tune", study, "--budget", 40, "--out", self.folder / "best"),
            self.ok("report", self.folder / "out"),
        ]
        self.readable("other screens", "\n\n".join(map(prose_of_screen, screens)))

    def test_of_pages(self):
        study = dict(STUDY, batch=dict(STUDY["batch"], steps=8))
        makers = {
            "study": lambda: self.page(study),
            "no row runs": lambda: self.page(dict(study, cluster={"memory_GB": 4})),
            "sweep": lambda: self.page(study, "--sweep", "parallel.context=1,2"),
            "search": self.tune,
            "validation": self.validation,
            "comparison": self.comparison,
        }
        for what, make in makers.items():
            with self.subTest(what):
                self.readable(what, ProseOfPage(make().read_text()).prose)

    def comparison(self):
        both = self.folder / "both.html"
        self.ok("report", *self.two(), "--out", both)
        return both


if __name__ == "__main__":
    unittest.main()

"""What the documentation types: every command line that it shows is one that the program takes, and every option that
it mentions is somebody's. The pages of commands and presets are what the program prints (EQUIPOISE_WRITE_PAGES=1 writes them anew).

EQUIPOISE names the program; ctest sets it.
"""

import functools
import json
import os
import pathlib
import re
import unittest

from support import run

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPTION = r"(?<![\w-])--[A-Za-z][-A-Za-z0-9]*"
FOREIGN = {"--workload-configuration"}  # ASTRA-sim's, of which no source of ours knows
SHOWN = re.compile(r"(?:^|[\s`(])(?:\./run\.sh |build/release/bin/)?equipoise ((?:[a-z]+)(?:[^\n`]|`(?=\n))*)", re.MULTILINE)


def pages():
    built = {"build", ".git", "node_modules"}
    return [page for page in sorted(ROOT.rglob("*.md")) if not built & set(page.relative_to(ROOT).parts)]


@functools.cache
def help_of(*words):
    return run(*words, "--help").stdout


@functools.cache
def names_in(text):
    """The commands that a help lists."""
    return re.findall(r"^  ([a-z]+)\s{2,}\S", text, re.MULTILINE)


@functools.cache
def known_options():
    """Those of all commands, and those that any source has: of other programs, and of scripts."""
    kinds = {".cpp", ".h", ".py", ".sh", ".json", ".toml", ".cmake", ".txt", ".js", ""}
    parts = [path.read_text(errors="replace") for path in ROOT.rglob("*")
             if path.is_file() and path.suffix in kinds and not {"build", ".git"} & set(path.relative_to(ROOT).parts)
             and path.stat().st_size < 1_000_000]
    for command in names_in(help_of()):
        parts += [help_of(command), *(help_of(command, inner) for inner in inner_of(command))]
    return FOREIGN | set(re.findall(OPTION, "\n".join(parts)))


def inner_of(command):
    return names_in(help_of(command)) if "SUBCOMMAND" in help_of(command) else []


def commands_page():
    """The help of every command, as it is printed."""
    lines = ["# Commands", "", "Made from `--help`. Results go to stdout, progress and notes to stderr."]
    for command in names_in(help_of()):
        lines += ["", f"## {command}", "", "```text", help_of(command).strip(), "```"]
        for inner in inner_of(command):
            lines += ["", f"### {command} {inner}", "", "```text", help_of(command, inner).strip(), "```"]
    return "\n".join(lines) + "\n"


def presets_page():
    """What `list` lists, a table each."""
    lines = ["# Presets", "", "Made from `equipoise list`. `equipoise explain NAME` says more of each."]
    for what in ("policies", "schedules", "models", "profiles", "frameworks", "traces"):
        lines += ["", f"## {what.capitalize()}", "", "| name | what | from |", "| --- | --- | --- |"]
        for row in json.loads(run("list", what, "--format", "json").stdout):
            lines.append("| " + " | ".join([f"`{row['name']}`", *(row[key].replace("|", "\\|") for key in ("summary", "from"))]) + " |")
    return "\n".join(lines) + "\n"


class Documentation(unittest.TestCase):
    def test_pages_of_commands_and_presets_are_what_the_program_prints(self):
        for name, made in (("commands", commands_page()), ("presets", presets_page())):
            page = ROOT / f"docs/reference/{name}.md"
            if os.environ.get("EQUIPOISE_WRITE_PAGES"):
                page.write_text(made)
            self.assertEqual(page.read_text(), made, f"{page}: EQUIPOISE_WRITE_PAGES=1 test_docs.py writes it anew")

    def test_every_command_line_is_one(self):
        commands, shown = names_in(help_of()), 0
        for page in pages():
            for line in SHOWN.findall(page.read_text()):
                words = re.split(r" \| | && |;|#|  ", line)[0].split()
                if words[0] not in commands:  # a sentence about equipoise, the policy
                    continue
                shown += 1
                command = words[:2] if len(words) > 1 and words[1] in inner_of(words[0]) else words[:1]
                known = re.findall(OPTION, help_of(*command))
                for option in re.findall(OPTION, " ".join(words)):
                    with self.subTest(page=str(page.relative_to(ROOT)), line=line[:100]):
                        self.assertIn(option, known)
        self.assertGreater(shown, 100)

    def test_the_citation_has_the_version_and_every_paper_of_a_policy(self):
        citation = (ROOT / "CITATION.cff").read_text()
        self.assertIn(f"\nversion: {run('--version').stdout.strip()}\n", citation)
        named = {paper for path in (ROOT / "policies").rglob("*.*") for paper in re.findall(r"arXiv (\d{4}\.\d{5})", path.read_text())}
        self.assertEqual(named, set(re.findall(r"arxiv\.org/abs/(\S+)\"", citation)))

    def test_every_option_is_somebodys(self):
        for page in pages():
            for option in re.findall(rf"`({OPTION})[^`]*`", page.read_text()):
                self.assertTrue(option in known_options(), f"{page.relative_to(ROOT)}: {option}")


if __name__ == "__main__":
    unittest.main()

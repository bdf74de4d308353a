#!/usr/bin/env python3
"""The size of the house: how many files and lines there are, and what includes what it should not.

A limit is what a newcomer is asked to bear, not a target. What goes above one is merged with its neighbour, or made
simpler; a limit is raised only with a reason in the commit."""
import collections
import pathlib
import re
import sys

PRODUCT = "policies traces kernels profiler sim".split()
INCLUDE = re.compile(r'\s*#\s*include\s+[<"]([^>"]+)[>"]')
POLICIES = re.compile(r"policies/(packing|skrull|cp_degree)/")  # sim asks the registry instead

LIMITS = {
    "files": 393,
    "lines": 86_662,
    "headers with one user": 7,
    "files above 550 lines": 0,
    "files that include the tests": 0,
    "files of sim that include single policies": 0,
    "files that include CLI11": 1,
}


def sources(root):
    """Text of each C++ file of the product by its name."""
    return {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8")
            for top in PRODUCT for file in sorted((root / top).rglob("*")) if file.suffix in (".h", ".cpp", ".cu", ".cuh")}


def users_of_headers(includes):
    """Who includes each header of the product, but for the file that implements it: a.cpp of a.h."""
    users = collections.defaultdict(set)
    for name, included in includes.items():
        for header in included:
            if header in includes and header.rsplit(".", 1)[0] != name.rsplit(".", 1)[0]:
                users[header].add(name)
    return users


def counts(texts):
    """What each limit is about: a number, and the names to show."""
    includes = {name: [found.group(1) for line in text.splitlines() if (found := INCLUDE.match(line))]
                for name, text in texts.items()}
    lines = {name: len(text.splitlines()) for name, text in texts.items()}
    single = {header: users for header, users in users_of_headers(includes).items() if len(users) == 1}

    def including(wanted, top=""):
        return sorted(name for name, list_ in includes.items() if name.startswith(top) and any(map(wanted, list_)))

    return {
        "files": (len(texts), []),
        "lines": (sum(lines.values()), []),
        "headers with one user": (len(single), [f"{header} of {min(users)}" for header, users in sorted(single.items())]),
        "files above 550 lines": shown(sorted(f"{name} ({count})" for name, count in lines.items() if count > 550)),
        "files that include the tests": shown(including(lambda path: path.startswith("tests/"))),
        "files of sim that include single policies": shown(including(POLICIES.match, "sim/")),
        "files that include CLI11": shown(including(lambda path: path.startswith("CLI/"))),
    }


def shown(names):
    return len(names), names


def test_counts():
    found = counts({"sim/a.h": "#include <CLI/CLI.hpp>\n", "sim/a.cpp": '#include "sim/a.h"\n#include "policies/skrull/gds.h"\n',
                    "sim/b.cpp": ' #include "sim/a.h"\n#include "tests/oracle/graph.h"\n' + "\n" * 550})
    assert {what: count for what, (count, _) in found.items()} == {
        "files": 3, "lines": 555, "headers with one user": 1, "files above 550 lines": 1, "files that include the tests": 1,
        "files of sim that include single policies": 1, "files that include CLI11": 1}, found


def main():
    test_counts()
    broken = False
    for what, (count, names) in counts(sources(pathlib.Path(__file__).resolve().parent.parent)).items():
        over = count > LIMITS[what]
        broken = broken or over
        print(f"{count:>7,} {what}, at most {LIMITS[what]:,}{': TOO MANY' if over else ''}")
        if over or "-v" in sys.argv:
            print("".join(f"          {name}\n" for name in names), end="")
    return 1 if broken else 0


sys.exit(main())

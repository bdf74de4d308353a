#!/usr/bin/env python3
"""Who includes whom. Includes point down: a file may include its own room and those below it, so that no cycle can grow.

The order of the rooms is written here, lowest first, and in each folder's README in words. A new room gets its place in
ROOMS; an include that this test refuses asks for a smaller piece to move down, not for another order. There is no limit on
lines or files: size is judged by reading."""
import pathlib
import re
import sys

ROOMS = """policies/base policies traces kernels profiler/profile profiler/fit profiler/predict profiler/measure sim/schedule sim/limits
sim/topology sim/workload sim/framework sim/cost sim/memory sim/step sim/verify sim/timeline sim/execution sim/metrics sim/report/words sim/study/read sim/study sim/report
sim/export
sim/validation sim/calibration sim/tune sim/cli sim/web sim/python""".split()
INCLUDE = re.compile(r'\s*#\s*include\s+[<"]([^>"]+)[>"]')

# What else a file may not include: the rule, whom it concerns, and which headers it forbids.
RULES = [
    ("the product includes nothing of its tests", lambda name: True, lambda path: path.startswith("tests/")),
    ("CLI11 is included under sim/cli alone, since it costs each file seven seconds of compilation",
     lambda name: not name.startswith("sim/cli/"), lambda path: path.startswith("CLI/")),
    ("sim asks the registry for policies and includes none of them",
     lambda name: name.startswith("sim/"), re.compile(r"policies/(packing|cp_degree)/").match),
]


def room_of(path):
    """The longest room that holds the path; none for a folder that has no place yet."""
    folders = path.split("/")[:-1]
    while folders and "/".join(folders) not in ROOMS:
        folders.pop()
    return "/".join(folders)


def faults(texts):
    """A line for each include that is not allowed, of the sources' texts by their names."""
    for name, text in texts.items():
        own = room_of(name)
        if not own:
            yield f"{name}: its folder has no place in ROOMS"
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if not (found := INCLUDE.match(line)):
                continue
            path = found.group(1)
            for rule, concerns, forbids in RULES:
                if concerns(name) and forbids(path):
                    yield f"{name}:{number}: includes {path}, but {rule}"
            if (other := room_of(path)) and ROOMS.index(other) > ROOMS.index(own):
                yield f"{name}:{number}: {own} includes {other}, which is above it"


def test_faults():
    found = list(faults({
        "sim/step/a.h": "#include <CLI/CLI.hpp>\n", "sim/cli/b.cpp": '#include <CLI/CLI.hpp>\n#include "sim/step/a.h"\n',
        "sim/cost/c.cpp": '\n#include "tests/oracle/graph.h"\n #include "policies/packing/wlb.h"\n#include "sim/step/a.h"\n',
        "elsewhere/d.h": ""}))
    assert [fault.split(": ")[0] for fault in found] == ["sim/step/a.h:1", "sim/cost/c.cpp:2", "sim/cost/c.cpp:3", "sim/cost/c.cpp:4",
                                                         "elsewhere/d.h"], found


def main():
    test_faults()
    root = pathlib.Path(__file__).resolve().parent.parent
    found = list(faults({file.relative_to(root).as_posix(): file.read_text(encoding="utf-8")
                         for top in dict.fromkeys(room.split("/")[0] for room in ROOMS)
                         for file in sorted((root / top).rglob("*")) if file.suffix in (".h", ".cpp", ".cu", ".cuh")}))
    print("\n".join(found) or f"{len(ROOMS)} rooms, every include points down")
    return 1 if found else 0


sys.exit(main())

#!/usr/bin/env python3
"""Includes point down: a file may include its own room and those below it, so that no cycle can grow.

The order of the rooms stands here, lowest first, and in each folder's README in words. A new room gets its place in
ROOMS; an include that this test refuses asks for a smaller piece to move down, not for another order."""
import pathlib
import re
import sys

ROOMS = """policies/base policies traces kernels profiler/profile profiler/fit profiler/predict profiler/measure sim/schedule sim/limits
sim/topology sim/workload sim/framework sim/cost sim/memory sim/step sim/timeline sim/execution sim/metrics sim/study/read sim/study sim/report
sim/export
sim/validation sim/calibration sim/tune sim/cli sim/python""".split()
INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')


def room_of(path):
    """The longest room that holds the path; none for a folder that has no place yet."""
    folders = path.split("/")[:-1]
    while folders and "/".join(folders) not in ROOMS:
        folders.pop()
    return "/".join(folders)


def faults(root):
    for top in dict.fromkeys(room.split("/")[0] for room in ROOMS):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in (".h", ".cpp", ".cu", ".cuh"):
                continue
            name = file.relative_to(root).as_posix()
            own = room_of(name)
            if not own:
                yield f"{name}: its folder has no place in ROOMS"
                continue
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                found = INCLUDE.match(line)
                if found and found.group(1).startswith("tests/"):
                    yield f"{name}:{number}: the product includes {found.group(1)} of its tests"
                other = room_of(found.group(1)) if found else ""
                if other and ROOMS.index(other) > ROOMS.index(own):
                    yield f"{name}:{number}: {own} includes {other}, which is above it"


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    assert room_of("sim/step/step_simulator.h") == "sim/step" and room_of("policies/packing/wlb.h") == "policies"
    found = list(faults(root))
    print("\n".join(found) or f"{len(ROOMS)} rooms, every include points down")
    return 1 if found else 0


sys.exit(main())

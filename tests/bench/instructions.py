#!/usr/bin/env python3
"""Whether a program has become slower than an earlier one, counted in instructions, which no neighbour disturbs:

  python3 tests/bench/instructions.py BEFORE AFTER [--works study op ...] [--most 3]

Works that a user waits for, at few steps on one thread, each counted once for each program: by `perf stat` where the machine
lets it count, else under valgrind, which takes fifty times as long. Names the works that take more than --most percent more;
the status is 1 where one does."""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

from user_work import ROOT, contended, packing, study

TRACE = str(ROOT / "traces/recorded/mixed.txt.zst")
DOCUMENTS = 131_072  # more than the trace has: packers see all at once


def steps(name, count, *options):
    return study(name, "--jobs", "1", "--set", f"batch.steps={count}", *options)


WORKS = {
    "start": ["--version"],
    "study": steps("405b-8k-gpus", 6),
    "op": steps("405b-8k-gpus", 3, "--fidelity", "op"),
    "study-wlb": steps("wlb-8k-gpus", 3),
    "study-7b": steps("7b-128k", 10),
    "chunks": steps("chunkflow-7b-256k", 2),
    "groups": steps("hbp-8b", 2),
    "experts": steps("deepseek-v3", 1),
    "contention": contended("--set", "parallel.data=1", "--set", "parallel.context=2", "--set",
                            "batch.sequences_per_step=16"),
    "pack-ffd": packing(TRACE, DOCUMENTS, "ffd"),
    "pack-wlb": packing(TRACE, DOCUMENTS, "wlb"),
    "pack-multipack": packing(TRACE, DOCUMENTS, "multipack"),
}

PERF = ["perf", "stat", "-x,", "-e", "instructions:u", "--"]
VALGRIND = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--"]


def counted(text):
    """The instructions that perf or callgrind says a command took; None where it counted none."""
    found = re.search(r"^(\d+),[^\n]*instructions", text, re.M) or re.search(r"Collected : (\d+)", text)
    return int(found[1]) if found else None


def instructions(counter, program, arguments):
    """None where the program does not know the command."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*counter, program, *arguments], cwd=folder, text=True, capture_output=True)
    return counted(done.stderr) if done.returncode == 0 else None


def counter_of(program):
    try:
        return PERF if instructions(PERF, program, ["--version"]) else VALGRIND
    except FileNotFoundError:
        return VALGRIND


def row(name, before, after, most):
    """A line of the table, and whether the work has lost more than `most` percent."""
    if before is None or after is None:
        return f"{name:16} {'a program refuses it':>40}", after is None and before is not None
    change = 100 * (after - before) / before
    lost = change > most
    return f"{name:16} {before / 1e6:12,.0f} M {after / 1e6:12,.0f} M {change:+8.1f} %{'  LOSS' if lost else ''}", lost


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    parser.add_argument("--works", nargs="*", choices=WORKS, default=list(WORKS))
    parser.add_argument("--most", type=float, default=3, help="percent")
    options = parser.parse_args()
    before, after = options.before.resolve(), options.after.resolve()
    counter = counter_of(after)
    losses = []
    for name in options.works:
        counts = [instructions(counter, program, WORKS[name]) for program in (before, after)]
        line, lost = row(name, *counts, options.most)
        print(line, flush=True)
        losses += [name] if lost else []
    print(f"{len(options.works)} works; more than {options.most:g} % lost by: {', '.join(losses) or 'none'}")
    return 1 if losses else 0


if __name__ == "__main__":
    sys.exit(main())

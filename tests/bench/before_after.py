#!/usr/bin/env python3
"""What users wait for, program next to program: CPU time and peak memory of whole processes, in one run.

  python3 tests/bench/before_after.py --program before=OTHER/bin/equipoise --program after=build/release/bin/equipoise
  python3 tests/bench/before_after.py --growth --program ... --save growth.json      exponents in size, next to the goal
  python3 tests/bench/before_after.py --print table.json growth.json [--write]       what --save kept; --write: into docs/results/benchmarks.md

Programs take turns; each cell is the median and half of the range. A command that takes longer than its limit, or that
a program refuses, is printed as such. Packing uses a million document lengths of --lengths (a trace, or a folder of
them: its largest), by default of EQUIPOISE_LENGTHS, else the recorded ones again and again. Nothing else should run
next to it."""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import growth
from process_cost import Cost, measure, spread, take_turns
from user_work import DOCUMENTS, FOLDER, LENGTHS, ROOT, WORKS

RECORDED = [ROOT / "traces/recorded" / f"{name}.txt.zst" for name in ("linux-source", "debian-code", "debian-docs")]


# --- what is run ---------------------------------------------------------------------------------------------------


def lengths_of(program, trace):
    """The lengths of any trace that the program reads."""
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "lengths.txt"
        subprocess.run([program, "trace", "convert", trace, "--out", text], check=True, capture_output=True)
        return text.read_text().split()


def sources_of(asked):
    """Files of `asked`, and what to call them."""
    if not asked:
        return RECORDED, "the recorded traces"
    path = pathlib.Path(asked)
    if path.is_dir():
        traces = [f for f in path.iterdir() if f.name.endswith((".txt", ".gz", ".zst", ".npy"))]
        path = max(traces, key=lambda f: f.stat().st_size)
    return [path], path.name


def apart(make):
    """The result of make() in a process of its own: a command starts with the most memory that its parent ever held."""
    with concurrent.futures.ProcessPoolExecutor(1) as process:
        return process.submit(make).result()


class Traces:
    """The documents that commands read, written for this run as one integer a line."""

    def __init__(self, folder, program, asked):
        self.folder, self.program = pathlib.Path(folder), program
        self.sources, self.name = sources_of(asked)

    def write(self, name, lengths):
        path = self.folder / name
        path.write_text("\n".join(lengths) + "\n")
        return str(path)

    def million(self):
        """The first so many of a million, by their number."""
        lengths = [x for source in self.sources for x in lengths_of(self.program, source)]
        lengths = (lengths * (DOCUMENTS // len(lengths) + 1))[:DOCUMENTS]
        counts = [DOCUMENTS // growth.SIZES[-1] * size for size in growth.SIZES]
        return {count: self.write(f"first-{count}.txt", lengths[:count]) for count in counts}

    def shorter(self):
        """By size, the recorded lengths divided by it."""
        lengths = [int(x) for x in lengths_of(self.program, ROOT / "traces/recorded/mixed.txt.zst")]
        return {size: self.write(f"shorter-{size}.txt", [str(max(1, x // size)) for x in lengths])
                for size in growth.SIZES}


def run_once(program, ways, most_seconds, lengths):
    """The cost of the first way to say it that the program does not refuse."""
    for arguments in ways:
        folder = tempfile.mkdtemp() if FOLDER in arguments else None
        arguments = [{FOLDER: folder, LENGTHS: lengths}.get(a, a) for a in arguments]
        cost = measure([program, *arguments], most_seconds, folder, "*.pftrace*")
        if cost.status != "refused":
            break
    return cost


def run_work(program, work, lengths):
    """The costs of its commands, up to the first that does not end well."""
    costs = []
    for ways in work.commands:
        costs.append(run_once(program, ways, work.most_seconds, lengths))
        if costs[-1].status != "ok":
            break
    return costs


# --- what is kept --------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Measured:
    """A JSON object: programs in their order; by work (or curve's point) and program, the costs of each repetition."""

    programs: list
    lengths: str = ""
    works: dict = dataclasses.field(default_factory=dict)

    def keep(self, key, rounds):
        self.works[key] = {name: [[dataclasses.asdict(c) for c in costs] for costs in of_name]
                           for name, of_name in rounds.items()}

    def of(self, key, program):
        return [[Cost(**c) for c in costs] for costs in self.works.get(key, {}).get(program, [])]

    def save(self, path):
        pathlib.Path(path).write_text(json.dumps(dataclasses.asdict(self)) + "\n")


def read_measured(paths):
    all_of_it = Measured([])
    for path in paths:
        part = json.loads(pathlib.Path(path).read_text())
        all_of_it.programs = part["programs"]
        all_of_it.lengths = part["lengths"] or all_of_it.lengths
        all_of_it.works.update(part["works"])
    return all_of_it


class One:
    """take_turns looks at a status: that of a work is its last command's."""

    def __init__(self, costs):
        self.costs, self.status = costs, costs[-1].status


def costs_of(rounds):
    return {name: [one.costs for one in of_name] for name, of_name in rounds.items()}


def measure_works(programs, works, traces, options, measured):
    packs = any(work.key.startswith("pack") for work in works)
    lengths = apart(traces.million)[DOCUMENTS] if packs else ""
    measured.lengths = traces.name if packs else ""
    for work in works:
        print(f"... {work.name}", file=sys.stderr, flush=True)
        run = lambda name: One(run_work(programs[name], work, lengths))
        measured.keep(work.key, costs_of(take_turns(list(programs), run, options.repeats, options.row_seconds)))
        if options.save:
            measured.save(options.save)


def measure_growth(programs, traces, options, measured):
    shorter = apart(traces.shorter)
    million = apart(traces.million)
    more = {size: million[DOCUMENTS // growth.SIZES[-1] * size] for size in growth.SIZES}
    for curve in curves(shorter, more):
        if options.only and not any(word in curve.name.split() for word in options.only.split(",")):
            continue
        print(f"... {curve.name}", file=sys.stderr, flush=True)
        out = set()  # programs that took too long: larger sizes are skipped
        for point in curve.points:
            if curve.key(point) in measured.works:
                continue
            names = [name for name in programs if name not in out]
            run = lambda name: One([measure([programs[name], *point.arguments], options.point_seconds)])
            rounds = take_turns(names, run, options.repeats, options.row_seconds / 10)
            out |= {name for name, of_name in rounds.items() if of_name[-1].status != "ok"}
            measured.keep(curve.key(point), costs_of(rounds))
            if options.save:
                measured.save(options.save)


def curves(shorter, more):
    return ([growth.study_curve(fidelity, axis, shorter) for fidelity in growth.FIDELITIES for axis in growth.AXES] +
            [growth.pack_curve(policy, more) for policy in growth.PACKERS])


# --- what is printed -----------------------------------------------------------------------------------------------


def number(value):
    digits = 0 if value >= 99.5 else 1 if value >= 9.95 else 2 if value >= 0.0995 else 3
    return f"{value:,.{digits}f}"


def cell(work, quantity, rounds):
    """'1.64 s ±2 %', or why there is none; and the median."""
    if not rounds:
        return "-", None
    last = rounds[-1][-1]
    if last.status == "late":
        return f"not in {work.most_seconds:.0f} s, {number(last.peak_MB)} MB by then", None
    if last.status != "ok":
        return f"{last.status}: {reason(last.text)}", None
    value = spread([quantity.of(costs) for costs in rounds])
    text = f"{number(value.median)}{'' if quantity.unit == 'x' else ' '}{quantity.unit}"
    return text + (f" ±{100 * value.half_range:.0f} %" if len(rounds) > 1 else ""), value.median


def reason(text):
    """The why in 'error: FILE: what: why; a way out'."""
    return re.sub(r".*: ", "", text.splitlines()[-1].split(";")[0]) if text else "no word"


def gain(quantity, first, last):
    if first is None or last is None or not first or not last:
        return ""
    ratio = last / first if quantity.more_is_better else first / last
    return f"{number(ratio)}x"


def row(cells):
    return "| " + " | ".join(cells) + " |"


def table(measured, works):
    """A line a quantity."""
    lines = [row(["work", "", *measured.programs, "gain"]), row(["---"] * (len(measured.programs) + 3))]
    for work in works:
        if work.key not in measured.works:
            continue
        name = work.name
        for quantity in work.quantities:
            cells = [cell(work, quantity, measured.of(work.key, program)) for program in measured.programs]
            texts = [text if name or value is not None else "" for text, value in cells]  # a reason is said once
            lines.append(row([name, quantity.name, *texts, gain(quantity, cells[0][1], cells[-1][1])]))
            name = ""
    return "\n".join(lines)


def growth_table(measured):
    lines = [row(["", "grows with", "goal", *[f"{p}: exponent (sizes), s" for p in measured.programs]]),
             row(["---"] * (len(measured.programs) + 3))]
    nowhere = dict.fromkeys(growth.SIZES, "")
    for curve in curves(nowhere, nowhere):
        keys = [curve.key(point) for point in curve.points]
        if keys[-1] not in measured.works and keys[2] not in measured.works:
            continue
        cells = [growth_cell(measured, curve, keys, program) for program in measured.programs]
        lines.append(row([curve.fidelity, curve.axis, curve.goal, *cells]))
    return "\n".join(lines)


def growth_cell(measured, curve, keys, program):
    rounds = [[costs[0] for costs in measured.of(key, program)] for key in keys]
    ended = [of_point if of_point and of_point[-1].status == "ok" else [] for of_point in rounds]
    sizes = [point.size for point in curve.points]
    if curve.axis == "documents" and not curve.fidelity in growth.PACKERS:
        sizes = [growth.documents_of(of_point[0].text) if of_point else 1 for of_point in ended]
    fit = growth.fit(curve, [[growth.seconds_of(curve, c) for c in of_point] for of_point in ended], sizes)
    if fit.exponent != fit.exponent:
        return f"- ({fit.sizes})"
    return f"{fit.exponent:.2f} ({fit.sizes}), {number(fit.costs[0])} to {number(fit.costs[-1])}"


def between(text, marker, table):
    """`text` with the part between <!-- marker --> and <!-- /marker --> replaced."""
    begin, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    head, rest = text.split(begin, 1)
    return f"{head}{begin}\n\n{table}\n\n{end}{rest.split(end, 1)[1]}"


def write_page(measured):
    page = ROOT / "docs/results/benchmarks.md"
    text = page.read_text()
    for marker, lines in {"works": table(measured, WORKS), "growth": growth_table(measured)}.items():
        text = between(text, marker, lines)
    page.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", action="append", default=[], help="NAME=PATH, in the order of the columns")
    parser.add_argument("--growth", action="store_true", help="exponents instead of the table")
    parser.add_argument("--only", default="", help="keys of works, or words of curves: stage,op,pack-isf")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--row-seconds", type=float, default=100, help="fewer repetitions where they take longer")
    parser.add_argument("--point-seconds", type=float, default=60, help="limit of a command of --growth")
    parser.add_argument("--lengths", default=os.environ.get("EQUIPOISE_LENGTHS", ""))
    parser.add_argument("--save", help="JSON of all costs, written after each row")
    parser.add_argument("--print", nargs="+", dest="files", default=[], help="tables of files that --save wrote")
    parser.add_argument("--write", action="store_true", help="with --print: into docs/results/benchmarks.md")
    options = parser.parse_args()
    if options.files:
        measured = read_measured(options.files)
    else:
        programs = dict(p.split("=", 1) for p in options.program) or {"now": str(ROOT / "build/release/bin/equipoise")}
        measured = Measured(list(programs))
        works = [w for w in WORKS if not options.only or w.key in options.only.split(",")]
        with tempfile.TemporaryDirectory() as folder:
            traces = Traces(folder, list(programs.values())[-1], options.lengths)
            if options.growth:
                measure_growth(programs, traces, options, measured)
            else:
                measure_works(programs, works, traces, options, measured)
    if any(not key.startswith("growth") for key in measured.works):
        print(f"A million documents: {measured.lengths or 'none packed'}.\n\n{table(measured, WORKS)}\n")
    if any(key.startswith("growth") for key in measured.works):
        print(growth_table(measured))
    if options.write:
        write_page(measured)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""What a user would run instead, next to ours: packers, balancers, a flow model and what-ifs, in turns, equal answers checked.

  python3 -m venv peers
  peers/bin/pip install numba numpy pyarrow binpacking prtpy sympy pandas tqdm matplotlib graphviz psutil fire
  peers/bin/pip install --no-deps trl axolotl verl llamafactory megatron-bridge nemo-toolkit llm-analysis
  peers/bin/python tests/bench/peers.py --folder openchat=FOLDER --folder calculon=FOLDER --folder simumax=FOLDER [--write]

A peer comes from the Python that runs this, or from the folder of its sources that --folder names; SimGrid from Debian
(libsimgrid-dev). What is not there is said and has no row; --write then writes nothing. Each side takes turns with the other, at the setting at which it
does best; a row is the median of --repeats. CPU seconds, so that neighbours disturb little.
`call` is a peer's function alone, `process` that with Python, imports, compilation and input; ours is always the whole
process, its reading of lengths from text included, but for contention, where both are solvers alone. Status 1 where a peer that is here fails or takes too long, where answers
differ, and where a row is not ahead and no reason is written."""
import argparse
import csv
import datetime
import io
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import against_simgrid
import peer_calls
from before_after import between, lengths_of, number, row, sources_of
from process_cost import measure, take_turns
from user_work import DOCUMENTS, ROOT

HERE = pathlib.Path(__file__).resolve().parent
PAGE = ROOT / "docs/results/peers.md"
CAPACITY = 4096
PARTS = 64
SAME_BALANCE = 1e-6  # of the mean: two largest parts that count as equal
SAME_FLOPS = 0.10  # of what-ifs: some count causal attention, some the full square, some no head
SECONDS_OF_A_ROW, SECONDS_OF_A_RUN = 60, 400


# --- packing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packing:
    peer: str  # of peer_calls.PACKERS
    what: str
    policy: str  # ours
    documents: int = DOCUMENTS
    lanes: int = 1
    parts: int = 0  # so many parts of equal load, instead of packs of CAPACITY
    same: bool = False  # the same algorithm: the answers are equal; else ours is not worse
    why: str = ""  # the reason, where ours is not ahead

    def size(self):
        return self.parts or CAPACITY

    def command(self, trace):
        size = ["--micro-batches", self.parts, "--linear-cost", 1] if self.parts else ["--pack-length", CAPACITY]
        return ["pack", trace, "--policy", self.policy, "--lanes", self.lanes, "--documents-per-step", self.documents, *size]


PACKING = [
    Packing("trl", "best-fit decreasing", "bfd", same=True),
    Packing("megatron-bridge", "first-fit decreasing", "ffd", same=True),
    Packing("nemo", "first-fit decreasing", "ffd", documents=10_000, same=True),
    Packing("prtpy", "first-fit decreasing", "ffd", documents=10_000, same=True),
    Packing("axolotl", "multipack: first fit in data order", "ffd"),
    Packing("axolotl-sequential", "sequential: next fit in data order", "longalign-packing", same=True),
    Packing("llamafactory", "the longest that fits", "ffd"),
    Packing("binpacking", "constant volume", "ffd", documents=10_000),
    Packing("openchat", f"multipack, {peer_calls.OPENCHAT_LANES} lanes", "multipack", lanes=peer_calls.OPENCHAT_LANES, same=True,
            why="its call is compiled code on an array in memory; ours also starts, reads the lengths from text and makes metrics, "
                "where its process first compiles for seconds"),
    Packing("binpacking-parts", f"constant number, {PARTS} parts", "lpt", parts=PARTS),
    Packing("verl", f"Karmarkar-Karp, {PARTS} parts", "karmarkar-karp", documents=16_384, parts=PARTS, same=True),
    Packing("prtpy-parts", f"Karmarkar-Karp, {PARTS} parts", "karmarkar-karp", documents=4_096, parts=PARTS, same=True),
]


def write_lengths(folder, program, asked):
    """A million documents of at most CAPACITY tokens, longer ones cut, as one integer a line; and their source's name."""
    sources, name = sources_of(asked)
    whole = [int(x) for source in sources for x in lengths_of(program, source)]
    cut = [min(CAPACITY, length - at) for length in whole for at in range(0, length, CAPACITY)]
    lengths = (cut * (DOCUMENTS // len(cut) + 1))[:DOCUMENTS]
    path = pathlib.Path(folder) / "lengths.txt"
    path.write_text("\n".join(map(str, lengths)) + "\n")
    return lengths, path, name


def packs_of(plan, lengths):
    """The packs of a plan (equipoise.plan/1) as lists of lengths; refuses a document that was cut."""
    micro_batches = [micro for step in plan["steps"] for lane in step["lanes"] for micro in lane["micro_batches"]]
    slices = [piece for micro in micro_batches for piece in micro["slices"]]
    if any((begin, end) != (0, lengths[document]) for document, begin, end in slices):
        raise ValueError("our plan cuts documents that fit")
    return [[lengths[document] for document, _, _ in micro["slices"]] for micro in micro_batches if micro["slices"]]


def packing_verdict(problem, theirs, ours, documents, mean):
    """Whether the answers are as they should be, and a cell that says what they are."""
    whole = theirs["placed"] == ours["placed"] and (problem.same or ours["placed"] == documents)
    if problem.parts:
        lead = (theirs["largest"] - ours["largest"]) / mean
        balanced = abs(lead) <= SAME_BALANCE or lead > 0 and not problem.same
        right = whole and balanced and theirs["packs"] == ours["packs"] == problem.parts
        shares = [f"{of['largest'] / mean:.6f}" for of in (theirs, ours)]
        return right, f"largest part over mean {shares[0]}" + ("" if shares[0] == shares[1] else f", ours {shares[1]}")
    fits = max(theirs["largest"], ours["largest"]) <= CAPACITY
    counts = theirs["packs"], ours["packs"]
    right = whole and fits and (counts[0] == counts[1] if problem.same else counts[0] >= counts[1])
    return right, f"{counts[0]:,} packs" + ("" if counts[0] == counts[1] else f", ours {counts[1]:,}")


# --- what-ifs ------------------------------------------------------------------------------------------------------

SWEEP = {"cluster.gpus": [128, 256, 512], "parallel.tensor": [1, 2, 4, 8], "parallel.pipeline": [1, 2, 4, 8]}
SEQUENCES = 512
PEAK_FLOPS = 312e12  # of an A100 in bf16, which MFU is of


def study():
    return {"name": "equal sequences", "trace": {"uniform": peer_calls.SEQUENCE, "documents": SEQUENCES}, "model": "llama2-7b",
            "cluster": {"profile": "a100-sxm", "gpus_per_node": 8, "gpus": 128},
            "parallel": {"tensor": 1, "context": 1, "pipeline": 1, "zero": 1},
            "batch": {"context_window": peer_calls.SEQUENCE, "sequences_per_step": SEQUENCES, "steps": 1}, "policies": ["plain"]}


def jobs():
    """In the order of our sweep."""
    return [{"gpus": gpus, "tensor": tensor, "pipeline": pipeline, "data": gpus // (tensor * pipeline), "sequences": SEQUENCES}
            for gpus in SWEEP["cluster.gpus"] for tensor in SWEEP["parallel.tensor"] for pipeline in SWEEP["parallel.pipeline"]]


def sweep_command(file):
    values = [f"{key}={','.join(map(str, of_key))}" for key, of_key in SWEEP.items()]
    return ["study", file, "--quiet", "--jobs", 1, "--ignore-memory", "--format", "csv", "--sweep", *values]


def sweep_answer(text):
    """Of our sweep as CSV."""
    rows = list(csv.DictReader(io.StringIO(text)))

    def step(of):
        took = float(of["step_seconds"])
        return took, float(of["mfu"]) * PEAK_FLOPS * took * float(of["gpus"])

    return peer_calls.steps_answer(jobs(), [step(of) if of["step_seconds"] else of["reason"] for of in rows])


def layout(job):
    return f"{job['gpus']} GPUs, TP {job['tensor']}, PP {job['pipeline']}"


def what_if_verdict(theirs, ours):
    off = theirs["flops"] / ours["flops"] - 1
    fastest = [f"{layout(of['fastest'])}: {of['seconds']:.2f} s" for of in (theirs, ours)]
    refused = f"; it refuses {theirs['of'] - theirs['steps']}" if theirs["of"] > theirs["steps"] else ""
    return abs(off) <= SAME_FLOPS, f"FLOPs {100 * off:+.0f} %; fastest {fastest[0]}, ours {fastest[1]}{refused}"


WHAT_IF_CARDS = {"simumax": ", PCIe A100"}  # the others have the A100 in SXM, as ours

WHAT_IF_REASONS = {
    "llm-analysis": "it divides FLOPs by a rate that the user gives, without kernels or a schedule: every layout of as many GPUs "
                    "takes the same seconds",
    "calculon": "it prices one micro-batch and multiplies, so that sequences must be equal; ours runs every document of every replica",
}


# --- turns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A row of the table. Seconds of CPU, medians."""

    work: str
    peer: str
    call: float
    process: float | None  # none of a peer that is measured from inside alone
    ours: float
    turns: int
    verdict: tuple  # right, words
    why: str = ""

    def faster(self):
        return self.call / self.ours


class Bench:
    def __init__(self, program, folders, repeats, scratch):
        self.program, self.folders, self.repeats, self.scratch = program, folders, repeats, scratch
        self.missing, self.failed, self.lines = [], [], []

    def peer(self, name, problem):
        """The cost of one run of a peer; its text is the peer's line of JSON."""
        file = self.scratch / "problem.json"
        file.write_text(json.dumps(problem))
        folder = self.folders.get(peer_calls.folder_name(name))
        return measure([sys.executable, HERE / "peer_calls.py", name, file, *([folder] if folder else [])], SECONDS_OF_A_RUN)

    def turns(self, name, problem, command):
        """(medians of call and process, of ours; turns) and the last JSON of the peer; None where the peer is not there or fails."""
        print(f"... {name}", file=sys.stderr, flush=True)
        run = {"peer": lambda: self.peer(name, problem), "ours": lambda: measure([self.program, *command], SECONDS_OF_A_RUN)}
        costs = take_turns(["peer", "ours"], lambda side: run[side](), self.repeats, SECONDS_OF_A_ROW)
        bad = {side: next((cost for cost in costs[side] if cost.status != "ok"), None) for side in costs}
        if bad["peer"]:
            why = f"{name} ({bad['peer'].status}: {(bad['peer'].text.splitlines() or ['no word'])[-1]})"
            (self.missing if bad["peer"].status == "refused" else self.failed).append(why)
            return None
        if bad["ours"]:
            raise SystemExit(f"ours failed: {' '.join(map(str, command))}: {bad['ours'].text}")
        said = [json.loads(cost.text) for cost in costs["peer"]]
        call, process = (statistics.median(one[key] for one in said) for key in ("call", "process"))
        return (call, process, statistics.median(cost.cpu for cost in costs["ours"]), min(map(len, costs.values()))), said[-1]

    def output(self, command):
        return subprocess.run([self.program, *map(str, command)], check=True, capture_output=True, text=True).stdout

    def packing(self, problem, lengths, path):
        some = lengths[: problem.documents]
        trace = path.with_name(f"first-{problem.documents}.txt")
        trace.write_text("\n".join(map(str, some)) + "\n")
        asked = {"lengths": str(path), "documents": problem.documents, "size": problem.size()}
        costs = self.turns(problem.peer, asked, problem.command(trace))
        if not costs:
            return
        (call, process, ours, turns), said = costs
        plan = json.loads(self.output([*problem.command(trace), "--format", "json"]))
        answer = peer_calls.packing_answer(some, packs_of(plan, some))
        verdict = packing_verdict(problem, said["answer"], answer, len(some), sum(some) / (problem.parts or 1))
        self.lines.append(Line(f"{problem.documents:,} documents, {problem.what}", f"{peer_calls.folder_name(problem.peer)} {said['version']}",
                               call, process, ours, turns, verdict, problem.why))

    def what_if(self, name):
        file = self.scratch / "study.json"
        file.write_text(json.dumps(study()))
        costs = self.turns(name, {"jobs": jobs()}, sweep_command(file))
        if not costs:
            return
        (call, process, ours, turns), said = costs
        verdict = what_if_verdict(said["answer"], sweep_answer(self.output(sweep_command(file))))
        self.lines.append(Line(f"one of {len(jobs())} layouts of 7B, equal sequences", f"{name} {said['version']}{WHAT_IF_CARDS.get(name, '')}", call,
                               process / len(jobs()), ours / len(jobs()), turns, verdict, WHAT_IF_REASONS.get(name, "")))

    def contention(self, trace, job):
        print(f"... SimGrid {job}", file=sys.stderr, flush=True)
        try:
            simgrid = against_simgrid.build_simgrid(self.scratch)
            if not simgrid or not trace:
                self.missing.append("SimGrid" if trace else "SimGrid (flow_trace is not built: -DEQUIPOISE_BENCHMARKS=ON)")
                return
            found = [against_simgrid.compare(trace, simgrid, job, self.scratch / "flows") for _ in range(self.repeats)]
        except subprocess.CalledProcessError as error:
            self.failed.append(f"SimGrid {job} ({pathlib.Path(error.cmd[0]).name} ends with status {error.returncode})")
            return
        theirs, ours = statistics.median(one["cpu"] for one, _ in found), statistics.median(one["all_flows_cpu"] for _, one in found)
        worst, flows = found[-1][0]["worst"], found[-1][0]["flows"]
        verdict = worst <= against_simgrid.MOST_OFF, f"ends at most {worst:.1e} of a flow's time apart"
        self.lines.append(Line(f"contention, solvers alone, {flows:,} flows of {job.split('x')[0]} GPUs", f"SimGrid {against_simgrid.version()}",
                               theirs, None, ours, self.repeats, verdict))


# --- what is printed -----------------------------------------------------------------------------------------------


def duration(seconds):
    if seconds is None:
        return ""
    return f"{number(seconds)} s" if seconds >= 0.0995 else f"{number(1e3 * seconds)} ms"


def table(lines):
    out = [row(["work", "peer", "its call", "its process", "ours", "faster", "answers"]), row(["---"] * 7)]
    for line in lines:
        times = [duration(seconds) for seconds in (line.call, line.process, line.ours)]
        out.append(row([line.work, line.peer, *times, f"{number(line.faster())}x", line.verdict[1]]))
    behind = [f"- {line.peer}, {line.work}: {line.why or 'NO REASON IS GIVEN'}." for line in lines if line.faster() < 1]
    return "\n".join(out) + ("\n\nOurs is not ahead of the call in:\n\n" + "\n".join(behind) if behind else "")


def machine():
    named = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    model = named[1].strip() if named else platform.machine()
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, {datetime.date.today():%-d %B %Y}"


def turns_made(lines):
    fewest, most = (of((line.turns for line in lines), default=0) for of in (min, max))
    if fewest < most:
        return f"Medians of {fewest} to {most} turns, as many as a row takes in {SECONDS_OF_A_ROW} s"
    return {0: "No turn", 1: "One turn"}.get(most, f"Medians of {most} turns")


def faults(lines, failed=()):
    yield from failed
    for line in lines:
        if not line.verdict[0]:
            yield f"{line.peer}, {line.work}: the answers differ: {line.verdict[1]}"
        if line.faster() < 1 and not line.why:
            yield f"{line.peer}, {line.work}: ours is not ahead, and no reason is written"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/bin/equipoise")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release", help="where flow_trace is")
    parser.add_argument("--folder", action="append", default=[], help="NAME=PATH: a peer's sources")
    parser.add_argument("--only", default="", help="names of peers: trl,verl,simgrid")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lengths", default=os.environ.get("EQUIPOISE_LENGTHS", ""),
                        help="a trace, or a folder of traces: its largest; by default the recorded ones, again and again")
    parser.add_argument("--simgrid-jobs", default="512x4,1024x4", help="GPUs x CP, of TP 8 and PP 16")
    parser.add_argument("--write", action="store_true", help="into docs/results/peers.md")
    options = parser.parse_args()
    if options.write and options.only:
        parser.error("--write puts all rows into the page; --only runs some")
    folders = dict(one.split("=", 1) for one in options.folder)
    wanted = lambda name: not options.only or name in options.only.split(",")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options.program, folders, options.repeats, pathlib.Path(folder))
        lengths, path, name = write_lengths(folder, options.program, options.lengths)
        for problem in PACKING:
            if wanted(problem.peer):
                bench.packing(problem, lengths, path)
        for job in options.simgrid_jobs.split(",") if wanted("simgrid") else ():
            bench.contention(next(options.build.rglob("flow_trace"), None), job)
        for peer in peer_calls.WHAT_IFS:
            if wanted(peer):
                bench.what_if(peer)
    text = f"{machine()}. Documents of {name}, cut at {CAPACITY:,} tokens. {turns_made(bench.lines)}.\n\n{table(bench.lines)}"
    if bench.missing:
        text += "\n\nNot here: " + "; ".join(bench.missing) + "."
    print(text)
    if options.write:
        bench.failed += [f"{name}: not here, and the page has all peers" for name in bench.missing]
        if not bench.failed:
            PAGE.write_text(between(PAGE.read_text(), "peers", text))
    found = list(faults(bench.lines, bench.failed))
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

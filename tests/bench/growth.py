"""How the cost of a study grows with documents, GPUs and micro-batches, at each fidelity, and that of packers with
documents: the sizes that before_after.py --growth runs, and the exponent that is fitted to them.

A study is 405b-8k-gpus.json's (TP 8, PP 16, four chunks a stage) with one of three sizes changed:
  documents      the recorded lengths divided by 1 to 16: as many tokens and micro-batches, more documents in each
  GPUs           replicas, with 32 micro-batches each
  micro-batches  of one replica
CPU time on one thread; of packers, the packing alone. What a process costs whatever the size (start, reading the trace)
is taken off first: the smallest size is run a second time with four times the steps."""
import dataclasses
import re

from process_cost import exponent, fixed_cost, spread
from user_work import DOCUMENTS, FAT_TREE, packing, packing_ms, study

GOAL, CONTENDED_GOAL = "1.05", "1.2"
PACKING_GOAL = "n log n: 1.08"  # over these sizes
MORE_STEPS = 4
SIZES = [1, 2, 4, 8, 16]
# A fidelity with its options, CP degree and steps.
FIDELITIES = {
    "stage": ([], 16, 30),
    "op": (["--fidelity", "op"], 16, 15),
    "contended": (["--fidelity", "op", *FAT_TREE], 4, 1),
}
AXES = ["documents", "GPUs", "micro-batches"]
PACKERS = ["isf", "ffd", "bfd", "multipack", "hbp"]


@dataclasses.dataclass(frozen=True)
class Point:
    size: int  # of SIZES; 0: the smallest with more steps
    arguments: list


@dataclasses.dataclass(frozen=True)
class Curve:
    fidelity: str  # or the packer
    axis: str
    points: list

    @property
    def name(self):
        return f"growth of {self.fidelity} with {self.axis}"

    def key(self, point):
        """The smallest study is the same along every axis."""
        shared = point.size < 2 and self.fidelity in FIDELITIES
        return f"growth of {self.fidelity} with {'any size' if shared else self.axis}, {point.size}"

    @property
    def goal(self):
        return PACKING_GOAL if self.fidelity in PACKERS else CONTENDED_GOAL if self.fidelity == "contended" else GOAL


def study_curve(fidelity, axis, shorter):
    """`shorter`: by size, a trace of as many times shorter documents."""
    options, context, steps = FIDELITIES[fidelity]
    policies = '["plain-4d"]' if fidelity == "contended" else '["plain-4d","wlb-llm"]'

    def arguments(size, steps):
        replicas = size if axis == "GPUs" else 1
        sequences = 32 * (1 if axis == "documents" else size)
        keys = {"policies": policies, "batch.steps": steps, "parallel.data": replicas, "parallel.context": context,
                "batch.sequences_per_step": sequences, "trace.file": shorter[size if axis == "documents" else 1]}
        settings = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
        return study("405b-8k-gpus", "--jobs", "1", "--ignore-memory", *options, *settings)

    points = [Point(size, arguments(size, steps)) for size in SIZES]
    return Curve(fidelity, axis, [Point(0, arguments(1, MORE_STEPS * steps)), *points])


def pack_curve(policy, lengths):
    """`lengths`: by size, a trace of as many times more documents."""
    documents = {size: DOCUMENTS // SIZES[-1] * size for size in SIZES}
    points = [Point(size, packing(lengths[size], documents[size], policy)) for size in SIZES]
    return Curve(policy, "documents", points)


def documents_of(text):
    """As a study's table says it."""
    return int(re.search(r"tokens of ([\d,]+) documents", text).group(1).replace(",", ""))


def seconds_of(curve, cost):
    return packing_ms([cost]) / 1000 if curve.fidelity in PACKERS else cost.cpu


@dataclasses.dataclass(frozen=True)
class Fit:
    exponent: float  # nan: of one size
    sizes: int
    costs: list  # median seconds by size, without what does not grow


def fit(curve, costs, sizes=None):
    """`costs`: by point, seconds of its repetitions, or none. `sizes`: by point, where they are not the points'."""
    sizes = sizes or [point.size for point in curve.points]
    medians = {p.size: spread(seconds).median for p, seconds in zip(curve.points, costs) if seconds}
    fixed = fixed_cost(medians[1], medians[0], MORE_STEPS) if 0 in medians and 1 in medians else 0
    pairs = [(at, medians[p.size] - fixed) for p, at in zip(curve.points, sizes) if p.size > 0 and p.size in medians]
    return Fit(exponent(pairs) if len(pairs) > 1 else float("nan"), len(pairs), [cost for _, cost in pairs])

"""What a figure or a cell measures: functions of a case (a setting by one draw), called by the names that the papers' files use."""

import json
from dataclasses import dataclass
from functools import cached_property

from .figure import ratio
from .runner import metric as metric_of
from .runner import row, status
from .runner import seconds_per_token as per_token
from .runner import speedup as speedup_of

UNITS = {"GiB": 2.0**30, "GB": 1e9, "K": 1024}
ATTENTION, PRODUCTS = ("head_dim", "mask", "seq_q", "seq_kv", "pass", "batch", "n_q_heads", "n_kv_heads"), ("M", "N", "K")


@dataclass
class Case:
    """A study with these rows and keys by the lengths of one draw; run when it is first asked."""

    run: object
    study: str
    policies: list
    keys: dict

    @cached_property
    def summary(self):
        return self.run.summary(self.study, self.policies, self.keys)


def metric(case, label, name, unit=None):
    """A metric of a row in a unit; nothing where the row did not run."""
    found = metric_of(case.summary, label, name)
    return found / UNITS[unit] if unit and found is not None else found


def speedup(case, label, against):
    return speedup_of(case.summary, label, against)


def slowdown(case, label, against):
    return ratio(per_token(case.summary, label), per_token(case.summary, against))


def slowdown_or_oom(case, label, against):
    return slowdown(case, label, against), "oom" if status(case.summary, label) == "oom" else ""


def speedup_and_status(case, label, against):
    found = status(case.summary, label)
    return speedup(case, label, against), "" if found == "ok" else found


def seconds_per_token(case, label, gpus=1):
    """GPU-seconds per token where the number of GPUs is given."""
    found = per_token(case.summary, label)
    return found and found * gpus


def tokens_per_second(case, label, gpus):
    """Of one GPU."""
    return ratio(1, seconds_per_token(case, label, gpus))


def tokens_per_step(case, label):
    found = row(case.summary, label)["metrics"]
    return found["total_tokens"] // round(found["total_seconds"] / found["step_seconds"])


def memory(case, label):
    """What the fullest GPU holds, in GiB, with a word where it is too much."""
    return metric(case, label, "peak_memory_bytes", "GiB"), "oom" if status(case.summary, label) == "oom" else ""


def gigabytes_of_ranks(case, label, ranks):
    """The peak of each CP rank in the first step."""
    return [peak / 1e9 for peak in case.run.peaks_of_ranks(case.study, case.policies, ranks, case.keys)[label]]


def emptiest(case, label, ranks):
    return min(gigabytes_of_ranks(case, label, ranks))


def fullest(case, label, ranks):
    return max(gigabytes_of_ranks(case, label, ranks))


def speedup_with_data_time(case, label, against, visible):
    """The speed-up where so many seconds per step wait for packing."""
    found = row(case.summary, label)
    total, step = found["metrics"]["total_seconds"], found["metrics"]["step_seconds"]
    return ratio(per_token(case.summary, against), (total + total / step * visible) / found["metrics"]["total_tokens"])


def optimum(case, name):
    """What the joint program says of the rules' plans: `longer` (%), `proven` (programs), `gap` (the largest left, %)."""
    numbers = {note["kind"]: note["numbers"] for note in row(case.summary, "skrull-solver")["notes"]}
    programs = numbers["programs_proven"]
    found = {"longer": numbers["heuristic_longer"]["share"], "gap": programs["gap"]}
    return programs["optimal"] if name == "proven" else round(100 * found[name], 2)


def printed(case, key, *command):
    """A key of what a command of the program prints as JSON."""
    return json.loads(case.run.call(*command, "--format", "json"))[key]


def plan(case, name):
    """A metric of a plan that `equipoise pack` makes. Keys: trace, batch, lanes, context and options of the policy."""
    shape = {"lanes": case.keys["lanes"], "context": case.keys["context"], **case.keys["batch"]}
    if case.keys["policy"][0] == "padded":
        shape["documents_per_step"] = shape["lanes"]
    options = (text for key, value in shape.items() for text in (f"--{key.replace('_', '-')}", str(value)))
    return case.run.pack(case.keys["trace"]["file"], *options, "--policy", *case.keys["policy"])[name]


def attention(case, unit, tokens, parts, heads, kv_heads):
    """The forward kernel of the last of equal parts of a document's queries on all its keys: ms or TFLOP/s by the profile."""
    queries = tokens // parts
    (ms,) = case.run.predicted(ATTENTION, [(128, "causal", queries, tokens, "fwd", 1, heads, kv_heads)])
    pairs = queries * tokens - queries * (queries - 1) / 2  # of the last queries of a document
    return ms if unit == "ms" else 4 * pairs * 128 * heads / ms / 1e9


def products(case, unit, tokens, parts, shapes):
    """The matrix products of a layer on a part of a document's tokens, `shapes` their N and K: ms or TFLOP/s by the profile."""
    rows = [(tokens // parts, *shape) for shape in shapes]
    ms = sum(case.run.predicted(PRODUCTS, rows))
    return ms if unit == "ms" else sum(2 * m * n * k for m, n, k in rows) / ms / 1e9


def share_of_documents(case, label, gigabytes, longest, distribution, count):
    """The share of documents whose own micro-step stays below this peak, of those up to a length."""
    low, high = 1024, longest
    while high - low > 64:
        middle = (low + high) // 2
        here = Case(case.run, case.study, case.policies, {**case.keys, "trace": {"uniform": middle}})
        low, high = (middle, high) if metric(here, label, "peak_memory_bytes", "GB") < gigabytes else (low, middle)
    below = [n for n in case.run.lengths(distribution, count) if n <= longest]
    return sum(n < low for n in below) / len(below)


MEASURES = {
    measure.__name__: measure
    for measure in (metric, speedup, slowdown, slowdown_or_oom, speedup_and_status, seconds_per_token, tokens_per_second, tokens_per_step, memory, emptiest, fullest,
                    speedup_with_data_time, optimum, printed, plan, attention, products, share_of_documents)
}

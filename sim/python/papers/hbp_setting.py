"""What HBP's tables share (arXiv 2503.07680): the machine, an iteration, packs of one length."""

import json

from .figure import Table
from .runner import STUDIES

PAPER = "HBP"
K = 1024
GIB = 2.0**30
TOKENS = 512 * K  # of an iteration: 4 packs of 128K
GPUS = 32
ISF = {"name": "isf", "shard": "per-sequence"}


class FittedTable(Table):
    """Its lengths come from this paper's balance ratios, its slowdowns from this paper's steps: nothing is predicted."""

    def add(self, what, published, ours, how="fitted", **keywords):
        last = what.split(": ")[-1]
        if last in ("abr", "cr", "dbr", "pr"):
            keywords["kind"] = last
        super().add(what, published, ours, how, **keywords)


def layers(count):
    return {"layers": count} if count else "none"


def component_rows():
    """ISF, + hierarchical and + balance of the shipped study."""
    return json.loads((STUDIES / "hbp-8b.json").read_text())["policies"][:3]


def short_documents(run, longest, documents):
    """Documents of the mixture up to a length: Tulu3 goes to 32K, and LongCite adds nothing below 4K."""
    found = [length for length in run.lengths("tulu3-longcite", documents) if length <= longest]
    return run.trace_of(found)


def packed_at(run, length, degree, rows, recompute="auto", steps=150, **keys):
    """Packs of one length on 32 GPUs, 512K tokens an iteration, documents no longer than a pack."""
    tokens = int(length[:-1]) * K
    trace = (
        {"distribution": "tulu3-longcite", "documents": 200000}
        if length == "128K"
        else short_documents(run, tokens, 200000)
    )
    batch = {
        "context_window": tokens,
        "sequences_per_step": max(TOKENS // tokens, GPUS // degree),
        "steps": steps,
    }
    return run.summary(
        "hbp-8b",
        rows,
        trace=trace,
        parallel__context=degree,
        parallel__data=GPUS // degree,
        parallel__recompute=recompute,
        batch=batch,
        **keys,
    )

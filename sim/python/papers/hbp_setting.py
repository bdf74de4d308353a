"""What HBP's tables share (arXiv 2503.07680): the machine, an iteration, packs of one length."""

import json

from .figure import Table
from .runner import STUDIES

PAPER = "HBP"
K = 1024
GIB = 2.0**30
TOKENS = 512 * K  # of an iteration: 4 packs of 128K
GPUS = 32
DOCUMENTS = 200000  # of a draw
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


def documents_up_to(run, longest):
    """Documents of the mixture up to a length: Tulu3 goes to 32K, and LongCite adds nothing below 4K."""
    return [length for length in run.lengths("tulu3-longcite", DOCUMENTS) if length <= longest]


def whole_documents(drawn, steps, tokens=TOKENS):
    """Documents an iteration so that `steps` of them hold `tokens` each on the mean, as the paper's do: by a fixed number
    a draw with few long documents would fill 31 packs for 32 lanes."""
    left = tokens * steps
    for i, length in enumerate(drawn):
        left -= length
        if left <= 0:
            return -(-(i + 1) // steps)
    raise ValueError(f"{len(drawn)} documents do not fill {steps} iterations of {tokens} tokens")


def iterations(run, steps, distribution="tulu3-longcite"):
    """The batch of a study: iterations of whole documents, 512K tokens on the mean."""
    count = whole_documents(run.lengths(distribution, DOCUMENTS), steps)
    return {"context_window": 128 * K, "sequences_per_step": TOKENS // (128 * K), "documents_per_step": count, "steps": steps}


def iterations_of_packs(drawn, pack, lanes, steps):
    """The same of packs of one length. Long ones hold whole documents. Packs up to 16K leave room that a count of documents does
    not foresee, so there iterations are cut as windows: each cuts a document, which moves abr by 0.02 at most."""
    packs = max(TOKENS // pack, lanes)
    batch = {"context_window": pack, "sequences_per_step": packs, "steps": steps}
    if pack > 16 * K:
        batch["documents_per_step"] = whole_documents(drawn, steps, packs * pack)
    return batch


def packed_at(run, length, degree, rows, recompute="auto", steps=150, **keys):
    """Packs of one length on 32 GPUs, 512K tokens an iteration, documents no longer than a pack."""
    pack = int(length[:-1]) * K
    drawn = documents_up_to(run, pack)
    return run.summary(
        "hbp-8b",
        rows,
        trace=run.trace_of(drawn),
        parallel__context=degree,
        parallel__data=GPUS // degree,
        parallel__recompute=recompute,
        batch=iterations_of_packs(drawn, pack, GPUS // degree, steps),
        **keys,
    )

"""Documents that are drawn for a study and how many of them make a batch: special forms of the keys `trace` and `batch`.

    trace = {from = "wikipedia", count = 5121, cut = 212984}    documents of a distribution by this draw
    batch = {iterations = 24}                                   iterations of 512K tokens on the mean, of whole documents
    batch = {packs = 131072, steps = 150}                       the same in packs of one length, at least one for each lane

Any other form is the program's own.
"""

import json
import math
import random
from statistics import NormalDist

K = 1024
ITERATION = 512 * K  # tokens of HBP's iteration: 4 packs of 128K
MIXTURE, DOCUMENTS = "tulu3-longcite", 200000  # HBP's documents, and their number in a draw


def documents(run, spec):
    """Lengths of the documents that a trace's `from` describes: draws from a distribution, filtered and cut as its
    keys say."""
    if "shape" in spec:
        drawn = joint_lengths(spec["shape"], run.seed)
    else:
        drawn = run.lengths(spec["from"], spec["count"])
    drawn = drawn[spec.get("skip", 0) :]
    drawn = [n for n in drawn if spec.get("at_least", 1) <= n <= spec.get("at_most", math.inf)]
    drawn = [min(n, spec.get("cut", n)) for n in drawn[: spec.get("first")]]
    if spec.get("median", 250) != 250:  # for chunkflow-eval, whose documents below 1K may be shorter or
                                        # longer
        power = math.log(spec["median"] / K) / math.log(250 / K)
        drawn = [max(8, round(K * (n / K) ** power)) if n < K else n for n in drawn]
    return drawn


def in_tokens(value, window):
    """A value in which {windows = x}, x a number or a list of them, is tokens of a context window ("128K" or a number)."""
    if isinstance(value, list):
        return [in_tokens(item, window) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"windows"}:
        tokens = int(window[:-1]) * K if str(window).endswith("K") else int(window)
        return [round(x * tokens) for x in value["windows"]] if isinstance(value["windows"], list) else round(value["windows"] * tokens)
    return {key: in_tokens(item, window) for key, item in value.items()}


def whole_documents(drawn, steps, tokens=ITERATION):
    """Documents per iteration so that `steps` iterations hold `tokens` each on the mean. A fixed number of documents has
    fewer tokens where a draw has few long ones, and fills 31 packs for 32 lanes."""
    left = tokens * steps
    for i, length in enumerate(drawn):
        left -= length
        if left <= 0:
            return -(-(i + 1) // steps)
    raise ValueError(f"{len(drawn)} documents do not fill {steps} iterations of {tokens} tokens")


def iterations(run, steps, distribution=MIXTURE):
    """A batch of whole documents that hold 512K tokens on the mean."""
    count = whole_documents(run.lengths(distribution, DOCUMENTS), steps)
    return {"context_window": 128 * K, "sequences_per_step": ITERATION // (128 * K), "documents_per_step": count, "steps": steps}


def iterations_of_packs(drawn, pack, lanes, steps):
    """A batch in packs of one length. Long packs hold whole documents. Packs up to 16K leave room that a count of documents
    does not foresee, so that their iterations are cut as windows: each cuts a document, which moves abr by 0.02 at most."""
    packs = max(ITERATION // pack, lanes)
    batch = {"context_window": pack, "sequences_per_step": packs, "steps": steps}
    if pack > 16 * K and drawn:
        batch["documents_per_step"] = whole_documents(drawn, steps, packs * pack)
    return batch


def drawn_trace(run, spec):
    """The documents of a trace, and the trace."""
    drawn = documents(run, spec)
    return drawn, run.trace_of(drawn)


def keys_of(run, setting):
    """A setting's keys with its special forms of `trace` and `batch` resolved for this draw."""
    keys, drawn = dict(setting), None
    if "from" in keys.get("trace", ()):
        drawn, keys["trace"] = run.once(json.dumps([keys["trace"], run.seed]), lambda: drawn_trace(run, setting["trace"]))
    batch = keys.get("batch", {})
    if "iterations" in batch:
        keys["batch"] = iterations(run, batch["iterations"], batch.get("of", MIXTURE))
    elif "packs" in batch:
        keys["batch"] = iterations_of_packs(drawn, batch["packs"], batch.get("lanes") or keys["parallel.data"], batch["steps"])
    return keys


def power_law(share, least, most, index):
    if abs(index) < 1e-9:
        return least * (most / least) ** share
    low, high = least**-index, most**-index
    return (low - (low - high) * share) ** (-1 / index)


def joint_lengths(shape, seed, count=60000):
    """Documents of HBP's mixture by the joint fit (fits.py): Tulu3 up to 32K with a mean of 0.8K, and 2K LongCite documents up
    to 128K among 940K. `shape`: the spread of ln(tokens) of Tulu3's body (sigma), the share and the index of its tail above 4K
    (tail, index), the shortest LongCite document in K and the index of their lengths (least, fall). The same draws serve
    every shape, so that two shapes differ by no sampling error."""
    draw, normal = random.Random(seed), NormalDist()
    tail_mean = sum(power_law((i + 0.5) / 200, 4 * K, 32 * K, shape["index"]) for i in range(200)) / 200
    body_mean = max(50, (0.8 * K - shape["tail"] * tail_mean) / (1 - shape["tail"]))
    median = body_mean / math.exp(shape["sigma"] ** 2 / 2)
    found = []
    for _ in range(count):
        which, share = draw.random(), min(max(draw.random(), 1e-12), 1 - 1e-12)
        if which < 2 / 940:
            tokens = power_law(share, shape["least"] * K, 128 * K, shape["fall"])
        elif which < 2 / 940 + shape["tail"]:
            tokens = power_law(share, 4 * K, 32 * K, shape["index"])
        else:
            tokens = min(32 * K, max(16, median * math.exp(shape["sigma"] * normal.inv_cdf(share))))
        found.append(int(tokens))
    return found

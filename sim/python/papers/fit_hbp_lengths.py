"""One joint fit of HBP's lengths (arXiv 2503.07680) to all balance ratios that its two versions print.

  python3 -m papers.fit_hbp_lengths [--program build/release/bin/equipoise]

Tulu3 up to 32K with a mean of 0.8K, and 2K LongCite documents up to 128K among 940K. Free are the spread of Tulu3's body, the
share and the index of its tail above 4K, and where LongCite begins and how its lengths fall. The two versions print other
ratios for the same setting (0.456 and 0.616 for ISF at 32K, SP 4), so no lengths can meet both: what is left of each stands in
the papers' tables (hbp_joint.py). Only plans are made, nothing is simulated. Least squares by a pattern search.
"""

import argparse
import math
import random
from dataclasses import astuple, dataclass, replace
from statistics import NormalDist

from .hbp_setting import K, iterations_of_packs
from .runner import ROOT, Runner

LONGCITE = 2 / 940  # of the documents
STEPS = 60
DOCUMENTS = 60000


@dataclass(frozen=True)
class Shape:
    sigma: float  # of ln(tokens) of Tulu3's body
    tail: float  # share of the documents of Tulu3 from 4K to 32K
    index: float  # of that tail's power law
    least: float  # tokens of the shortest LongCite document, K
    fall: float  # index of LongCite's power law; 0: even in ln(tokens)


START = Shape(0.42, 0.0001, 0, 16, 0)  # nearly `tulu3-longcite`
FITTED = Shape(0.6075, 0.0021, 0, 16, 0)  # what this program ended with
STEPS_OF = (0.15, 0.002, 0.5, 4.0, 0.3)
LOWEST = (0.2, 0.0, 0.0, 4.0, -2.0)


def power_law(share, least, most, index):
    if abs(index) < 1e-9:
        return least * (most / least) ** share
    low, high = least**-index, most**-index
    return (low - (low - high) * share) ** (-1 / index)


def lengths(shape, seed):
    """Documents of the mixture; the same draws for every shape, so that shapes are compared and not their luck."""
    draw = random.Random(seed)
    normal = NormalDist()
    tail_mean = sum(power_law((i + 0.5) / 200, 4 * K, 32 * K, shape.index) for i in range(200)) / 200
    body_mean = max(50, (0.8 * K - shape.tail * tail_mean) / (1 - shape.tail))
    median = body_mean / math.exp(shape.sigma**2 / 2)
    found = []
    for _ in range(DOCUMENTS):
        which, share = draw.random(), min(max(draw.random(), 1e-12), 1 - 1e-12)
        if which < LONGCITE:
            tokens = power_law(share, shape.least * K, 128 * K, shape.fall)
        elif which < LONGCITE + shape.tail:
            tokens = power_law(share, 4 * K, 32 * K, shape.index)
        else:
            tokens = min(32 * K, max(16, median * math.exp(shape.sigma * normal.inv_cdf(share))))
        found.append(int(tokens))
    return found


# Pack length in K, lanes, CP degree, policy and its options, metric, as printed, version.
ISF, RANDOM = ("isf",), ("random",)
HIERARCHICAL = ("hbp", "--groups", "16K:1,128K:8", "--no-balance")
BALANCED = ("hbp", "--groups", "16K:1,128K:8")
RATIOS = (
    (128, 4, 8, ISF, "abr", 0.506, "later"),
    (128, 4, 8, RANDOM, "abr", 0.53, "later"),
    (128, 4, 8, ("ffs",), "abr", 0.508, "later"),
    (128, 4, 8, ("ffd",), "abr", 0.515, "later"),
    (128, 4, 8, ("bfs",), "abr", 0.508, "later"),
    (128, 4, 8, ("spfhp",), "abr", 0.512, "later"),
    (128, 4, 8, ("padded",), "abr", 0.63, "later"),
    (128, 4, 8, ISF, "dbr", 0.003, "later"),
    (128, 4, 8, ISF, "pr", 0.01, "later"),
    (128, 4, 8, RANDOM, "pr", 0.03, "later"),
    (128, 4, 8, HIERARCHICAL, "abr", 0.288, "later"),
    (128, 4, 8, HIERARCHICAL, "cr", 0.173, "later"),
    (128, 4, 8, BALANCED, "abr", 0.002, "later"),
    (32, 8, 4, ISF, "abr", 0.456, "later"),
    (32, 8, 4, ISF, "dbr", 0.001, "later"),
    (4, 32, 1, ISF, "abr", 0.343, "later"),
    (4, 32, 1, ISF, "dbr", 0.003, "later"),
    (32, 8, 4, ("padded",), "abr", 0.744, "first"),
    (32, 8, 4, RANDOM, "abr", 0.620, "first"),
    (32, 8, 4, ISF, "abr", 0.616, "first"),
    (32, 8, 4, ("ffs",), "abr", 0.618, "first"),
    (32, 8, 4, ("ffd",), "abr", 0.693, "first"),
    (32, 8, 4, ("bfs",), "abr", 0.618, "first"),
    (32, 8, 4, ("spfhp",), "abr", 0.695, "first"),
)


def ratios(run, drawn):
    """Each of RATIOS with these documents."""
    plans = {}

    def plan(pack, lanes, degree, policy):
        own = [n for n in drawn if n <= pack * K]
        batch = iterations_of_packs(own, pack * K, lanes, STEPS)
        if policy[0] == "padded":
            batch["documents_per_step"] = lanes
        shape = {"lanes": lanes, "context": degree, **batch}
        options = (text for key, value in shape.items() for text in (f"--{key.replace('_', '-')}", str(value)))
        return run.pack(run.trace_of(own)["file"], *options, "--policy", *policy)

    found = []
    for pack, lanes, degree, policy, name, _, _ in RATIOS:
        key = pack, policy
        if key not in plans:
            plans[key] = plan(pack, lanes, degree, policy)
        found.append(plans[key][name])
    return found


def misfit(run, shape):
    return sum((ours - row[5]) ** 2 for ours, row in zip(ratios(run, lengths(shape, run.seed)), RATIOS))


def fit(run, say):
    """The least squares: a step of each number up and down, halved where none helps."""
    best, least = START, misfit(run, START)
    steps = list(STEPS_OF)
    names = list(Shape.__dataclass_fields__)
    for _ in range(12):
        before = least
        for i, name in enumerate(names):
            for sign in (1, -1):
                tried = replace(best, **{name: max(LOWEST[i], astuple(best)[i] + sign * steps[i])})
                if tried != best and (found := misfit(run, tried)) < least:
                    best, least = tried, found
                    break
        say(f"{least:.5f} {best}")
        if least > 0.995 * before:
            steps = [s / 2 for s in steps]
            if steps[0] < 0.02:
                break
    return best


def main():
    parser = argparse.ArgumentParser(prog="papers.fit_hbp_lengths", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/equipoise"))
    args = parser.parse_args()
    run = Runner(args.program)
    best = fit(run, lambda text: print(text, flush=True))
    for row, before, after in zip(RATIOS, *(ratios(run, lengths(shape, run.seed)) for shape in (START, best))):
        print(f"{row[0]}K {row[3][0]:8} {row[4]} {row[6]:6} paper {row[5]:.3f} start {before:.3f} fitted {after:.3f}")
    print(best)


if __name__ == "__main__":
    main()

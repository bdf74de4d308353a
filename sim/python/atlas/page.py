"""The atlas as a page (Markdown), and the data of its figure."""

from statistics import median

from .cells import what_plain_loses

EQUAL = 1.01  # which of two times within a hundredth is lower depends on the drawn documents


def page(cells, version):
    return "\n".join([INTRODUCTION.format(version=version), *cell_table(cells), "", POLICIES, *policy_table(cells), ""])


INTRODUCTION = """# The atlas

Which policy is fastest where, why, and how much slower the others are. One command makes this page, `./run.sh atlas --write`. To spread it
over machines, run `./run.sh atlas --keep FOLDER --share i/n` on each, then the first command with `--keep FOLDER` on one. Version {version}.

Every figure is simulated, on profile `h100-sxm`, with the framework preset and the memory of each job's study. A policy is represented by
the fastest of its rows (`sim/python/atlas/settings.py` says which): packers with adaptive sharding, baselines as their papers have them, and,
where a job's pipeline is interleaved, the better of interleaved and plain 1F1B. Gains are over `plain` (windows as they
arrive, per-sequence sharding) on the same documents, run to the end. Policies within 1 % of the fastest count as fastest.
Solver policies take minutes per batch and are excluded.

The bound spreads all work of the documents evenly over all GPUs of the layout, each token at its cost in a micro-batch of the best
size, with no exchange of CP and no pipeline to fill. No plan that leaves documents whole can be below it, and most cannot reach it.

Policies delay documents differently: `hbp` and the packers that see the whole set change the order of the data without a limit; `wlb` holds tokens back
for 0 to 2.6 batches on the mean, `fixed-greedy` over 8 batches for 0.6 to 1.2. `equipoise` has two rows: within its own bound, half
a batch on the mean, and as `equipoise, max_delay 8`, which is to be compared with those. Each time it runs with the job's schedule, where documents stay whole, and with `seq1f1b`, where it may cut them. No row of
it starts from the steps of `hbp` or `sorted`. `hbp`, `equipoise`, `flexsp`, `hybrid-cp` and `dynamic-cp` have lanes of other CP degrees than the
layout's. Where memory decides what is recomputed (`recompute: auto`, 8B), `hbp` does so for each of its groups and
`equipoise` for each micro-batch; the others recompute what the longest micro-batch asks for.

Since the page of 29 November 2026 `recompute: full` binds `hbp`, too: on DeepSeek-V2 it gains 1.94x and 2.12x where it was the fastest with 2.17x and
2.42x. Buckets are chosen by simulated time, by which `skrull` and `round-robin` gain up to 0.17x more. The search of `equipoise` became cheaper, and
its gains moved by -0.03x to 0.03x. `equipoise` within half a batch of delay is within 1 % of the fastest in 28 cells, where it was in 26.

![Speed of every policy in every cell](atlas.svg)

## Cell by cell

| job | trace | fastest | gain | above the bound | next, of another kind | gain | largest loss of `plain` |
| --- | --- | --- | --- | --- | --- | --- | --- |"""

POLICIES = """## Policy by policy

| policy | fastest in | median gain | least | most | does not run in |
| --- | --- | --- | --- | --- | --- |"""


def gain(ratio):
    return f"{ratio:.2f}x"


def fastest(cell):
    """The policies that no other policy beats by more than a hundredth."""
    ranking = cell.ranking()
    least = cell.best[ranking[0]].seconds
    return [policy for policy in ranking if cell.best[policy].seconds <= EQUAL * least]


def cell_table(cells):
    lines = []
    for cell in cells:
        first, *alike = fastest(cell)
        others = [policy for policy in cell.ranking() if policy.split(",")[0] != first.split(",")[0] and policy not in alike]
        named = cell.best[first].label + (f" ({', '.join(alike[:3])}{' …' if len(alike) > 3 else ''} alike)" if alike else "")
        rival = (cell.best[others[0]].label, gain(cell.speedup(others[0]))) if others else ("-", "-")
        above = f"{100 * (1 - cell.bound / cell.best[first].seconds):.0f} %" if cell.bound else "-"
        columns = (cell.job, cell.trace, named, gain(cell.speedup(first)), above, *rival, what_plain_loses(cell))
        lines.append(f"| {' | '.join(columns)} |")
    return lines


def policy_table(cells):
    policies = {policy for cell in cells for policy in (*cell.best, *cell.reasons)}
    wins = {policy: sum(policy in fastest(cell) for cell in cells) for policy in policies}
    gains = {policy: [g for cell in cells if (g := cell.speedup(policy))] for policy in policies}
    lines = []
    for policy in sorted(policies, key=lambda p: (-wins[p], -median(gains[p] or [0]), p)):
        found = gains[policy]
        figures = [gain(f(found)) if found else "-" for f in (median, min, max)]
        lines.append(f"| {policy} | {wins[policy]} of {len(cells)} | {' | '.join(figures)} | {len(cells) - len(found) or ''} |")
    return lines


def picture(cells):
    """The data of the page's figure: each policy's speed in each cell, policies with most wins first."""
    wins = {p: sum(p in fastest(c) for c in cells) for c in cells for p in (*c.best, *c.reasons)}
    return {"policies": sorted(wins, key=lambda policy: (-wins[policy], policy)), "cells": [squares(cell) for cell in cells]}


def squares(cell):
    least = cell.best[cell.ranking()[0]].seconds
    rows = {policy: {"row": found.label, "gain": round(cell.speedup(policy), 2), "of_fastest": round(least / found.seconds, 2)}
            for policy, found in cell.best.items()}
    return {"job": cell.job, "trace": cell.trace, "rows": rows | {policy: {"reason": reason} for policy, reason in cell.reasons.items()}}

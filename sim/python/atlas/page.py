"""The atlas as a page (Markdown) and a picture (SVG, written out: no plotting library)."""

from html import escape
from statistics import median

from .cells import what_plain_loses

EQUAL = 1.01  # times within a hundredth: which of the two is faster hangs on the documents drawn


def page(cells, version):
    return "\n".join([INTRODUCTION.format(version=version), *cell_table(cells), "", POLICIES, *policy_table(cells), ""])


INTRODUCTION = """# The atlas

Which policy where, why, and what the others leave. Made by one command, `./run.sh atlas --write`; over machines,
`./run.sh atlas --keep FOLDER --share i/n` on each and the first command with `--keep FOLDER` on one. Version {version}.

Every figure is simulated, on profile `h100-sxm`, with the framework preset and the memory of each job's study. A policy stands for
the fastest of its rows ([which](atlas/settings.py)): packers with adaptive sharding, baselines as their papers have them, and,
where a job's pipeline is interleaved, the better of interleaved and plain 1F1B. Gains are over `plain` (windows as they
arrive, per-sequence sharding) on the same documents, run to the end. Policies within 1 % of the fastest count as fastest.
Solver policies, which take minutes a batch, are left out.

The bound is all work of the documents spread evenly over all GPUs of the layout, each token at its cost in a micro-batch of the best
size, with no exchange of CP and no pipeline to fill: what no plan that leaves documents whole can be below, and most cannot reach.

Delay is not equal: `hbp` and the packers that see the whole set change the order of the data without a limit; `wlb` holds tokens back
for 0 to 2.6 batches on the mean, `fixed-greedy` over 8 batches for 0.6 to 1.2. `equipoise` stands here twice: within its own bound, half
a batch on the mean, and as `equipoise, max_delay 8`, which is to be compared with those and is
never slower. Each time it runs with the job's schedule, where documents stay whole, and with `seq1f1b`, where it may cut them. No row of
it starts from the steps of `hbp` or `sorted`. `hbp`, `equipoise`, `flexsp`, `hybrid-cp` and `dynamic-cp` have lanes of other CP degrees than the
layout's. Where memory decides what is recomputed (`recompute: auto`, 8B), `hbp` does so for each of its groups and
`equipoise` for each micro-batch; the others recompute what the longest micro-batch asks for. `hbp` does so in DeepSeek-V2, too, where all
others recompute every layer (`recompute: full`).

![Speed of every policy in every cell](atlas/atlas.svg)

## Cell by cell

| job | trace | fastest | gain | above the bound | next, of another kind | gain | largest loss of `plain` |
| --- | --- | --- | --- | --- | --- | --- | --- |"""

POLICIES = """## Policy by policy

| policy | fastest in | median gain | least | most | does not run in |
| --- | --- | --- | --- | --- | --- |"""


def gain(ratio):
    return f"{ratio:.2f}x"


def fastest(cell):
    """The policies that nothing beats by more than a hundredth."""
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


CELL, LEFT, TOP = 22, 150, 400


def svg(cells):
    """A square for each policy in each cell: its speed as a share of the cell's fastest; grey where it does not run."""
    wins = {p: sum(p in fastest(c) for c in cells) for c in cells for p in (*c.best, *c.reasons)}
    policies = sorted(wins, key=lambda policy: (-wins[policy], policy))
    width, height = LEFT + CELL * len(cells) + 20, TOP + CELL * len(policies) + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i, cell in enumerate(cells):
        x = LEFT + CELL * (i + 0.7)
        name = escape(f"{cell.job.split(',')[0]}: {cell.trace}")
        parts.append(f'<text x="{x:.0f}" y="{TOP - 6}" transform="rotate(-90 {x:.0f} {TOP - 6})">{name}</text>')
    for j, policy in enumerate(policies):
        y = TOP + CELL * j
        parts.append(f'<text x="{LEFT - 6}" y="{y + 15}" text-anchor="end">{escape(policy)}</text>')
        for i, cell in enumerate(cells):
            parts.append(square(cell, policy, LEFT + CELL * i, y))
    parts.append(
        f'<text x="{LEFT}" y="{height - 18}">dark: as fast as the fastest of the cell; pale: half as fast or slower; '
        "grey: does not run</text>"
    )
    return "\n".join(parts) + "\n</svg>\n"


def square(cell, policy, x, y):
    found = cell.best.get(policy)
    if not found:
        colour, text = "#dddddd", cell.reasons.get(policy, "")
    else:
        share = cell.best[cell.ranking()[0]].seconds / found.seconds
        pale = 1 - max(0.0, 2 * share - 1)
        colour = f"rgb({int(8 + 239 * pale)},{int(69 + 182 * pale)},{int(148 + 107 * pale)})"
        text = f"{found.label}: {gain(cell.speedup(policy))} over plain, {100 * share:.0f} % of the fastest"
    return (
        f'<rect x="{x}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" fill="{colour}">'
        f"<title>{escape(text[:200])}</title></rect>"
    )

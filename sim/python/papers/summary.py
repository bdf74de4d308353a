"""The first part of the page: how many figures agree (docs/accuracy.md has the ratios, too), the headlines, what is not here."""

from dataclasses import replace
from statistics import mean

from .figure import AIM, COLUMNS, HOW, NEAR_ONE, SHARE, Table, figure_line

BEGIN, END = "<!-- papers -->\n", "<!-- /papers -->\n"


def figures_of(tables):
    """(paper, figure) of every table that has published ones."""
    return [(table.paper, f) for table in tables if isinstance(table, Table) for f in table.figures]


def null_says(figures):
    """What a model without knowledge would predict for each figure: 1 for a ratio, else the paper's mean of its
    kind."""
    kinds = {}
    for paper, f in figures:
        if not f.is_ratio:
            kinds.setdefault((paper, f.kind, f.unit), []).append(f.published)
    return [
        1.0 if f.is_ratio else mean(kinds[paper, f.kind, f.unit]) if len(kinds[paper, f.kind, f.unit]) > 1 else None
        for paper, f in figures
    ]


def count_line(name, chosen):
    """How many of the (figure, what the null model says) pairs agree, are explained, and agree with the null model."""
    agree = sum(f.agrees for f, _ in chosen)
    explained = sum(not f.agrees and f.explained for f, _ in chosen)
    null = sum(f.agreed_by(said) for f, said in chosen)
    return f"| {name} | {len(chosen)} | {agree} | {null} | {explained} | {len(chosen) - agree - explained} |"


COUNTS = [
    "| | figures | ours agrees | null model agrees | ours explained | differs |",
    "| --- | --- | --- | --- | --- | --- |",
]


def ratio_counts(figures, said):
    """The ratios by paper: how many ours and the null model agree with."""
    ratios = [(paper, (f, null)) for (paper, f), null in zip(figures, said) if f.is_ratio]
    lines = [
        f"Of {len(ratios)} printed ratios, those of which ours has {SHARE[0]} to {SHARE[1]} of the gain; the null model "
        "says 1:",
        "",
        *COUNTS,
    ]
    for name in dict.fromkeys(paper for paper, _ in ratios):
        lines.append(count_line(name, [pair for paper, pair in ratios if paper == name]))
    return lines + [count_line("all", [pair for _, pair in ratios])]


def other_counts(figures, said):
    """Figures that are no ratios, and all figures by what was used of the paper."""
    pairs = [(f, null) for (_, f), null in zip(figures, said)]
    lines = [*COUNTS, count_line("no ratios: seconds, memory, balance", [p for p in pairs if not p[0].is_ratio])]
    for how, meaning in HOW.items():
        lines.append(count_line(f"{how}: {meaning}", [p for p in pairs if p[0].how == how]))
    return lines


RULE = (
    f"A ratio agrees if ours has {SHARE[0]} to {SHARE[1]} of the printed gain, (ours - 1) / (paper - 1), or if both are "
    f"within {NEAR_ONE} of 1; any other figure within {100 * AIM:.0f} %. The null model says 1 for every ratio and the "
    "paper's mean for every other figure. A figure is explained where ours, over what the paper leaves open, comes to "
    "the printed one. Where documents are drawn, ours is the median of 8 draws (seeds 0 to 7), with their lowest and "
    "highest; so are cells of experiments. What is open is a range of settings that the paper does not print, each at its median."
)


def summary_of(tables):
    figures = figures_of(tables)
    said = null_says(figures)
    lines = ["## Score", "", RULE, "", BEGIN.strip(), "", *ratio_counts(figures, said), "", END.strip(), ""]
    lines += [*other_counts(figures, said), "", "## Headlines", ""]
    lines += [f"| paper | | {' | '.join(COLUMNS)} | |", "| --- " * (len(COLUMNS) + 3) + "|"]
    for table in tables:
        if not isinstance(table, Table):
            continue
        title = table.title.split(",")[0].split(":")[0].split(" (")[0]
        for f in table.figures:
            if f.headline:
                named = replace(f, what=f"{title}: {f.what}", headline=False)
                lines.append(f"| {table.paper} {figure_line(named)}")
    return "\n".join([*lines, ""])


def block_of(text):
    """The text between the marks."""
    return text.partition(BEGIN)[2].partition(END)[0]


def row_of(block):
    """The row in docs/accuracy.md of what is validated by what, from the counts of the ratios."""
    count, agree, null = next(line for line in block.splitlines() if line.startswith("| all |")).split("|")[2:5]
    return (
        f"| papers |{count}printed ratios of four, most with lengths or slowdowns fitted to them |{agree}agree by share of gain,"
        f"{null}of a null model's |\n"
    )


def not_here(missing):
    lines = ["## Not here, and why", "", "| paper | | why |", "| --- | --- | --- |"]
    return "\n".join(lines + [f"| {paper} | {what} | {why} |" for paper, what, why in missing]) + "\n"

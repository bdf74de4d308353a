"""What stands first: the headlines, how many figures agree, and what is not here; the README has it, too."""

from statistics import mean

from .figure import AIM, HOW, NEAR_ONE, SHARE, Table, number, remark, score

BEGIN, END = "<!-- papers -->\n", "<!-- /papers -->\n"


def figures_of(tables):
    """(paper, figure) of every table that has published ones."""
    return [(table.paper, f) for table in tables if isinstance(table, Table) for f in table.figures]


def ours_of(f):
    text = number(f.ours, f.unit)
    if f.band and None not in f.band:
        text += f" ({number(min(f.band), f.unit)} to {number(max(f.band), f.unit)})"
    return text


def null_says(figures):
    """What a model that knows nothing says of each figure: 1 for a ratio, else the paper's mean of its kind."""
    kinds = {}
    for paper, f in figures:
        if not f.is_ratio:
            kinds.setdefault((paper, f.kind, f.unit), []).append(f.published)
    return [
        1.0 if f.is_ratio else mean(kinds[paper, f.kind, f.unit]) if len(kinds[paper, f.kind, f.unit]) > 1 else None
        for paper, f in figures
    ]


def count_line(name, chosen):
    """Of (figure, what the null model says) pairs: how many agree, are explained, and agree with the null model."""
    agree = sum(f.agrees for f, _ in chosen)
    explained = sum(not f.agrees and f.explained for f, _ in chosen)
    null = sum(f.agreed_by(said) for f, said in chosen)
    return f"| {name} | {len(chosen)} | {agree} | {null} | {explained} | {len(chosen) - agree - explained} |"


COUNTS = [
    "| | figures | ours agrees | null model agrees | ours explained | differs |",
    "| --- | --- | --- | --- | --- | --- |",
]


def counts(figures):
    """Tables of how many figures agree, ours beside the null model: ratios by paper, all by what was used."""
    said = list(zip(figures, null_says(figures)))
    ratios = [(paper, (f, null)) for (paper, f), null in said if f.is_ratio]
    papers = dict.fromkeys(paper for paper, _ in figures)
    lines = ["Ratios, of which 1 says that nothing is gained:", "", *COUNTS]
    lines += [count_line(name, [pair for paper, pair in ratios if paper == name]) for name in papers]
    lines += [count_line("all ratios", [pair for _, pair in ratios])]
    others = [(f, null) for (_, f), null in said if not f.is_ratio]
    lines += [count_line("other figures (seconds, memory, balance)", others)]
    lines += ["", "The same by what was used of the paper:", "", *COUNTS]
    for how, meaning in HOW.items():
        lines.append(count_line(f"{how}: {meaning}", [(f, null) for (_, f), null in said if f.how == how]))
    return lines


RULE = (
    f"A ratio agrees if ours has {SHARE[0]} to {SHARE[1]} of the printed gain, (ours - 1) / (paper - 1), or if both are "
    f"within {NEAR_ONE} of 1; any other figure within {100 * AIM:.0f} %. The null model says 1 for every ratio and the "
    "paper's mean for every other figure. A figure is explained where ours, over what the paper leaves open, comes to "
    "the printed one (the band contains it)."
)


def summary_of(tables):
    figures = figures_of(tables)
    lines = ["## Headlines", "", BEGIN.strip(), "", RULE, "", *counts(figures), ""]
    lines += [
        "| paper | | paper | ours (band over what it leaves open) | share of gain | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for table in tables:
        if not isinstance(table, Table):
            continue
        title = table.title.split(",")[0].split(":")[0].split(" (")[0]
        for f in table.figures:
            if f.headline:
                lines.append(
                    f"| {table.paper} | {title}: {f.what} | {number(f.published)} | {ours_of(f)} | "
                    f"{score(f)} | {remark(f)} |"
                )
    lines += ["", END.strip(), ""]
    return "\n".join(lines)


def block_of(text):
    """What stands between the marks."""
    return text.partition(BEGIN)[2].partition(END)[0]


def left_out(missing):
    lines = ["## Not here, and why", "", "| paper | | why |", "| --- | --- | --- |"]
    return "\n".join(lines + [f"| {paper} | {what} | {why} |" for paper, what, why in missing]) + "\n"

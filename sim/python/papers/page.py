"""The page: how many figures agree (docs/accuracy.md has the ratios, too), then a section for each paper."""

from dataclasses import asdict
from statistics import mean

from .figure import AIM, NEAR_ONE, SHARE, Experiment, Table, extent, number, score, verdict

BEGIN, END = "<!-- papers -->\n", "<!-- /papers -->\n"


def lines_of(*rows):
    """A table of Markdown: the first row is its head."""
    head, *rest = (f"| {' | '.join(map(str, row))} |" for row in rows)
    return [head, "| --- " * len(rows[0]) + "|", *rest, ""]


def figures_of(tables):
    """(paper, figure) of every table that has published ones."""
    return [(table.paper, f) for table in tables if isinstance(table, Table) for f in table.figures]


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


def counts(name, chosen):
    """How many of the (figure, what the null model says) pairs agree: ours, with the fewest choices, and the null model."""
    return (
        name,
        len(chosen),
        sum(f.agrees for f, _ in chosen),
        sum(f.agreed_by(f.unchosen) for f, _ in chosen),
        sum(f.agreed_by(said) for f, said in chosen),
    )


COUNTS = ("", "figures", "ours agrees", "fewest choices agrees", "null model agrees")


def score_of(tables):
    figures = figures_of(tables)
    pairs = [(paper, (f, said)) for (paper, f), said in zip(figures, null_says(figures))]
    now = [(paper, pair) for paper, pair in pairs if "now" in pair[0].counted]
    ratios = [(paper, pair) for paper, pair in now if pair[0].is_ratio]
    names = dict.fromkeys(paper for paper, _ in ratios)
    before = [f for _, f in figures if f.is_ratio and "before" in f.counted]
    old, null = (sum(f.agreed_by(say(f), either_side=True) for f in before) for say in (lambda f: f.ours, lambda f: 1.0))
    rest = [pair for _, pair in now if not pair[0].is_ratio]
    return [
        "## Score",
        "",
        f"A ratio agrees if ours has {SHARE[0]} to {SHARE[1]} of the printed gain, (ours - 1) / (paper - 1), or if both are within "
        f"{NEAR_ONE} of 1 on one side of it; any other figure within {100 * AIM:.0f} %. The null model says 1 for every ratio and the "
        "paper's mean for every other figure. A printed number counts once. Each paper has one setting, which its first table states; "
        '"fewest choices" is what is printed, with the lengths and slowdowns that are "as chosen" there. '
        'Ours is the median of all draws of lengths, with the lowest and highest in brackets; "oom 2/8": two of eight draws do not fit.',
        "",
        BEGIN.strip(),
        "",
        f"Of {len(ratios)} printed ratios, those that agree:",
        "",
        *lines_of(COUNTS, *(counts(name, [pair for paper, pair in ratios if paper == name]) for name in names),
                  counts("all", [pair for _, pair in ratios])),
        f"As counted before (repeated numbers, either side of 1): {old} of {len(before)}, of which the null model has {null}.",
        "",
        END.strip(),
        "",
        *lines_of(COUNTS, counts("no ratios: seconds, memory, balance", rest),
                  *(counts(f"{how}, of all", [pair for _, pair in now if pair[0].how == how]) for how in ("predicted", "fitted", "by construction"))),
    ]


def ratio_row(f, usual):
    same = f.unchosen == f.ours
    return (
        f"**{f.what}**" if f.headline else f.what,
        number(f.published),
        number(f.ours) + extent(f.draws),
        "" if same else number(f.unchosen),
        score(f),
        verdict(f) + ("" if f.how == usual else f", {f.how}") + ("" if "now" in f.counted else " (not counted)"),
    )


def joint_row(figures, usual):
    """Figures of one kind that are no ratios, or ratios that are off for one reason, in one row."""
    first, unit = figures[0], figures[0].unit
    what = "; ".join(f.what.removesuffix(f": {f.kind}") for f in figures)
    ours, unchosen = ([getattr(f, name) for f in figures] for name in ("ours", "unchosen"))
    reasons = ", ".join(dict.fromkeys(f.cannot for f in figures if f.cannot and not f.agrees))
    return (
        what if first.is_ratio else f"{first.kind}: {what}",
        f"{number([f.published for f in figures], unit)} {unit}".strip(),
        number(ours, unit),
        "" if ours == unchosen else number(unchosen, unit),
        ", ".join(map(score, figures)) if first.is_ratio else "",
        f"{sum(f.agrees for f in figures)} of {len(figures)} agree"
        + ("" if first.how == usual else f", {first.how}") + (f"; differs: {reasons}" if reasons else ""),
    )


def together(f):
    """What figures share that are in one row: a reason of ratios that are off, or the kind of what is no ratio."""
    if not f.is_ratio:
        return (f.kind, f.unit, f.how)
    return (f.cannot, f.how, f.counted) if f.cannot and not f.agrees else (f.what,)


def rows_of(table, usual):
    yield (f"*{table.title}*", "", "", "", "", "")
    for key in dict.fromkeys(map(together, sorted(table.figures, key=lambda f: not f.is_ratio))):
        figures = [f for f in table.figures if together(f) == key]
        alone = len(figures) == 1 and figures[0].is_ratio
        yield ratio_row(figures[0], usual) if alone else joint_row(figures, usual)


def experiment_lines(table):
    return [
        f"### {table.title}",
        "",
        *([table.note, ""] if table.note else []),
        *lines_of(table.columns, *([number(cell) for cell in row] for row in table.rows)),
    ]


FIGURES = ("", "paper", "ours", "fewest choices", "share of gain", "")


def markdown(table):
    """A table alone, by which two runs are compared."""
    lines = experiment_lines(table) if isinstance(table, Experiment) else [table.note, *lines_of(FIGURES, *rows_of(table, ""))]
    return "\n".join(lines)


def section_of(paper, tables):
    """What is open and what was chosen, every figure next to ours, what cannot agree, the experiments, what is not here."""
    usual = paper.data.get("how", "predicted")
    lines = [f"## {paper.name}", ""]
    choices = [[choice[key] for key in ("what", "text", "unchosen", "chosen", "by")] for choice in paper.hypothesis]
    lines += lines_of(("open", "what the paper says", "fewest choices", "chosen", "by"), *choices)
    drawn = f"of {paper.draws} draws" if paper.draws > 1 else "of one draw"
    lines += [f"Figures are {usual} unless they say otherwise. They are {drawn}.", ""]
    figures = [row for table in tables if isinstance(table, Table) for row in rows_of(table, usual)]
    lines += lines_of(FIGURES, *figures)
    notes = [f"{table.title.partition(',')[0].partition(':')[0]}: {table.note}" for table in tables if isinstance(table, Table) and table.note]
    lines += [" ".join(notes), ""] if notes else []
    lines += ["Why some differ:", "", *(f"- **{name}**: {why}" for name, why in paper.cannot.items()), ""] if paper.cannot else []
    for table in tables:
        lines += experiment_lines(table) if isinstance(table, Experiment) else []
    return lines + ["Not here:", "", *(f"- {what}: {why}" for what, why in paper.not_here), ""]


def page_of(papers, tables):
    lines = score_of(tables)
    for paper in papers:
        lines += section_of(paper, [table for table in tables if table.paper == paper.name])
    return "\n".join(lines)


def data_of(tables):
    """Every figure with its draws, as the page's drawing and later readers take them."""
    rounded = lambda value: float(f"{value:.6g}") if isinstance(value, float) else [rounded(x) for x in value] if isinstance(value, tuple) else value
    keys = ("what", "published", "ours", "unchosen", "draws", "how", "unit", "kind", "headline", "counted")
    return [
        {"paper": table.paper, "table": table.title, **{key: [*f.counted] if key == "counted" else rounded(asdict(f)[key]) for key in keys},
         "agrees": f.agrees}
        for table in tables if isinstance(table, Table) for f in table.figures
    ]


def block_of(text):
    """The text between the marks."""
    return text.partition(BEGIN)[2].partition(END)[0]


def row_of(block):
    """The row of docs/accuracy.md of what is validated by what, from the counts of the ratios."""
    cells = next(line for line in block.splitlines() if line.startswith("| all |")).split("|")
    return (
        f"| papers |{cells[2]}printed ratios of four, most with lengths or slowdowns fitted to them |{cells[3]}agree by share of gain, "
        f"{cells[4].strip()} with the fewest choices,{cells[5]}of a null model's |\n"
    )

"""What stands first: the headlines, how many figures agree (the README has this, too), and what is not here."""

from .figure import AIM, HOW, Table, number, percent

BEGIN, END = "<!-- papers -->\n", "<!-- /papers -->\n"


def figures_of(tables):
    """(paper, figure) of every table that has published ones."""
    return [(table.paper, f) for table in tables if isinstance(table, Table) for f in table.figures]


def ours_of(f):
    text = number(f.ours, f.unit)
    if f.band and None not in f.band:
        text += f" ({number(min(f.band), f.unit)} to {number(max(f.band), f.unit)})"
    return text


def summary_of(tables):
    figures = figures_of(tables)
    lines = [
        "## Headlines",
        "",
        "| paper | | paper | ours (band over what it leaves open) | deviation | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for table in tables:
        if not isinstance(table, Table):
            continue
        title = table.title.split(",")[0].split(":")[0].split(" (")[0]
        for f in table.figures:
            if f.headline:
                cause = f"; {f.cause}" if f.beyond() and f.cause else ""
                lines.append(
                    f"| {table.paper} | {title}: {f.what} | {number(f.published)} | {ours_of(f)} | "
                    f"{percent(f.deviation)} | {f.how}{cause} |"
                )
    lines += [
        "",
        BEGIN.strip(),
        "",
        f"Of all {len(figures)} figures that are compared:",
        "",
        "| | figures | within 15 %, ratios next to zero within 0.02 | the others |",
        "| --- | --- | --- | --- |",
    ]
    for how, meaning in HOW.items():
        of_kind = [f for _, f in figures if f.how == how]
        beyond = [f for f in of_kind if f.beyond()]
        shown = sum('see "' in f.cause or f.band is not None for f in beyond)
        lines.append(
            f"| {how}: {meaning} | {len(of_kind)} | {len(of_kind) - len(beyond)} | "
            + (
                f"{len(beyond)}, for {shown} of them an experiment or a band shows what they hang on |"
                if beyond
                else "- |"
            )
        )
    assert AIM == 0.15  # as the table says
    lines += ["", END.strip(), ""]
    return "\n".join(lines)


def block_of(text):
    """What stands between the marks."""
    return text.partition(BEGIN)[2].partition(END)[0]


def left_out(missing):
    lines = ["## Not here, and why", "", "| paper | | why |", "| --- | --- | --- |"]
    return "\n".join(lines + [f"| {paper} | {what} | {why} |" for paper, what, why in missing]) + "\n"

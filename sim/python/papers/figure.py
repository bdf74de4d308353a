"""A published figure beside ours, and tables of them."""

from dataclasses import dataclass, field
from statistics import mean

AIM = 0.15  # of the published figure

HOW = {
    "predicted": "nothing was fitted to it",
    "fitted": "a setting was chosen with this paper's results in view",
    "by construction": "the input was made so that it comes out",
}


@dataclass
class Figure:
    what: str
    published: float
    ours: float | None
    how: str = "predicted"
    unit: str = ""
    cause: str = ""  # of a deviation beyond the aim, and the table that shows it
    headline: bool = False
    band: tuple | None = None  # ours over what the paper does not print
    small: float = 0.0  # an absolute difference up to this is no deviation (ratios next to zero)

    @property
    def deviation(self):
        if self.ours is None or self.published == 0:
            return None
        return self.ours / self.published - 1

    @property
    def agrees_in_sign(self):
        """Of a speed-up: on the same side of 1."""
        return self.ours is not None and (self.ours - 1) * (self.published - 1) >= 0

    def beyond(self):
        if self.ours is not None and abs(self.ours - self.published) <= self.small:
            return False
        return self.deviation is None or abs(self.deviation) > AIM


@dataclass
class Table:
    paper: str
    title: str
    note: str = ""
    figures: list = field(default_factory=list)

    def add(self, *arguments, **keywords):
        self.figures.append(Figure(*arguments, **keywords))


@dataclass
class Experiment:
    """What a figure hangs on: ours alone, over something that the paper leaves open or we assume."""

    paper: str
    title: str
    columns: list
    rows: list = field(default_factory=list)  # of texts and numbers
    note: str = ""
    figures: tuple = ()


def mean_of(values):
    """The mean; None where one of them is missing."""
    values = list(values)
    return None if not values or None in values else mean(values)


def largest_of(values):
    """The largest; None where one of them is missing."""
    values = list(values)
    return None if not values or None in values else max(values)


def ratio(above, below):
    return above / below if above and below else None


def number(value, unit=""):
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    if unit == "GiB":
        return f"{value:.1f}"
    digits = 3 if abs(value) < 10 else 1
    return f"{value:.{digits}f}"


def percent(deviation):
    return "-" if deviation is None else f"{100 * deviation:+.0f} %"


def figure_line(f):
    ours = number(f.ours, f.unit)
    if f.band and None not in f.band:
        ours += f" ({number(min(f.band), f.unit)} to {number(max(f.band), f.unit)})"
    remark = f.how + (f"; {f.cause or 'cause not shown'}" if f.beyond() else "")
    what = f"**{f.what}**" if f.headline else f.what
    return f"| {what} | {number(f.published, f.unit)} {f.unit} | {ours} | {percent(f.deviation)} | {remark} |"


def markdown(table):
    lines = [f"### {table.paper}: {table.title}", ""]
    if table.note:
        lines += [table.note, ""]
    if isinstance(table, Experiment):
        lines += [f"| {' | '.join(table.columns)} |", "| --- " * len(table.columns) + "|"]
        lines += [f"| {' | '.join(number(cell) for cell in row)} |" for row in table.rows]
    else:
        lines += ["| | paper | ours | deviation | |", "| --- | --- | --- | --- | --- |"]
        lines += [figure_line(f) for f in table.figures]
    return "\n".join(lines) + "\n"

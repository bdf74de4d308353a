"""A published figure and ours, and tables of them."""

from dataclasses import dataclass, field
from statistics import mean

SHARE = (0.75, 1.33)  # of the printed gain: a ratio in this range agrees
NEAR_ONE = 0.02  # two ratios this close to 1 agree
AIM = 0.15  # of the published figure, for figures that are no ratio

COLUMNS = ("paper", "ours", "draws", "over what is open", "share of gain, or off by")
HOW = {
    "predicted": "settings and lengths as printed, nothing chosen by this paper's results",
    "fitted": "lengths, slowdowns or a setting were chosen with this paper's results in view",
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
    band: tuple | None = None  # the range of ours over what the paper does not print
    draws: tuple | None = None  # lowest and highest value over draws of lengths (seeds.py)
    small: float = 0.0  # an absolute difference up to this is no deviation (for figures near zero)
    kind: str = "ratio"  # a ratio, where 1 means no gain, or another kind: "abr", "memory" ...

    @property
    def is_ratio(self):
        return self.kind == "ratio" and not self.unit

    @property
    def share(self):
        """The share of the printed gain: (ours - 1) / (paper - 1); None where there is none."""
        if not self.is_ratio or self.ours is None or self.published == 1:
            return None
        return (self.ours - 1) / (self.published - 1)

    def agreed_by(self, said):
        """Whether a model that predicts `said` agrees with the paper."""
        if said is None:
            return False
        if not self.is_ratio:
            return abs(said - self.published) <= max(self.small, AIM * abs(self.published))
        if max(abs(said - 1), abs(self.published - 1)) <= NEAR_ONE + 1e-9:
            return True
        if self.published == 1:
            return False
        return SHARE[0] <= (said - 1) / (self.published - 1) <= SHARE[1]

    @property
    def agrees(self):
        return self.agreed_by(self.ours)

    @property
    def explained(self):
        """Whether ours agrees for some value of what the paper does not print."""
        return bool(self.band) and None not in self.band and min(self.band) <= self.published <= max(self.band)

    @property
    def deviation(self):
        if self.ours is None or self.published == 0:
            return None
        return self.ours / self.published - 1

    @property
    def agrees_in_sign(self):
        """Whether both speed-ups are on the same side of 1."""
        return self.ours is not None and (self.ours - 1) * (self.published - 1) >= 0


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
    """What a figure depends on: only ours, or also something that the paper does not print or we assume."""

    paper: str
    title: str
    columns: list
    rows: list = field(default_factory=list)  # of texts, numbers, and (number, word)
    note: str = ""


def mean_of(values):
    """The mean; None if a value is missing."""
    values = list(values)
    return None if not values or None in values else mean(values)


def largest_of(values):
    """The largest value; None if a value is missing."""
    values = list(values)
    return None if not values or None in values else max(values)


def ratio(above, below):
    return above / below if above and below else None


def number(value, unit=""):
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return f"{number(value[0], unit)} {value[1]}".strip()
    if isinstance(value, int):
        return f"{value:,}"
    if unit == "GiB":
        return f"{value:.1f}"
    digits = 3 if abs(value) < 10 else 1
    return f"{value:.{digits}f}"


def percent(deviation):
    return "-" if deviation is None else f"{100 * deviation:+.0f} %"


def score(f):
    """The share of the printed gain; for a figure that is no ratio, its relative error."""
    if f.is_ratio and f.share is not None:
        return f"{f.share:.2f}"
    return percent(f.deviation)


def verdict(f):
    if f.agrees:
        return "agrees"
    return "explained" if f.explained else "differs"


def remark(f):
    return f"{f.how}, {verdict(f)}" + (f"; {f.cause or 'cause not shown'}" if not f.agrees else "")


def extent(ends, unit=""):
    """The range from lowest to highest; empty if a value is missing."""
    return "" if not ends or None in ends else f"{number(min(ends), unit)} to {number(max(ends), unit)}"


def figure_line(f):
    what = f"**{f.what}**" if f.headline else f.what
    cells = (
        what,
        f"{number(f.published, f.unit)} {f.unit}".strip(),
        number(f.ours, f.unit),
        extent(f.draws, f.unit),
        extent(f.band, f.unit),
        score(f),
        remark(f),
    )
    return f"| {' | '.join(cells)} |"


def markdown(table):
    lines = [f"### {table.paper}: {table.title}", ""]
    if table.note:
        lines += [table.note, ""]
    if isinstance(table, Experiment):
        lines += [f"| {' | '.join(table.columns)} |", "| --- " * len(table.columns) + "|"]
        lines += [f"| {' | '.join(number(cell) for cell in row)} |" for row in table.rows]
    else:
        lines += [f"| | {' | '.join(COLUMNS)} | |", "| --- " * (len(COLUMNS) + 2) + "|"]
        lines += [figure_line(f) for f in table.figures]
    return "\n".join(lines) + "\n"

"""A published figure and ours, and tables of them."""

from dataclasses import dataclass, field
from statistics import mean

SHARE = (0.75, 1.33)  # of the printed gain: a ratio within it agrees
NEAR_ONE = 0.02  # two ratios this close to 1, on one side of it, agree
AIM = 0.15  # of the published figure, for what is no ratio


@dataclass
class Figure:
    what: str
    published: float
    ours: float | None
    how: str = "predicted"  # fitted: a setting or the lengths were chosen with the paper in view; by construction: the input was
    unit: str = ""
    cannot: str = ""  # the reason why no setting gives it, one of its paper's
    headline: bool = False
    unchosen: float | None = None  # ours as printed, with the fewest choices
    draws: tuple | None = None  # lowest and highest of the draws of lengths (seeds.py)
    small: float = 0.0  # an absolute difference up to this is no deviation (figures next to zero)
    kind: str = "ratio"  # 1 says that nothing is gained; else what it is: "abr", "memory" ...
    counted: tuple = ("now", "before")  # "before": in the count of 82 ratios, which had repeated numbers and lacked others

    @property
    def is_ratio(self):
        return self.kind == "ratio" and not self.unit

    @property
    def share(self):
        """The share of the printed gain: (ours - 1) / (paper - 1); None where there is none."""
        if not self.is_ratio or self.ours is None or self.published == 1:
            return None
        return (self.ours - 1) / (self.published - 1)

    def agreed_by(self, said, either_side=False):
        """Whether a model that says `said` agrees with the paper; `either_side` forgives the wrong sign of a gain near 1."""
        if said is None:
            return False
        if not self.is_ratio:
            return abs(said - self.published) <= max(self.small, AIM * abs(self.published))
        if max(abs(said - 1), abs(self.published - 1)) <= NEAR_ONE + 1e-9:
            return either_side or (said - 1) * (self.published - 1) >= 0
        if self.published == 1:
            return False
        return SHARE[0] <= (said - 1) / (self.published - 1) <= SHARE[1]

    @property
    def agrees(self):
        return self.agreed_by(self.ours)

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
    """What a figure depends on: ours alone, over something that the paper leaves open or we assume."""

    paper: str
    title: str
    columns: list
    rows: list = field(default_factory=list)  # of texts, numbers, (number, word), and lists of them
    note: str = ""


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
    if isinstance(value, list):
        return ", ".join(number(item, unit) for item in value)
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
    """The share of the printed gain; of what is no ratio, how far off it is."""
    return f"{f.share:.2f}" if f.share is not None else percent(f.deviation)


def verdict(f):
    if f.agrees:
        return "agrees"
    return f"differs: {f.cannot}" if f.cannot else "differs"


def extent(ends, unit=""):
    """From the lowest to the highest, in brackets; nothing where there is one value."""
    return f" ({number(min(ends), unit)}-{number(max(ends), unit)})" if ends else ""

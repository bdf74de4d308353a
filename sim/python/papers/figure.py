"""A published figure beside ours."""
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
    cause: str = ""  # of a deviation beyond the aim
    headline: bool = False
    band: tuple | None = None  # ours over what the paper does not print

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
        return self.deviation is None or abs(self.deviation) > AIM


@dataclass
class Table:
    paper: str
    title: str
    note: str = ""
    figures: list = field(default_factory=list)

    def add(self, *arguments, **keywords):
        self.figures.append(Figure(*arguments, **keywords))


def mean_of(values):
    """The mean; None where one of them is missing."""
    values = list(values)
    return None if None in values else mean(values)


def number(value, unit=""):
    if value is None:
        return "-"
    if unit == "GiB":
        return f"{value:.1f}"
    digits = 3 if abs(value) < 10 else 1
    return f"{value:.{digits}f}"


def markdown(table):
    lines = [f"### {table.paper}: {table.title}", ""]
    if table.note:
        lines += [table.note, ""]
    lines += ["| | paper | ours | deviation | |", "| --- | --- | --- | --- | --- |"]
    for f in table.figures:
        ours = number(f.ours, f.unit)
        if f.band and None not in f.band:
            ours += f" ({number(min(f.band), f.unit)} to {number(max(f.band), f.unit)})"
        deviation = "-" if f.deviation is None else f"{100 * f.deviation:+.0f} %"
        remark = f.how + (f"; {f.cause}" if f.cause and f.beyond() else "")
        what = f"**{f.what}**" if f.headline else f.what
        lines.append(f"| {what} | {number(f.published, f.unit)} {f.unit} | {ours} | {deviation} | {remark} |")
    return "\n".join(lines) + "\n"

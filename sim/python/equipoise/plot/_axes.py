"""What the figures share: axes, legends, stacked rows, and the refusal of another kind of result."""

import textwrap
from collections.abc import Mapping
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .._values import number, refuse
from ..program import Checked, Tuned
from ..study import Result
from ..sweep import Sweep

GIB = 2**30
# The parts of a row's `memory` that add up to its peak_bytes.
PARTS = ("parameters", "gradients", "optimizer", "reserve", "activations", "kv_state", "kv_gradients", "gathered_kv", "logits", "buffers")
NAMED = 10  # the most lines with a colour and a legend entry: Matplotlib's colours repeat after so many
LEGEND = 40  # letters per line of the legend
VALIDATION = "equipoise.validation/1"


Inches = Optional[Tuple[float, float]]  # the width and height of a figure; by its content where there are none


def new_figure(height: float = 4.0, width: float = 6.4, figsize: Inches = None) -> Any:
    if figsize is not None:
        if not isinstance(figsize, (list, tuple)) or len(figsize) != 2:
            refuse("figsize", "(width, height) in inches", figsize)
        width, height = (number("figsize", side) for side in figsize)
    try:
        from ._figure import TrueTypeFigure
    except ImportError as error:
        raise ImportError("equipoise.plot needs matplotlib: pip install matplotlib") from error
    return TrueTypeFigure(figsize=(width, height), layout="constrained")


def new_axes(height: float = 4.0, width: float = 6.4, ax: Any = None, figsize: Inches = None) -> Tuple[Any, Any]:
    """Axes of a new figure, or those of the caller, whose figure has its size."""
    if ax is None:
        figure = new_figure(height, width, figsize)
        return figure, figure.subplots()
    if figsize is not None:
        refuse("figsize", "none with ax, whose figure has a size", figsize)
    if not hasattr(ax, "barh"):
        refuse("ax", "Matplotlib's Axes", ax)
    return ax.get_figure(), ax


def entitle(axes: Any, text: str, width: int = 48) -> None:
    """A title broken into as many lines as it needs, because Matplotlib cuts what is wider than the figure."""
    axes.set_title("\n".join(textwrap.wrap(text, width)))


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def height_of(rows: int, least: float = 0.0) -> float:
    """The height in inches for so many rows of bars."""
    return max(least, 1.2 + 0.45 * rows)


def name_rows(axes: Any, labels: List[str], width: int = 36, upwards: bool = False, places: Optional[List[float]] = None) -> None:
    """Labels rows at the vertical axis, the first on top, in at most two lines each: so the bars have room, and no
    label reaches into the next."""
    texts = ["\n".join(textwrap.wrap(label, width, max_lines=2, placeholder="...")) for label in labels]
    axes.set_yticks(places or range(len(labels)), texts)
    ends = (-0.6, len(labels) - 0.4)
    axes.set_ylim(ends if upwards else ends[::-1])


def legend(axes: Any, handles: List[Any], texts: List[str]) -> None:
    """Puts the legend next to the axes, where it covers nothing."""
    if not handles:
        return
    texts = ["\n".join(cut(line, LEGEND) for line in text.split("\n")) for text in texts]
    axes.legend(handles, texts, loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0, fontsize="small")


def marked(label: str, mark: str) -> str:
    """A label with its mark as an entry of a legend. The label is shortened, and a mark that leaves it no room gets
    lines of its own."""
    room = LEGEND - 1 - len(mark)
    return f"{cut(label, room)} {mark}" if room >= min(12, len(label)) else f"{cut(label, LEGEND)}\n{textwrap.fill(mark, LEGEND)}"


def lines(
    axes: Any, rows: Dict[str, Any], fastest: Optional[str], mark: str, style: str = "-", marker: Optional[Tuple[str, str]] = None
) -> Dict[str, Any]:
    """Draws a line through each row's x and y, by label. The fastest is wide and has `mark` in the legend; rows
    beyond those that the legend names are grey. The legend ends with the meaning of a `marker` on the lines,
    (marker, text)."""
    named = list(rows)[:NAMED]
    if len(rows) > NAMED and fastest in list(rows)[NAMED:]:
        named[-1] = fastest
    drawn: Dict[str, Any] = {}
    for label, (x, y) in rows.items():
        colour = {} if label in named else {"color": "0.8", "zorder": 1.5}
        wide = label == fastest and len(rows) > 1
        (drawn[label],) = axes.plot(x, y, style, label=label, linewidth=2.5 if wide else 1, **colour)
    handles = [drawn[label] for label in named]
    texts = [marked(label, mark) if label == fastest and len(rows) > 1 else label for label in named]
    others = [label for label in rows if label not in named]
    if others:
        handles.append(drawn[others[0]])
        texts.append(f"{len(others)} more rows" if len(others) > 1 else others[0])
    if marker is not None:
        handles += axes.plot([], [], marker[0], color="0.3")
        texts.append(marker[1])
    legend(axes, handles, texts)
    return drawn


def stack(axes: Any, labels: Sequence[str], parts: Mapping) -> None:
    """Draws rows of parts, the first row on top: {part: (values, colour)}. A part that no row has is skipped."""
    left = [0.0] * len(labels)
    for name, (values, colour) in parts.items():
        if any(value > 0 for value in values):
            axes.barh(range(len(labels)), values, left=left, label=name, color=colour)
            left = [a + b for a, b in zip(left, values)]
    name_rows(axes, list(labels))
    legend(axes, *axes.get_legend_handles_labels())


def percent_axis(axis: Any) -> None:
    axis.set_major_formatter(lambda share, _: f"{100 * share:.3g} %")


def drawn_by(value: Any) -> str:
    """The end of a refusal: what draws a result of this kind."""
    if isinstance(value, Result):
        return ", which plot.comparison, plot.memory, plot.steps and plot.gpus draw"
    if isinstance(value, Sweep):
        return ", which plot.sweep draws, and whose items are Results"
    if isinstance(value, Tuned):
        return ", which plot.tune, plot.layouts, plot.frontier and plot.choices draw, and whose best is a study to run"
    if isinstance(value, Mapping) and value.get("schema") == VALIDATION:
        return ", which plot.validation draws"
    if isinstance(value, Checked) or hasattr(value, "frame"):
        return ", whose frame() is a table"
    return ""


def of(value: Any, argument: str, wanted: type) -> None:
    """Refuses another kind of result, and says what draws it."""
    if not isinstance(value, wanted):
        makes = {Result: "equipoise.study", Sweep: "equipoise.sweep", Tuned: "equipoise.tune"}[wanted]
        raise ValueError(f"{argument}: expected what {makes} returns, found {type(value).__name__}{drawn_by(value)}")


def one_of(argument: str, value: Any, known: Sequence[str]) -> str:
    """Checks a label against those that are there."""
    if value not in list(known):
        refuse(argument, f"one of {', '.join(dict.fromkeys(known))}", value)
    return value


def fastest(result: Result) -> Optional[str]:
    """The row that the result calls fastest, else the one with the most tokens per second and GPU; None if none ran."""
    compared = result.summary.get("comparison", {})
    if named := compared.get("fastest") or compared.get("fastest_any_delay"):
        return named
    fit = [row for row in result.policies if row["status"] == "ok"] or result.policies
    rates = {row["label"]: (row["metrics"] or {}).get("tokens_per_second_per_gpu") for row in fit}
    ran = {label: rate for label, rate in rates.items() if rate is not None}
    return max(ran, key=lambda label: ran[label]) if ran else None


def none_ran(rows: Sequence[Mapping]) -> ValueError:
    """The message for a result in which nothing ran, with the first row's reason."""
    return ValueError(f"result: expected a row that ran, found none; {rows[0]['label']}: {rows[0]['reason']}")


def rate_error(metrics: Mapping) -> Optional[List[List[float]]]:
    """The 95 % interval of a speed-up as tokens per second and GPU below and above the rate."""
    rate, speedup = metrics["tokens_per_second_per_gpu"], metrics["speedup"]
    low, high = metrics["speedup_low"], metrics["speedup_high"]
    if None in (rate, speedup, low, high):
        return None
    return [[max(0.0, rate * (1 - low / speedup))], [max(0.0, rate * (high / speedup - 1))]]

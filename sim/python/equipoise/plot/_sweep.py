"""Figures of a sweep."""

from typing import TYPE_CHECKING, Any, Optional

from .._values import refuse
from ..sweep import Sweep
from ._axes import Inches, cut, entitle, lines, new_axes, of, one_of
from ._tune import WHY_NOT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"tokens_per_second_per_gpu": "tokens/s/GPU"}


def short(value: float) -> str:
    """A number for a cell of a map: 0.123, 4.57, 1,234, 56.7G."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= unit:
            return f"{value / unit:.4g}{name}" if abs(value) >= 100 * unit else f"{value / unit:.3g}{name}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _metric(frame: Any, metric: str) -> None:
    texts = ("label", "policy", "shard", "status", "reason")
    numbers = [*frame.select_dtypes("number").columns, *(name for name in frame.columns[frame.isna().all()] if name not in texts)]
    if metric not in numbers:
        refuse("metric", f"one of {', '.join(numbers)}", metric)
    if frame[metric].isna().all():
        reasons = [f"{row['label']}: {row['reason']}" for _, row in frame.iterrows() if row["reason"]]
        raise ValueError(f"swept: expected a row with {metric}, found none{'; ' + reasons[0] if reasons else ''}")


def sweep(swept: Sweep, metric: str = "tokens_per_second_per_gpu", policy: Optional[str] = None, *, ax: Any = None,
          figsize: Inches = None) -> "Figure":
    """A metric over the values of one key, a line for each policy (or of one `policy`), wide for the one with the most tokens per
    second and GPU of all; rows after the tenth are grey. Over those of two keys a map of one `policy`, the first
    without it: the value in each cell, or why there is none."""
    of(swept, "swept", Sweep)
    keys = list(swept[0].case)
    if len(keys) not in (1, 2):
        found = f"{len(keys)}: {', '.join(keys)}" if keys else "none; its one Result is for plot.comparison"
        raise ValueError(f"swept: expected a sweep of one or two keys (its frame() has them all), found {found}")
    frame = swept.frame()
    _metric(frame, metric)
    frame[keys] = frame[keys].map(str) if hasattr(frame, "map") else frame[keys].applymap(str)  # in the order of the grid
    if policy is not None:
        one_of("policy", policy, list(frame["label"]))
    name = NAMES.get(metric, metric.replace("_", " "))
    if len(keys) == 1:
        figure, axes = new_axes(width=8.0, ax=ax, figsize=figsize)
        drawn = frame if policy is None else frame[frame["label"] == policy]
        rows = {label: (rows[keys[0]], rows[metric].astype(float)) for label, rows in drawn.groupby("label", sort=False)}
        rates = drawn["tokens_per_second_per_gpu"].astype(float)
        best = drawn.loc[rates.idxmax()] if rates.notna().any() else {"label": None, keys[0]: ""}
        lines(axes, rows, best["label"], f"(fastest, at {best[keys[0]]})", "o-")
        axes.set_xlabel(keys[0])
        axes.set_ylabel(f"{name}, simulated")
        return figure
    chosen = policy if policy is not None else frame["label"].iloc[0]
    own = frame[frame["label"] == chosen]
    down, across = (list(dict.fromkeys(frame[key])) for key in keys)
    width, height = min(14.0, max(6.4, 2.4 + 0.62 * len(across))), min(12.0, max(4.0, 1.4 + 0.34 * len(down)))
    figure, axes = new_axes(height, width, ax, figsize)
    table = own.pivot(index=keys[0], columns=keys[1], values=metric).astype(float).reindex(index=down, columns=across)
    image = axes.imshow(table.to_numpy(), aspect="auto")
    wide = max(len(down) / 30, len(across) / 18)  # beyond 1 the figure does not grow, and letters get smaller
    for y, x, value, status in zip(own[keys[0]], own[keys[1]], own[metric].astype(float), own["status"]):
        there = value == value
        dark = there and sum(w * part for w, part in zip((0.3, 0.59, 0.11), image.to_rgba(value))) < 0.5
        said = short(value) if there else WHY_NOT.get(status, "none")
        axes.text(across.index(x), down.index(y), said, ha="center", va="center", fontsize=8 / max(1.0, wide),
                  color="white" if dark else "black" if there else "0.4")
    axes.set_xticks(range(len(across)), across)
    axes.set_yticks(range(len(down)), down)
    axes.set_xlabel(keys[1])
    axes.set_ylabel(keys[0])
    rows = frame["label"].nunique()
    others = f", one of {rows} rows" + ("" if policy is not None else " (policy= chooses)") if rows > 1 else ""
    entitle(axes, f"{cut(chosen, 60)}{others}", 60)
    figure.colorbar(image, ax=axes, label=f"{name}, simulated", format=lambda value, _: short(value))
    return figure

"""Figures of a sweep."""

from typing import TYPE_CHECKING, Any, Optional

from .._values import refuse
from ..sweep import Sweep
from ._axes import entitle, lines, new_axes, of, one_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _metric(frame: Any, metric: str) -> None:
    texts = ("label", "policy", "shard", "status", "reason")
    numbers = [*frame.select_dtypes("number").columns, *(name for name in frame.columns[frame.isna().all()] if name not in texts)]
    if metric not in numbers:
        refuse("metric", f"one of {', '.join(numbers)}", metric)
    if frame[metric].isna().all():
        reasons = [f"{row['label']}: {row['reason']}" for _, row in frame.iterrows() if row["reason"]]
        raise ValueError(f"swept: expected a row with {metric}, found none{'; ' + reasons[0] if reasons else ''}")


def sweep(swept: Sweep, metric: str = "tokens_per_second_per_gpu", policy: Optional[str] = None) -> "Figure":
    """A metric over the values of one key, a line a policy (or of one `policy`), wide for the one with the most tokens per
    second and GPU of all; beside ten rows the others are grey. Over those of two keys, a map of one `policy` (the first)."""
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
    figure, axes = new_axes(width=8.0 if len(keys) == 1 else 6.4)
    if len(keys) == 1:
        drawn = frame if policy is None else frame[frame["label"] == policy]
        rows = {label: (rows[keys[0]], rows[metric].astype(float)) for label, rows in drawn.groupby("label", sort=False)}
        rates = drawn["tokens_per_second_per_gpu"].astype(float)
        best = drawn.loc[rates.idxmax()] if rates.notna().any() else {"label": None, keys[0]: ""}
        lines(axes, rows, best["label"], f"(fastest, at {best[keys[0]]})", "o-")
        axes.set_xlabel(keys[0])
        axes.set_ylabel(f"{metric}, simulated")
        return figure
    chosen = policy if policy is not None else frame["label"].iloc[0]
    table = frame[frame["label"] == chosen].pivot(index=keys[0], columns=keys[1], values=metric).astype(float)
    table = table.reindex(index=frame[keys[0]].unique(), columns=frame[keys[1]].unique())
    image = axes.imshow(table.to_numpy(), aspect="auto")
    axes.set_xticks(range(table.shape[1]), [str(value) for value in table.columns])
    axes.set_yticks(range(table.shape[0]), [str(value) for value in table.index])
    axes.set_xlabel(keys[1])
    axes.set_ylabel(keys[0])
    entitle(axes, f"{chosen}: {metric}, simulated")
    figure.colorbar(image)
    return figure

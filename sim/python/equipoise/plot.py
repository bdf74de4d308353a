"""Figures of what the pages draw, with Matplotlib: each returns its Figure.

    import equipoise
    equipoise.plot.comparison(result).savefig("comparison.svg")

Simulated figures say so in their labels.
"""

import textwrap
from typing import Any, Dict, Optional

from ._values import refuse
from .program import Tuned
from .study import Result
from .sweep import Sweep

GIB = 2**30
# What a GPU holds: these of a row's `memory` add up to its peak_bytes.
PARTS = ("parameters", "gradients", "optimizer", "reserve", "activations", "kv_state", "kv_gradients", "gathered_kv", "logits", "buffers")


def _axes(columns: int = 1, height: float = 4.0):
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("equipoise.plot needs matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(6.4 * columns, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _entitle(axes: Any, text: str) -> None:
    """A title in as many lines as it takes: Matplotlib cuts what is wider than the figure."""
    axes.set_title("\n".join(textwrap.wrap(text, 48)))


def _of(value: Any, argument: str, wanted: type) -> None:
    """Refuses another kind of result, and says what draws it."""
    if isinstance(value, wanted):
        return
    also = ""
    if isinstance(value, Result):
        also = ", which plot.comparison, plot.memory and plot.steps draw"
    elif isinstance(value, Sweep):
        also = ", which plot.sweep draws, and whose items are Results"
    elif isinstance(value, Tuned):
        also = ", whose frame() is a table, and whose best is a study to run"
    elif hasattr(value, "frame"):
        also = ", whose frame() is a table"
    makes = "equipoise.study" if wanted is Result else "equipoise.sweep"
    raise ValueError(f"{argument}: expected what {makes} returns, found {type(value).__name__}{also}")


def _metric(frame: Any, metric: str) -> None:
    numbers = list(frame.select_dtypes("number").columns)
    if metric not in numbers:
        refuse("metric", f"one of {', '.join(numbers)}", metric)


def comparison(result: Result):
    """Tokens per second and GPU of every row; the bar of a speed-up is its 95 % interval. A row that did not run has
    no bar, and says why in its place."""
    _of(result, "result", Result)
    rows = list(reversed(result.policies))
    if all(row["metrics"]["tokens_per_second_per_gpu"] is None for row in rows):
        raise ValueError(f"result: expected a row that ran, found none; {rows[-1]['label']}: {rows[-1]['reason']}")
    figure, (axes,) = _axes(height=1.2 + 0.45 * len(rows))
    for place, row in enumerate(rows):
        metrics = row["metrics"]
        rate, speedup = metrics["tokens_per_second_per_gpu"], metrics["speedup"]
        low, high = metrics["speedup_low"], metrics["speedup_high"]
        known = None not in (rate, speedup, low, high)
        error = [[max(0.0, rate * (1 - low / speedup))], [max(0.0, rate * (high / speedup - 1))]] if known else None
        axes.barh(place, rate or 0.0, xerr=error, color="C0", ecolor="0.3", capsize=3)
        if rate is None:
            axes.annotate(" " + _why(row), (0, place), color="0.3", va="center", fontsize="small")
        elif speedup is not None:
            axes.annotate(f" {speedup:.2f}x", (0, place), color="white", va="center")
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
    axes.set_xlabel("tokens/s/GPU, simulated")
    _entitle(axes, result.summary["study"]["name"])
    return figure


def _why(row: Dict[str, Any], width: int = 64) -> str:
    """Why a row did not run, in a line."""
    text = f"{'does not fit' if row['status'] == 'oom' else row['status']}: {row['reason'] or ''}".rstrip(": ")
    return text if len(text) <= width else text[: width - 3] + "..."


def memory(result: Result):
    """What holds the bytes of each row's fullest GPU, stacked."""
    _of(result, "result", Result)
    frame = result.memory()
    figure, (axes,) = _axes()
    left = [0.0] * len(frame)
    for part in (part for part in PARTS if part in frame.columns):
        values = (frame[part].astype(float).fillna(0) / GIB).tolist()
        if max(values) > 0:
            axes.barh(list(frame.index), values, left=left, label=part.replace("_", " "))
            left = [a + b for a, b in zip(left, values)]
    axes.invert_yaxis()
    axes.set_xlabel("GiB of the fullest GPU, modelled")
    axes.legend(fontsize="small")
    return figure


def steps(result: Result):
    """Seconds of every step, a line a row; the steps that only empty what was held are marked."""
    _of(result, "result", Result)
    figure, (axes,) = _axes()
    for label, frame in result.steps().groupby("policy", sort=False):
        (line,) = axes.plot(frame["step"], frame["step_seconds"], label=label, linewidth=1)
        tail = frame[frame["tail"].astype(bool)]
        axes.plot(tail["step"], tail["step_seconds"], "x", color=line.get_color())
    axes.set_xlabel("step")
    axes.set_ylabel("seconds, simulated")
    axes.legend(fontsize="small")
    return figure


def sweep(swept: Sweep, metric: str = "tokens_per_second_per_gpu", policy: Optional[str] = None):
    """A metric over the values of one key, a line a policy (or of one `policy`); over those of two keys, a map of one
    `policy` (the first)."""
    _of(swept, "swept", Sweep)
    keys = list(swept[0].case)
    if len(keys) not in (1, 2):
        found = f"{len(keys)}: {', '.join(keys)}" if keys else "none; its one Result is for plot.comparison"
        raise ValueError(f"swept: expected a sweep of one or two keys (its frame() has them all), found {found}")
    frame = swept.frame()
    _metric(frame, metric)
    frame[keys] = frame[keys].map(str) if hasattr(frame, "map") else frame[keys].applymap(str)  # in the order of the grid
    if policy is not None and policy not in set(frame["label"]):
        refuse("policy", f"one of {', '.join(dict.fromkeys(frame['label']))}", policy)
    figure, (axes,) = _axes()
    if len(keys) == 1:
        for label, rows in frame.groupby("label", sort=False):
            if policy in (None, label):
                axes.plot(rows[keys[0]], rows[metric].astype(float), "o-", label=label)
        axes.set_xlabel(keys[0])
        axes.set_ylabel(f"{metric}, simulated")
        axes.legend(fontsize="small")
        return figure
    chosen = policy if policy is not None else frame["label"].iloc[0]
    table = frame[frame["label"] == chosen].pivot(index=keys[0], columns=keys[1], values=metric).astype(float)
    table = table.reindex(index=frame[keys[0]].unique(), columns=frame[keys[1]].unique())
    image = axes.imshow(table.to_numpy(), aspect="auto")
    axes.set_xticks(range(table.shape[1]), [str(value) for value in table.columns])
    axes.set_yticks(range(table.shape[0]), [str(value) for value in table.index])
    axes.set_xlabel(keys[1])
    axes.set_ylabel(keys[0])
    _entitle(axes, f"{chosen}: {metric}, simulated")
    figure.colorbar(image)
    return figure

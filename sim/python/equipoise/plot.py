"""Figures of what the pages draw, with Matplotlib: each returns its Figure.

    import equipoise
    equipoise.plot.comparison(result).savefig("comparison.svg")

Simulated figures say so in their labels.
"""

from typing import Any, Dict, List, Optional

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


def _run(result: Result) -> List[Dict[str, Any]]:
    rows = [row for row in result.policies if row["metrics"]["tokens_per_second_per_gpu"] is not None]
    if not rows:
        raise ValueError("result: expected a row that ran, found none")
    return rows


def comparison(result: Result):
    """Tokens per second and GPU of every row that ran; the bar of a speed-up is its 95 % interval."""
    figure, (axes,) = _axes(height=1.2 + 0.45 * len(_run(result)))
    for place, row in enumerate(reversed(_run(result))):
        metrics = row["metrics"]
        rate, speedup = metrics["tokens_per_second_per_gpu"], metrics["speedup"]
        low, high = metrics["speedup_low"], metrics["speedup_high"]
        known = None not in (speedup, low, high)
        error = [[max(0.0, rate * (1 - low / speedup))], [max(0.0, rate * (high / speedup - 1))]] if known else None
        axes.barh(place, rate, xerr=error, color="C0", ecolor="0.3", capsize=3)
        if speedup is not None:
            axes.annotate(f" {speedup:.2f}x", (0, place), color="white", va="center")
    axes.set_yticks(range(len(_run(result))), [row["label"] for row in reversed(_run(result))])
    axes.set_xlabel("tokens/s/GPU, simulated")
    axes.set_title(result.summary["study"]["name"])
    return figure


def memory(result: Result):
    """What holds the bytes of each row's fullest GPU, stacked."""
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
    """A metric over the values of one key, a line a policy; over those of two keys, a map of one `policy` (the first)."""
    frame = swept.frame()
    keys = list(swept[0].case)
    figure, (axes,) = _axes()
    if len(keys) == 1:
        for label, rows in frame.groupby("label", sort=False):
            axes.plot([str(value) for value in rows[keys[0]]], rows[metric], "o-", label=label)
        axes.set_xlabel(keys[0])
        axes.set_ylabel(f"{metric}, simulated")
        axes.legend(fontsize="small")
        return figure
    if len(keys) != 2:
        raise ValueError(f"swept: expected one or two keys, found {len(keys)}")
    chosen = policy if policy is not None else frame["label"].iloc[0]
    if chosen not in set(frame["label"]):
        raise ValueError(f"policy: expected one of {', '.join(dict.fromkeys(frame['label']))}, found {chosen}")
    table = frame[frame["label"] == chosen].pivot(index=keys[0], columns=keys[1], values=metric).astype(float)
    image = axes.imshow(table.to_numpy(), aspect="auto")
    axes.set_xticks(range(table.shape[1]), [str(value) for value in table.columns])
    axes.set_yticks(range(table.shape[0]), [str(value) for value in table.index])
    axes.set_xlabel(keys[1])
    axes.set_ylabel(keys[0])
    axes.set_title(f"{chosen}: {metric}, simulated")
    figure.colorbar(image)
    return figure

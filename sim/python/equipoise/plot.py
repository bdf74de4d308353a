"""Figures of what the pages draw, with Matplotlib: each returns its Figure.

    import equipoise
    equipoise.plot.comparison(result).savefig("comparison.svg")

Simulated figures say so in their labels.
"""

import textwrap
from typing import Any, Dict, List, Optional

from ._values import refuse
from .program import Tuned
from .study import Result
from .sweep import Sweep

GIB = 2**30
# What a GPU holds: these of a row's `memory` add up to its peak_bytes.
PARTS = ("parameters", "gradients", "optimizer", "reserve", "activations", "kv_state", "kv_gradients", "gathered_kv", "logits", "buffers")

NAMED = 10  # lines with a colour and an entry of the legend each: Matplotlib's colours begin again after so many


def _axes(height: float = 4.0, width: float = 6.4):
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("equipoise.plot needs matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _entitle(axes: Any, text: str) -> None:
    """A title in as many lines as it takes: Matplotlib cuts what is wider than the figure."""
    axes.set_title("\n".join(textwrap.wrap(text, 48)))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _name_rows(axes: Any, labels: List[str]) -> None:
    """Rows by their labels at the vertical axis, in lines that leave room for the bars."""
    axes.set_yticks(range(len(labels)), ["\n".join(textwrap.wrap(label, 36)) for label in labels])


def _legend(axes: Any, handles: List[Any], texts: List[str]) -> None:
    """The legend beside the axes, where it covers nothing."""
    texts = [_cut(text, 40) for text in texts]
    axes.legend(handles, texts, loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0, fontsize="small")


def _lines(axes: Any, rows: Dict[str, Any], fastest: Optional[str], mark: str, style: str = "-") -> Dict[str, Any]:
    """A line for each row's x and y, by label. The fastest is wide and has `mark` in the legend; of more rows than it
    names the others are grey."""
    named = list(rows)[:NAMED]
    if len(rows) > NAMED and fastest in list(rows)[NAMED:]:
        named[-1] = fastest
    lines: Dict[str, Any] = {}
    for label, (x, y) in rows.items():
        colour = {} if label in named else {"color": "0.8", "zorder": 1.5}
        wide = label == fastest and len(rows) > 1
        (lines[label],) = axes.plot(x, y, style, label=label, linewidth=2.5 if wide else 1, **colour)
    handles = [lines[label] for label in named]
    texts = [f"{_cut(label, 26)} {mark}" if label == fastest and len(rows) > 1 else label for label in named]
    others = [label for label in rows if label not in named]
    if others:
        handles.append(lines[others[0]])
        texts.append(f"{len(others)} more rows" if len(others) > 1 else others[0])
    _legend(axes, handles, texts)
    return lines


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
    texts = ("label", "policy", "shard", "status", "reason")
    numbers = [*frame.select_dtypes("number").columns, *(name for name in frame.columns[frame.isna().all()] if name not in texts)]
    if metric not in numbers:
        refuse("metric", f"one of {', '.join(numbers)}", metric)
    if frame[metric].isna().all():
        reasons = [f"{row['label']}: {row['reason']}" for _, row in frame.iterrows() if row["reason"]]
        raise ValueError(f"swept: expected a row with {metric}, found none{'; ' + reasons[0] if reasons else ''}")


def _fastest(result: Result) -> Optional[str]:
    """The row with the most tokens per second and GPU; none where none ran."""
    rates = {row["label"]: (row["metrics"] or {}).get("tokens_per_second_per_gpu") for row in result.policies}
    ran = {label: rate for label, rate in rates.items() if rate is not None}
    return max(ran, key=lambda label: ran[label]) if ran else None


def _told_apart(row: Dict[str, Any], rows: List[Dict[str, Any]]) -> bool:
    """Whether the interval of its speed-up is above those of all other rows that ran, as in the study's table."""
    low, others = row["metrics"]["speedup_low"], [other for other in rows if other is not row and other["status"] == "ok"]
    highs = [other["metrics"]["speedup_high"] for other in others]
    return low is not None and all(high is not None and low > high for high in highs)


def comparison(result: Result):
    """Tokens per second and GPU of every row; the bar of a speed-up (over the baseline) is its 95 % interval. The fastest has
    another colour and says so, and where its interval overlaps with another's. A row that did not run has no bar, and says
    why in its place."""
    _of(result, "result", Result)
    rows, fastest = list(reversed(result.policies)), _fastest(result)
    if fastest is None:
        raise ValueError(f"result: expected a row that ran, found none; {rows[-1]['label']}: {rows[-1]['reason']}")
    figure, axes = _axes(height=1.2 + 0.45 * len(rows))
    for place, row in enumerate(rows):
        metrics = row["metrics"]
        rate, speedup = metrics["tokens_per_second_per_gpu"], metrics["speedup"]
        low, high = metrics["speedup_low"], metrics["speedup_high"]
        known = None not in (rate, speedup, low, high)
        error = [[max(0.0, rate * (1 - low / speedup))], [max(0.0, rate * (high / speedup - 1))]] if known else None
        won = row["label"] == fastest and len(rows) > 1
        axes.barh(place, rate or 0.0, xerr=error, color="C1" if won else "C0", ecolor="0.3", capsize=3)
        said = ([] if speedup is None else [f"{speedup:.2f}x"]) + (
            [] if not won else ["fastest"] if _told_apart(row, rows) else ["fastest, not told apart"])
        if rate is None:
            axes.annotate(" " + _why(row), (0, place), color="0.3", va="center", fontsize="small")
        elif said:
            axes.annotate(" " + ", ".join(said), (0, place), color="white", va="center")
    _name_rows(axes, [row["label"] for row in rows])
    axes.set_xlabel(f"tokens/s/GPU, simulated; in the bars the speed-up over {_cut(result.summary['baseline'], 26)}")
    _entitle(axes, result.summary["study"]["name"])
    return figure


def _why(row: Dict[str, Any], width: int = 64) -> str:
    """Why a row did not run, in a line."""
    text = f"{'does not fit' if row['status'] == 'oom' else row['status']}: {row['reason'] or ''}".rstrip(": ")
    return _cut(text, width)


def memory(result: Result):
    """What holds the bytes of each row's fullest GPU, stacked."""
    _of(result, "result", Result)
    frame = result.memory()
    figure, axes = _axes(height=max(3.0, 1.2 + 0.45 * len(frame)), width=8.0)
    left = [0.0] * len(frame)
    for part in (part for part in PARTS if part in frame.columns):
        values = (frame[part].astype(float).fillna(0) / GIB).tolist()
        if max(values) > 0:
            axes.barh(range(len(frame)), values, left=left, label=part.replace("_", " "))
            left = [a + b for a, b in zip(left, values)]
    _name_rows(axes, list(frame.index))
    axes.invert_yaxis()
    axes.set_xlabel("GiB of the fullest GPU, modelled")
    _legend(axes, *axes.get_legend_handles_labels())
    return figure


def steps(result: Result):
    """Seconds of every step, a line a row, the fastest row's wide; the steps that only empty what was held are marked.
    Beside ten rows the others are grey."""
    _of(result, "result", Result)
    figure, axes = _axes(width=8.0)
    frames = dict(list(result.steps().groupby("policy", sort=False)))
    lines = _lines(axes, {label: (frame["step"], frame["step_seconds"]) for label, frame in frames.items()}, _fastest(result), "(fastest)")
    for label, frame in frames.items():
        tail = frame[frame["tail"].astype(bool)]
        axes.plot(tail["step"], tail["step_seconds"], "x", color=lines[label].get_color())
    axes.set_xlabel("step")
    axes.set_ylabel("seconds, simulated")
    return figure


def sweep(swept: Sweep, metric: str = "tokens_per_second_per_gpu", policy: Optional[str] = None):
    """A metric over the values of one key, a line a policy (or of one `policy`), wide for the one with the most tokens per
    second and GPU of all; beside ten rows the others are grey. Over those of two keys, a map of one `policy` (the first)."""
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
    figure, axes = _axes(width=8.0 if len(keys) == 1 else 6.4)
    if len(keys) == 1:
        drawn = frame if policy is None else frame[frame["label"] == policy]
        rows = {label: (rows[keys[0]], rows[metric].astype(float)) for label, rows in drawn.groupby("label", sort=False)}
        rates = drawn["tokens_per_second_per_gpu"].astype(float)
        best = drawn.loc[rates.idxmax()] if rates.notna().any() else {"label": None, keys[0]: ""}
        _lines(axes, rows, best["label"], f"(fastest, at {best[keys[0]]})", "o-")
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
    _entitle(axes, f"{chosen}: {metric}, simulated")
    figure.colorbar(image)
    return figure

"""Figures of a study's tables."""

from typing import TYPE_CHECKING, Any, Dict, List, Optional

from ..study import Result
from ._axes import GIB, PARTS, Inches, cut, entitle, fastest, height_of, lines, name_rows, new_axes, none_ran, of, one_of, percent_axis, rate_error, stack

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _is_significant(result: Result) -> bool:
    """Whether the fastest row is significantly faster than every other that is not faster."""
    return all(other["tied"] is False for other in result.summary.get("comparison", {}).get("others", []))


def comparison(result: Result, *, ax: Any = None, figsize: Inches = None) -> "Figure":
    """Tokens per second and GPU of every row; the bar of a speed-up (over the baseline) is its 95 % interval. The fastest has
    another colour and says so, and where it is tied with another. A row that did not run has no bar, and says
    why in its place."""
    of(result, "result", Result)
    rows, best = list(reversed(result.policies)), fastest(result)
    if best is None:
        raise none_ran(result.policies)
    figure, axes = new_axes(height=height_of(len(rows)), ax=ax, figsize=figsize)
    for place, row in enumerate(rows):
        metrics = row["metrics"]
        rate, speedup = metrics["tokens_per_second_per_gpu"], metrics["speedup"]
        won = row["label"] == best and len(rows) > 1
        axes.barh(place, rate or 0.0, xerr=rate_error(metrics), color="C1" if won else "C0", ecolor="0.3", capsize=3)
        said = ([] if speedup is None else [f"{speedup:.2f}x"]) + (
            [] if not won else ["fastest"] if _is_significant(result) else ["fastest, tied"]) + (
            ["does not fit"] if row["status"] == "oom" else [])
        if rate is None:
            axes.annotate(" " + _why(row), (0, place), color="0.3", va="center", fontsize="small")
        elif said:
            axes.annotate(" " + ", ".join(said), (0, place), color="white", va="center")
    name_rows(axes, [row["label"] for row in rows], upwards=True)
    axes.set_xlabel(f"tokens/s/GPU, simulated\nin the bars the speed-up over {cut(result.summary['baseline'], 20)}")
    entitle(axes, result.summary["study"]["name"])
    return figure


def _why(row: Dict[str, Any], width: int = 64) -> str:
    """One line that says why a row did not run."""
    text = f"{'does not fit' if row['status'] == 'oom' else row['status']}: {row['reason'] or ''}".rstrip(": ")
    return cut(text, width)


def memory(result: Result, *, ax: Any = None, figsize: Inches = None) -> "Figure":
    """What holds the bytes of each row's fullest GPU, stacked."""
    of(result, "result", Result)
    frame = result.memory()
    parts = [part for part in PARTS if part in frame.columns]
    if not parts:
        raise none_ran(result.policies)
    figure, axes = new_axes(height=height_of(len(frame), least=3.0), width=8.0, ax=ax, figsize=figsize)
    colours = {part: f"C{place}" for place, part in enumerate(PARTS)}
    stack(axes, list(frame.index), {part.replace("_", " "): ((frame[part].astype(float).fillna(0) / GIB).tolist(), colours[part]) for part in parts})
    axes.set_xlabel("GiB of the fullest GPU, modelled")
    return figure


def steps(result: Result, *, ax: Any = None, figsize: Inches = None) -> "Figure":
    """Seconds of every step, a line a row, the fastest row's wide; the steps at the end of data, that only empty what was held, are
    marked. The rows after the tenth are grey."""
    of(result, "result", Result)
    if fastest(result) is None:
        raise none_ran(result.policies)
    figure, axes = new_axes(width=8.0, ax=ax, figsize=figsize)
    frames = dict(list(result.steps().groupby("policy", sort=False)))
    tails = {label: frame[frame["tail"].astype(bool)] for label, frame in frames.items()}
    marker = ("x", "end of data: empties what was held") if any(len(tail) for tail in tails.values()) else None
    seconds = {label: (frame["step"], frame["step_seconds"]) for label, frame in frames.items()}
    drawn = lines(axes, seconds, fastest(result), "(fastest)", marker=marker)
    for label, tail in tails.items():
        axes.plot(tail["step"], tail["step_seconds"], "x", color=drawn[label].get_color())
    axes.set_xlabel("step")
    axes.set_ylabel("seconds, simulated")
    return figure


def gpus(result: Result, policy: Optional[str] = None, *, ax: Any = None, figsize: Inches = None) -> "Figure":
    """Compute seconds of every GPU over the mean of all, simulated, mean over full steps: a line a row, GPUs from least to
    most loaded, the fastest row's wide; rows after the tenth are grey. Of one `policy` a map: pipeline stages down,
    data- and context-parallel replicas across; TP ranks are next to each other where they differ."""
    of(result, "result", Result)
    frame = result.gpus()
    if frame.empty:
        raise none_ran(result.policies)
    if policy is not None:
        return _load_map(frame[frame["policy"] == one_of("policy", policy, list(frame["policy"].unique()))], policy, ax, figsize)
    figure, axes = new_axes(width=8.0, ax=ax, figsize=figsize)
    sorted_loads = {label: rows["relative_to_mean"].sort_values().to_numpy() for label, rows in frame.groupby("policy", sort=False)}
    shares = {label: [(place + 1) / len(values) for place in range(len(values))] for label, values in sorted_loads.items()}
    drawn = lines(axes, {label: (shares[label], values) for label, values in sorted_loads.items()}, fastest(result), "(fastest)")
    for line in drawn.values():
        line.set_drawstyle("steps-pre")
    axes.axhline(1, color="0.6", linewidth=0.8, linestyle="--")
    percent_axis(axes.xaxis)
    axes.set_xlabel("GPUs, from least to most loaded")
    axes.set_ylabel("compute time over the mean, simulated")
    return figure


def _load_map(frame: Any, policy: str, ax: Any, figsize: Inches) -> Any:
    """Draws the load of each GPU of one row; TP ranks that do the same are one cell."""
    places = ["dp", "cp", "tp"]
    if (frame.groupby(["pp", "dp", "cp"])["relative_to_mean"].nunique() <= 1).all():
        frame, places = frame[frame["tp"] == frame["tp"].min()], places[:2]
    table = frame.pivot(index="pp", columns=places, values="relative_to_mean").to_numpy()
    figure, axes = new_axes(max(2.4, min(8.0, 1.4 + 0.3 * len(table))), 8.0, ax, figsize)
    spread = max(0.05, float(table.max()) - 1)
    image = axes.imshow(table, aspect="auto", cmap="coolwarm", vmin=1 - spread, vmax=1 + spread, interpolation="nearest")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("replica: DP, in it CP" + (", in it TP" if "tp" in places else "; TP ranks do the same"))
    axes.set_ylabel("pipeline stage")
    entitle(axes, f"{policy}: slowest {table.max():.2f}x the mean", 64)
    figure.colorbar(image, ax=axes, label="compute time over the mean,\nsimulated")
    return figure

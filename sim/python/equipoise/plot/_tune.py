"""Figures of a search."""

from typing import TYPE_CHECKING, Any, Dict, List

from ..program import DEGREES, Tuned
from ._axes import GIB, Inches, cut, entitle, height_of, name_rows, new_axes, new_figure, of, percent_axis, rate_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATE = "tokens_per_second_per_gpu"
COSTS = {"token_delay_mean": (1, "steps that a token waits, on the mean"), "peak_memory_bytes": (GIB, "most memory of a GPU, GiB")}
WHY_NOT = {"slower": "slower", "dropped": "dropped", "oom": "no memory", "states": "states\ntoo large", "unplaceable": "too long", "refused": "refused", "late": "too late"}


def _ran(tuned: Tuned) -> Any:
    """The candidates that ran to their end."""
    frame = tuned.tried()
    ran = frame[frame["outcome"] == "ok"] if len(frame) else frame
    if ran.empty:
        reason = next((text for text in frame["reason"] if text), None) if len(frame) else None
        raise ValueError(f"tuned: expected a candidate that ran to its end, found none{f'; {reason}' if reason else ''}")
    return ran


def tune(tuned: Tuned, *, ax: Any = None, figsize: Inches = None) -> "Figure":
    """Tokens per second and GPU of the fastest candidates, simulated, each with the 95 % interval of its speed-up over the
    study's baseline; the first has another colour, and the baseline is below them in grey."""
    of(tuned, "tuned", Tuned)
    rows = list(zip(tuned.page.get("names") or [], tuned.ranking))
    if not rows:
        _ran(tuned)
        raise ValueError("tuned: expected a ranking, found none: the search was stopped before the best were run in full")
    baseline = tuned.found["baseline"]
    base = f"{baseline['label']} on {baseline['layout_text']} (the study's, {baseline['gpus']:,} GPUs)"
    if (baseline["metrics"] or {}).get(RATE) is not None:
        rows.append((base, {"metrics": {**baseline["metrics"], "speedup": None}}))
    figure, axes = new_axes(height=height_of(len(rows), least=2.4), width=8.6, ax=ax, figsize=figsize)
    for place, (name, row) in enumerate(rows):
        metrics = row["metrics"]
        colour = "C1" if place == 0 else "C0" if row in tuned.ranking else "0.6"
        axes.barh(place, metrics[RATE], xerr=rate_error(metrics), color=colour, ecolor="0.3", capsize=3)
        said = f" {metrics[RATE]:,.0f}" + (f", {metrics['speedup']:.2f}x" if metrics["speedup"] is not None else "")
        axes.annotate(said, (0, place), color="white", va="center", fontsize="small")
    name_rows(axes, [name for name, _ in rows], width=48)
    axes.tick_params(axis="y", labelsize="small")
    axes.set_xlabel(f"tokens/s/GPU, simulated\nin the bars the speed-up over {cut(baseline['label'], 26)}")
    entitle(axes, tuned.found["study"]["name"])
    return figure


def layouts(tuned: Tuned, *, figsize: Inches = None) -> "Figure":
    """Which layouts run, and how fast: a map for each TP degree, CP down and PP across, DP is what is left. A cell has the
    tokens per second and GPU of its fastest candidate, simulated; where none ran to its end, why. What is empty was not
    tried."""
    of(tuned, "tuned", Tuned)
    frame = tuned.tried()
    if frame.empty:
        _ran(tuned)
    tensors = sorted(frame["parallel.tensor"].unique())
    most = [frame[f"parallel.{key}"].nunique() for key in ("pipeline", "context")]
    across = min(len(tensors), 2 if len(tensors) == 4 or most[0] > 4 else 3)
    down = -(-len(tensors) // across)
    figure = new_figure(height=max(2.8, 0.6 + down * (0.9 + 0.52 * most[1])), width=1.6 + across * max(2.0, 0.6 + 0.85 * most[0]), figsize=figsize)
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    rates = frame.astype({RATE: float}).groupby(["parallel.tensor", "parallel.context", "parallel.pipeline"])[RATE].max()
    image: Any = None
    for axes, tensor in zip(panels, tensors):
        image = _layout_map(axes, frame[frame["parallel.tensor"] == tensor], rates.min(), rates.max()) or image
        axes.set_title(f"TP {tensor}", fontsize="medium")
    for axes in panels[len(tensors) :]:
        axes.set_axis_off()
    if image is not None and rates.nunique() > 1:
        figure.colorbar(image, ax=panels, label="tokens/s/GPU, simulated")
    return figure


def _layout_map(axes: Any, frame: Any, low: float, high: float) -> Any:
    """The cells of one TP degree."""
    stages, contexts = (sorted(frame[f"parallel.{key}"].unique()) for key in ("pipeline", "context"))
    table = frame.astype({RATE: float}).pivot_table(index="parallel.context", columns="parallel.pipeline", values=RATE, aggfunc="max")
    table = table.reindex(index=contexts, columns=stages)
    spread = high - low if high > low else 1.0
    image = axes.imshow(table.to_numpy(dtype=float), aspect="auto", vmin=high - spread, vmax=high, cmap="YlGnBu")
    for (context, stage), cell in frame.groupby(["parallel.context", "parallel.pipeline"]):
        rate = table.loc[context, stage]
        fate = next((text for outcome, text in WHY_NOT.items() if (cell["outcome"] == outcome).any()), "")
        said = f"{rate:,.0f}" if rate == rate else fate
        replicas = ", ".join(map(str, sorted(cell["parallel.data"].unique())))
        dark = rate == rate and (rate - high + spread) / spread > 0.6
        axes.text(stages.index(stage), contexts.index(context), f"{said}\nDP {replicas}", ha="center", va="center", fontsize=7,
                  color="white" if dark else "black" if rate == rate else "0.4")
    axes.set_xticks(range(len(stages)), [str(stage) for stage in stages])
    axes.set_yticks(range(len(contexts)), [str(context) for context in contexts])
    axes.set_xlabel("PP")
    axes.set_ylabel("CP")
    return image if table.notna().any().any() else None


def frontier(tuned: Tuned, *, figsize: Inches = None) -> "Figure":
    """What speed costs: tokens per second and GPU, simulated, against the steps that a token waits on the mean, and against
    the most memory of a GPU (GiB, modelled). Each candidate that ran to its end is a dot; the line joins those that none
    beats in both. A search ends what is slower than its tenth best, so slower candidates with less delay or memory may be
    missing."""
    of(tuned, "tuned", Tuned)
    ran = _ran(tuned)
    kinds = [cost for cost in COSTS if ran[cost].dropna().nunique() > 1]
    if not kinds:
        raise ValueError("tuned: expected candidates that differ in delay or memory, found none")
    figure = new_figure(width=1.0 + 4.4 * len(kinds), figsize=figsize)
    for axes, cost in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds):
        scale, name = COSTS[cost]
        own = ran[ran[cost].notna()].astype({RATE: float, cost: float}).sort_values([RATE, cost], ascending=[False, True])
        front = own[own[cost] < own[cost].cummin().shift(fill_value=float("inf"))]
        axes.plot(own[cost] / scale, own[RATE], "o", color="0.6", alpha=0.5, markersize=4, label="ran to its end")
        front = front.sort_values(cost)
        axes.plot(front[cost] / scale, front[RATE], "o-", color="C1", drawstyle="steps-post", label="none beats it in both")
        axes.set_xlabel(name + (", modelled" if scale == GIB else ""))
        axes.set_xlim(left=-0.03 * own[cost].max() / scale)
        axes.set_ylabel("tokens/s/GPU, simulated")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small")
    return figure


def choices(tuned: Tuned, *, ax: Any = None, figsize: Inches = None) -> "Figure":
    """What each choice is worth: the fastest candidate with each value of a key, all other keys free, in tokens per second and
    GPU over the fastest of all, simulated. Each value has its dot and its name, the fastest of a key on top. One that is
    missing did not run to its end with anything."""
    of(tuned, "tuned", Tuned)
    ran = _ran(tuned)
    best = ran[RATE].max()
    keys = dict.fromkeys(["policy", *(f"parallel.{key}" for key in DEGREES), *tuned.page["search"]["keys"]])
    worth: Dict[str, Any] = {key: ran[ran[key].notna()].groupby(key)[RATE].max() / best for key in keys}
    worth = {key: values for key, values in worth.items() if len(values) > 1}
    if not worth:
        raise ValueError("tuned: expected candidates that ran with several values of a key, found none")
    dots = sum(len(values) for values in worth.values())
    figure, axes = new_axes(height=max(2.4, 1.0 + 0.17 * dots + 0.12 * len(worth)), width=8.6, ax=ax, figsize=figsize)
    low = min(values.min() for values in worth.values())
    begins: List[float] = []  # the lines of each key
    ends: List[float] = []
    for values in worth.values():
        values = values.sort_values(ascending=False, kind="stable")
        begins.append(ends[-1] + 1.7 if ends else 0.0)
        lines = [begins[-1] + down for down in range(len(values))]  # one line per dot, so that no name covers
                                                                    # another
        ends.append(lines[-1])
        axes.plot(values, lines, "o", color="C0", markersize=5)
        for at, (value, share) in zip(lines, values.items()):
            text = cut(str(value).translate(str.maketrans(":", " ", '{}[]"')), 44)
            right = share < (1 + low) / 2
            axes.annotate(text, (share, at), xytext=(5 if right else -5, 0), textcoords="offset points", va="center_baseline",
                          ha="left" if right else "right", fontsize="x-small")
    name_rows(axes, [key.removeprefix("parallel.") for key in worth], places=[(begin + end) / 2 for begin, end in zip(begins, ends)])
    between = [(above + below) / 2 for above, below in zip(ends, begins[1:])]
    axes.hlines(between, 0, 1, transform=axes.get_yaxis_transform(), color="0.8", linewidth=0.8)
    axes.set_ylim(ends[-1] + 0.7, -0.7)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    percent_axis(axes.xaxis)
    axes.set_xlabel("fastest with a value over the fastest of all, simulated")
    return figure

"""Figures of data that only a study's page has: of `study(out=FOLDER)`, or of that folder."""

import os
import textwrap
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np

from .._values import integer, lengths_array, page_data, path_of, refuse
from ..study import Result
from ._axes import GIB, NAMED, PARTS, Inches, cut, drawn_by, entitle, height_of, legend, name_rows, new_axes, new_figure, none_ran, one_of
from ._axes import percent_axis, stack

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Paged = Union[Result, str, os.PathLike]

COMPUTATION = "computation"
# In the order of the bars, which also decides the colours.
LOSSES = (
    COMPUTATION,
    "waiting for other stages",
    "waiting for the slowest replica",
    "TP communication",
    "CP communication",
    "EP communication",
    "transfers between stages",
    "gradient and parameter exchange",
    "recompute",
)
WAITING_ALONE = "waiting for others"  # if there is only one stage
AXES = {"compute": COMPUTATION, "tp": LOSSES[3], "cp": LOSSES[4], "ep": LOSSES[5], "pp": LOSSES[6], "dp": LOSSES[7]}
DELAYS = ((0, 0, "at once"), (1, 1, "1 step"), (2, 3, "2 to 3 steps"), (4, 7, "4 to 7 steps"), (8, None, "8 and more"))
OPS = (("forward", "#9ecae1"), ("backward", "#3182bd"), ("forward, dropped again", "#c7e9c0"), ("forward, again", "#fdae6b"), ("weight gradients", "#756bb1"))


def _page_of(result: Any, argument: str = "result") -> Dict[str, Any]:
    """The data of a study's page."""
    if isinstance(result, Result):
        try:
            return result.page()
        except ValueError as error:
            raise ValueError(str(error).replace("result", argument, 1)) from None
    if isinstance(result, (str, os.PathLike)):
        return page_data(path_of(argument, result), argument, "study")
    raise ValueError(
        f"{argument}: expected what equipoise.study(..., out=FOLDER) returns, or that folder, found "
        f"{type(result).__name__}{drawn_by(result)}"
    )


def losses(result: Paged, *, ax: Any = None, figsize: Inches = None) -> "Figure":
    """Where each row's step goes, in shares of it, simulated: computation, waiting, each axis's communication that nothing
    hides, recompute. Each second of a GPU counts once, as a mean over all GPUs and full steps. `result` is of
    study(out=FOLDER), or that folder."""
    page = _page_of(result)
    ran = {row["policy"]["label"]: row["losses"] for row in _rows(page) if _rate(row["policy"]) is not None}
    if not ran:
        raise none_ran(page["summary"]["policies"])
    shares = {label: {loss["name"]: loss["share"] for loss in row} for label, row in ran.items()}
    for row in shares.values():
        row[COMPUTATION] = max(0.0, 1 - sum(row.values()))
        row[LOSSES[1]] = row.get(LOSSES[1], 0.0) + row.pop(WAITING_ALONE, 0.0)
    figure, axes = new_axes(height=height_of(len(ran), least=3.0), width=8.6, ax=ax, figsize=figsize)
    stack(axes, list(ran), {name: ([row.get(name, 0.0) for row in shares.values()], f"C{place}") for place, name in enumerate(LOSSES)})
    percent_axis(axes.xaxis)
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of a step, simulated")
    return figure


def _rows(page: Dict[str, Any]) -> List[Dict[str, Any]]:
    """The page's rows, each with its row of summary.json as `policy`."""
    return [{**row, "policy": policy} for row, policy in zip(page["rows"], page["summary"]["policies"])]


def _rate(policy: Mapping) -> Optional[float]:
    return (policy["metrics"] or {}).get("tokens_per_second_per_gpu")


def critical_path(result: Paged, *, ax: Any = None, figsize: Inches = None) -> "Figure":
    """Seconds of the critical path of one step of each row by kind of op, simulated: the chain of ops that nothing else could
    have overtaken. `result` is of study(fidelity="op", out=FOLDER), or that folder."""
    page = _page_of(result)
    paths = {row["label"]: row["critical_path"]["steps"][0] for row in page["rows"] if (row["critical_path"] or {}).get("steps")}
    if not paths:
        found = f"fidelity {page['fidelity']}"
        raise ValueError(f'result: expected a critical path, which study(fidelity="op", out=FOLDER) records, found none with {found}')
    figure, axes = new_axes(height=height_of(len(paths), least=2.4), width=8.6, ax=ax, figsize=figsize)
    seconds = {name: [path["by_axis"].get(axis, 0.0) for path in paths.values()] for axis, name in AXES.items()}
    stack(axes, list(paths), {name: (values, f"C{LOSSES.index(name)}") for name, values in seconds.items()})
    axes.set_xlabel(f"seconds of step {next(iter(paths.values()))['step']}, simulated")
    return figure


def imbalance(result: Paged, *, figsize: Inches = None) -> "Figure":
    """Slowest over mean, simulated, a dot a full step and a tick at the median of each row: micro-batches of a step by
    forward time, ranks of a CP group by attention time. 1 is even. Long studies have a part of their steps here.
    `result` is of study(out=FOLDER), or that folder."""
    page = _page_of(result)
    rows = {}
    for row in page["rows"]:
        steps = [dict(zip(row["steps"]["columns"], values)) for values in row["steps"]["rows"]] if row["steps"] else []
        rows[row["label"]] = [step for step in steps if not step["tail"]]
    rows = {label: steps for label, steps in rows.items() if steps}
    if not rows:
        raise none_ran(page["summary"]["policies"])
    kinds = {"imbalance": "micro-batches of a step", "cp_imbalance": "ranks of a CP group"}
    values = {key: [[s[key] for s in steps if s[key] is not None] for steps in rows.values()] for key in kinds}
    uneven = [key for key in kinds if any(value > 1.0005 for row in values[key] for value in row)] or ["imbalance"]
    figure = new_figure(height=height_of(len(rows), least=2.4), width=4.2 + 3.4 * len(uneven), figsize=figsize)
    for axes, key in zip(figure.subplots(1, len(uneven), sharey=True, squeeze=False)[0], uneven):
        for place, row in enumerate(values[key]):
            best = "C1" if list(rows)[place] == page["winner"] and len(rows) > 1 else "C0"
            apart = [place + 0.5 * ((i * 0.618) % 1 - 0.5) for i in range(len(row))]  # so that dots do not cover each other
            axes.plot(row, apart, "o", color=best, alpha=0.45, markersize=4, markeredgewidth=0)
            if row:
                axes.plot([np.median(row)] * 2, [place - 0.35, place + 0.35], color="0.2", linewidth=2)
        axes.set_title(kinds[key])
        axes.set_xlabel("slowest over mean, simulated")
        axes.grid(axis="x", color="0.9")
        axes.set_axisbelow(True)
    name_rows(axes, list(rows))
    return figure


def delay(result: Paged, *, ax: Any = None, figsize: Inches = None) -> "Figure":
    """Shares of tokens by the steps that they wait between their arrival and their training, each row's plan; in the bars
    the mean and the longest. Rows that see all documents first have none, nor have those that did not run: they are not
    drawn, and named below. `result` is of study(out=FOLDER), or that folder."""
    page = _page_of(result)
    rows = [row for row in _rows(page) if row["tokens_by_delay"]]
    without_delay = [row["policy"] for row in _rows(page) if not row["tokens_by_delay"]]
    if not rows:
        raise ValueError("result: expected a row whose plan says when documents arrive, found none: all see all documents first, or have no plan")
    counts = [row["tokens_by_delay"] for row in rows]
    parts = {
        name: ([sum(count[first : None if last is None else last + 1]) / sum(count) for count in counts], f"C{place}")
        for place, (first, last, name) in enumerate(DELAYS)
    }
    figure, axes = new_axes(height=height_of(len(rows), least=2.4), width=8.6, ax=ax, figsize=figsize)
    stack(axes, [row["label"] for row in rows], parts)
    for place, count in enumerate(counts):
        mean = sum(steps * tokens for steps, tokens in enumerate(count)) / sum(count)
        if len(count) > 1:
            axes.annotate(f" mean {mean:.2g}, longest {len(count) - 1}", (0, place), color="white", va="center", fontsize="small")
    percent_axis(axes.xaxis)
    axes.set_xlim(0, 1)
    said = "\n".join(_not_drawn(text, [policy["label"] for policy in without_delay if (policy["status"] == "ok") == ran])
                     for ran, text in ((True, "no delay, since they see all documents first"), (False, "did not run")))
    axes.set_xlabel(f"share of tokens, by the steps that they wait\n{said}".strip())
    return figure


def _not_drawn(why: str, labels: List[str]) -> str:
    """Names the rows that are not drawn, in lines of the axis's label; only the first ones if there are many."""
    if not labels:
        return ""
    names = [cut(label, 36) for label in labels[:NAMED]] + ([f"{len(labels) - NAMED} more"] if len(labels) > NAMED else [])
    return textwrap.fill(f"not drawn ({why}): {', '.join(names)}", 72)


def _bins(lengths: np.ndarray) -> List[Dict[str, Any]]:
    """Documents by length in bins of a factor 2, as a study's page has them."""
    powers = np.frexp(lengths.astype(float))[1] - 1  # 2^power <= length
    real = lengths.astype(float)
    return [
        {"begin": 2 ** int(power), "end": 2 ** (int(power) + 1), "documents": int(own.sum()), "tokens": float(real[own].sum()),
         "causal_pairs": float((real[own] * (real[own] + 1) / 2).sum())}
        for power in range(int(powers.min()), int(powers.max()) + 1)
        for own in [powers == power]
    ]


def _from_first_percentile(bins: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Joins the bins below the first percentile of documents into one, as on the page."""
    of_all, first, below = sum(b["documents"] for b in bins), 0, 0
    while first + 1 < len(bins) and below + bins[first]["documents"] <= of_all / 100:
        below += bins[first]["documents"]
        first += 1
    if first == 0:
        return bins
    sums = {key: sum(b[key] for b in bins[: first + 1]) for key in ("documents", "tokens", "causal_pairs")}
    return [{**bins[first], "begin": bins[0]["begin"], "shortest": True, **sums}, *bins[first + 1 :]]


def _tokens(count: int) -> str:
    if count >= 2**20 and count % 2**20 == 0:
        return f"{count // 2**20}M"
    return f"{count // 1024}K" if count >= 1024 and count % 1024 == 0 else str(count)


def lengths(documents: Any, *, ax: Any = None, figsize: Inches = None) -> "Figure":
    """Shares of documents, of their tokens and of the attention that they cause (query-key pairs, n (n + 1) / 2), by document
    length in tokens, in bins of a factor 2; counted, not simulated. `documents`: lengths in tokens, or a result of
    study(out=FOLDER) or that folder, whose documents are as policies get them: one that is cut at a window's border counts
    as its pieces."""
    of_page = isinstance(documents, (Result, str, os.PathLike))
    if not of_page and drawn_by(documents):
        raise ValueError(
            "documents: expected lengths in tokens, or what equipoise.study(..., out=FOLDER) returns, found "
            f"{type(documents).__name__}{drawn_by(documents)}"
        )
    bins = _page_of(documents, "documents")["lengths"] if of_page else _bins(lengths_array(documents, "documents"))
    if not bins:
        raise ValueError("documents: expected a study whose documents were read, found one without")
    bins = _from_first_percentile(bins)
    series = {"documents": "C0", "tokens": "C2", "causal_pairs": "C1"}
    shares = {key: np.array([b[key] for b in bins], dtype=float) / sum(b[key] for b in bins) for key in series}
    begin, attention = len(bins), 0.0  # from the longest bin down, until half of the attention is included
    while begin > 0 and attention < 0.5:
        begin -= 1
        attention += shares["causal_pairs"][begin]
    figure, axes = new_axes(width=9.0, ax=ax, figsize=figsize)
    for place, (key, colour) in enumerate(series.items()):
        name = "attention (query-key pairs)" if key == "causal_pairs" else key
        axes.bar(np.arange(len(bins)) + 0.27 * (place - 1), shares[key], width=0.27, color=colour, label=name)
    axes.set_xticks(range(len(bins)), [f"to {_tokens(b['end'])}" if b.get("shortest") else _tokens(b["begin"]) for b in bins])
    axes.tick_params(axis="x", labelsize="small" if len(bins) <= 14 else "x-small")
    axes.set_xlabel("document length from, in tokens, bins of a factor 2")
    axes.set_ylabel("share of all")
    percent_axis(axes.yaxis)
    legend(axes, *axes.get_legend_handles_labels())
    share = {key: f"{100 * values[begin:].sum():.3g}\u00a0%" for key, values in shares.items()}
    entitle(axes, f"Documents of {_tokens(bins[begin]['begin'])} tokens and more: {share['documents']} of all, {share['tokens']} of the tokens, "
            f"{share['causal_pairs']} of the attention", 60)
    return figure


def memory_by_stage(result: Paged, *, figsize: Inches = None) -> "Figure":
    """What holds the bytes of the fullest lane of every pipeline stage, a panel a row, in GiB, modelled; the dashed line is
    what a GPU has. The step is the one that holds the most, or of what was recorded the fullest. `result` is of
    study(out=FOLDER), or that folder."""
    page = _page_of(result)
    rows = [row for row in _rows(page) if row["memory"]["stages"] and row["policy"]["memory"]]
    if not rows:
        raise none_ran(page["summary"]["policies"])
    across = min(4, len(rows))
    down = -(-len(rows) // across)
    figure = new_figure(height=0.8 + 2.1 * down, width=max(5.0, 2.6 * across) + 1.4, figsize=figsize)
    panels = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    handles: Dict[str, Any] = {}
    for axes, row in zip(panels, rows):
        stages = [stage["parts"] for stage in row["memory"]["stages"]]
        below = np.zeros(len(stages))
        for place, name in enumerate(PARTS):
            held = np.array([parts.get(name, 0.0) / GIB for parts in stages])
            if held.any():
                handles.setdefault(name.replace("_", " "), axes.bar(range(len(stages)), held, bottom=below, color=f"C{place}"))
                below += held
        axes.axhline(row["policy"]["memory"]["capacity_bytes"] / GIB, color="0.3", linestyle="--", linewidth=1)
        no_room = " (does not fit)" if row["policy"]["status"] == "oom" else ""
        entitle(axes, cut(row["label"], 52 - len(no_room)) + no_room, 28)
        axes.title.set_fontsize("small")
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in panels[len(rows) :]:
        axes.set_axis_off()
    names = [name.replace("_", " ") for name in PARTS if name.replace("_", " ") in handles]
    figure.legend([handles[name] for name in names], names, loc="outside right upper", fontsize="small")
    figure.supxlabel("pipeline stage", fontsize="medium")
    figure.supylabel("GiB of a GPU, modelled", fontsize="medium")
    return figure


def pipeline(result: Paged, policy: Union[str, Sequence[str], None] = None, step: Optional[int] = None, *, figsize: Inches = None) -> "Figure":
    """Draws the simulated timeline of a step, with a line per pipeline stage. Boxes are the forwards and backwards of
    micro-batches by number, gaps are waiting, and grey at the end are gradients and the optimizer. `policy` names one row
    or two on one time axis; the default is the baseline and the fastest. `step` is one of those that the page has (of median
    time, slowest, fastest, with most memory ...); the default is each row's first. The lane that ends last is drawn.
    `result` is of study(out=FOLDER), or that folder."""
    page = _page_of(result)
    drawn = {row["label"]: [one for one in row["drawn"] if one["lanes"]] for row in page["rows"]}
    drawn = {label: steps for label, steps in drawn.items() if steps}
    if not drawn:
        if any(row["drawn"] for row in page["rows"]):
            raise ValueError("result: expected a row whose steps the page has room for, found none: timeline/ in the folder has them")
        raise none_ran(page["summary"]["policies"])
    chosen = [policy] if isinstance(policy, str) else policy
    if chosen is None:
        chosen = [label for label in dict.fromkeys([page["summary"]["baseline"], page["winner"]]) if label in drawn] or list(drawn)[:1]
    if not isinstance(chosen, (list, tuple)) or not 1 <= len(chosen) <= 2:
        refuse("policy", "the label of a row, or a list of one or two", policy)
    if step is not None:
        integer("step", step, 0)
    steps = []
    for label in chosen:
        known = drawn[one_of("policy", label, list(drawn))]
        found = [one for one in known if step is None or one["step"] == step]
        if not found:
            there = ", ".join(f"{one['step']} ({one['why']})" for one in known)
            refuse("step", f"one of {there} of {label}", step)
        steps.append(found[0])
    stages = [1 + max(one["lanes"][0]["ops"][::6]) for one in steps]
    figure = new_figure(height=1.4 + sum(0.7 + (0.3 if count <= 12 else 0.2) * count for count in stages), width=10.0, figsize=figsize)
    whole = max(one["end"] for one in steps) / 1e6
    handles: Dict[str, Any] = {}
    panels = figure.subplots(len(steps), 1, sharex=True, squeeze=False, height_ratios=stages)[:, 0]
    for axes, label, one, count in zip(panels, chosen, steps, stages):
        _draw_step(axes, one, count, whole, handles)
        of_lanes = f", lane {one['lanes'][0]['lane']} of {one['of_lanes']}" if one["of_lanes"] > 1 else ""
        entitle(axes, f"{cut(label, 40)}, step {one['step']}{of_lanes}: {one['end'] / 1e6:.4g} s ({one['why']})", 110)
    panels[-1].set_xlim(0, whole)
    panels[-1].set_xlabel("seconds into the step, simulated")
    names = [name for name, _ in OPS if name in handles] + ["gradients, optimizer"]
    figure.legend([handles[name] for name in names], names, loc="outside lower center", ncols=len(names), fontsize="small")
    return figure


def _draw_step(axes: Any, one: Dict[str, Any], stages: int, whole: float, handles: Dict[str, Any]) -> None:
    ops = np.array(one["lanes"][0]["ops"], dtype=float).reshape(-1, 6)  # stage, kind, micro-batch, virtual stage, start, time
    ops[:, 4:] /= 1e6
    for kind, (name, colour) in enumerate(OPS):
        for stage in range(stages):
            own = ops[(ops[:, 1] == kind) & (ops[:, 0] == stage)]
            if len(own):
                bars = axes.broken_barh(own[:, 4:], (stage - 0.44, 0.88), facecolors=colour, edgecolors="white", linewidth=0.4)
                handles.setdefault(name, bars)
    for stage, kind, micro_batch, _, start, time in ops:
        text = str(int(micro_batch))
        if time / whole * 9.0 > 0.075 * len(text):  # inches
            axes.text(start + time / 2, stage, text, ha="center", va="center", fontsize=7, color="white" if kind in (1, 4) else "black", clip_on=True)
    begin, end = one["pipeline"] / 1e6, one["end"] / 1e6
    handles["gradients, optimizer"] = axes.broken_barh([(begin, end - begin)], (-0.5, stages), facecolors="0.8")
    axes.set_ylim(stages - 0.5, -0.5)
    axes.set_yticks(range(0, stages, 1 + stages // 13))
    axes.set_ylabel("stage")

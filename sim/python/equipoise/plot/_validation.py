"""Figures of a validation: simulated and measured."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Dict, List

from ._axes import VALIDATION, Inches, drawn_by, height_of, legend, name_rows, new_figure, percent_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def validation(validated: Mapping, *, figsize: Inches = None) -> "Figure":
    """What `validate` returns: seconds of each row's mean step, simulated and measured, with the error (simulated / measured
    - 1) and the noise of the measurement; the error of each step, and that of each kind of op, each in the band of its
    limit. What was not measured is not drawn."""
    if not isinstance(validated, Mapping) or validated.get("schema") != VALIDATION:
        raise ValueError(f"validated: expected what equipoise.validate returns, found {type(validated).__name__}{drawn_by(validated)}")
    policies = [row for row in validated["policies"] if None not in (row["predicted_seconds"], row["measured_seconds"])]
    many = [row for row in policies if len([s for s in row["steps"] if s["error"] is not None]) > 1]
    ops = [op for op in validated["ops"] if op["error"] is not None]
    parts: List[Any] = [(draw, rows, height) for draw, rows, height in (
        (_steps, policies, 0.9 + 0.55 * len(policies)), (_by_step, many, 3.0), (_ops, ops, 0.9 + 0.26 * len(ops))) if rows]
    if not parts:
        raise ValueError("validated: expected steps or ops that were measured, found none")
    figure = new_figure(height=0.3 + sum(height for _, _, height in parts), width=8.6, figsize=figsize)
    axes = figure.subplots(len(parts), 1, squeeze=False, height_ratios=[height for _, _, height in parts])[:, 0]
    for panel, (draw, rows, _) in zip(axes, parts):
        draw(panel, rows, validated["limits"])
    return figure


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _steps(axes: Any, policies: List[Dict[str, Any]], limits: Mapping) -> None:
    places = range(len(policies))
    axes.barh([p - 0.19 for p in places], [row["predicted_seconds"] for row in policies], height=0.36, color="C0", label="simulated")
    axes.barh([p + 0.19 for p in places], [row["measured_seconds"] for row in policies], height=0.36, color="0.6", ecolor="0.3",
              xerr=[row["noise_seconds"] or 0.0 for row in policies], label="measured, its noise")
    for place, row in enumerate(policies):
        axes.annotate(f" {_signed(row['error'])}", (0, place - 0.19), color="white", va="center", fontsize="small")
    name_rows(axes, [row["label"] for row in policies])
    axes.set_xlabel("seconds of a mean step; in the bars simulated / measured - 1")
    legend(axes, *axes.get_legend_handles_labels())


def _by_step(axes: Any, policies: List[Dict[str, Any]], limits: Mapping) -> None:
    axes.axhspan(-limits["step"], limits["step"], color="0.93", label=f"limit of a mean, {100 * limits['step']:.3g} %")
    axes.axhline(0, color="0.6", linewidth=0.8)
    for row in policies[:10]:
        steps = [step for step in row["steps"] if step["error"] is not None]
        axes.plot([step["step"] for step in steps], [step["error"] for step in steps], "o", alpha=0.75, markersize=4, label=row["label"])
    for row in policies[10:]:
        axes.plot([step["step"] for step in row["steps"]], [step["error"] for step in row["steps"]], "o", color="0.8", markersize=3)
    percent_axis(axes.yaxis)
    axes.set_ylabel("error of a step")
    axes.set_xlabel("step; error is simulated / measured - 1")
    axes.xaxis.get_major_locator().set_params(integer=True)
    legend(axes, *axes.get_legend_handles_labels())


def _ops(axes: Any, ops: List[Dict[str, Any]], limits: Mapping) -> None:
    axes.axvspan(-limits["op"], limits["op"], color="0.93", label=f"limit, {100 * limits['op']:.3g} %")
    axes.axvline(0, color="0.6", linewidth=0.8)
    for within, colour, name in ((True, "C0", "within it"), (False, "C3", "beyond it")):
        own = [(op["error"], place) for place, op in enumerate(ops) if bool(op["within_limit"]) == within]
        if own:
            axes.plot(*zip(*own), "o", color=colour, label=name)
            axes.hlines([p for _, p in own], 0, [e for e, _ in own], color=colour, linewidth=1)
    name_rows(axes, [op["op"] for op in ops])
    percent_axis(axes.xaxis)
    axes.set_xlabel("error of a kind of op's time, simulated / measured - 1")
    legend(axes, *axes.get_legend_handles_labels())

"""Figures of what the pages draw, with Matplotlib: each returns its Figure.

    import equipoise
    equipoise.plot.comparison(result).savefig("comparison.svg")

Each takes `figsize`, inches; those of one panel take `ax`, Matplotlib's Axes to draw on. PDF and PostScript embed TrueType fonts.
Simulated figures say so in their labels. Legends name ten rows at most.

    comparison, memory, steps, gpus                   what `study` returns
    losses, imbalance, delay, pipeline,               what `study(out=FOLDER)` returns, or that folder
    memory_by_stage, critical_path
    lengths                                           the same, or lengths of documents
    sweep                                             what `sweep` returns
    tune, layouts, frontier, choices                  what `tune` returns
    validation                                        what `validate` returns
"""

from ._page import critical_path, delay, imbalance, lengths, losses, memory_by_stage, pipeline
from ._study import comparison, gpus, memory, steps
from ._sweep import sweep
from ._tune import choices, frontier, layouts, tune
from ._validation import validation

__all__ = [
    "choices",
    "comparison",
    "critical_path",
    "delay",
    "frontier",
    "gpus",
    "imbalance",
    "layouts",
    "lengths",
    "losses",
    "memory",
    "memory_by_stage",
    "pipeline",
    "steps",
    "sweep",
    "tune",
    "validation",
]

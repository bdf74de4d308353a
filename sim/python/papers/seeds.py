"""Figures from drawn lengths: each table is made once per seed, and shows the median with its range.

The runs of all seeds and tables are spread over the cores; those that do not depend on the seed are made once (runner.py).
"""

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import median

from .figure import Experiment

def median_or_none(values):
    """The median; None where one of them is missing; a whole number of whole numbers."""
    values = list(values)
    if not values or None in values:
        return None
    middle = median(values)
    return round(middle) if all(isinstance(v, int) for v in values) else middle


def merged_cell(cells):
    """A cell of an experiment: the median of numbers; a number with a word (oom) says on how many of the draws it has the word."""
    first = cells[0]
    if isinstance(first, list):
        return [merged_cell(items) for items in zip(*cells)]
    if isinstance(first, str):
        if any(cell != first for cell in cells):
            raise ValueError(f"a text depends on the seed: {cells}")
        return first
    if not isinstance(first, tuple):
        return median_or_none(cells)
    words = [word for _, word in cells if word]
    said = f"{words[0]} {len(words)}/{len(cells)}" if 0 < len(words) < len(cells) else (words or [""])[0]
    return median_or_none(value for value, _ in cells), said


def merged_figure(figures):
    """The median of ours, the range of the draws, and the median where nothing is chosen."""
    first = figures[0]
    if any(f.what != first.what for f in figures):
        raise ValueError(f"a figure's name depends on the seed: {[f.what for f in figures]}")
    ours = [f.ours for f in figures]
    spread = None if None in ours or min(ours) == max(ours) else (min(ours), max(ours))
    unchosen = median_or_none(f.unchosen for f in figures)
    return replace(first, ours=median_or_none(ours), unchosen=unchosen, draws=first.draws or spread)


def merged(tables):
    """One table of those that one function made with different seeds."""
    first = tables[0]
    if isinstance(first, Experiment):
        rows = [[merged_cell(cells) for cells in zip(*rows)] for rows in zip(*(t.rows for t in tables))]
        return replace(first, rows=rows)
    return replace(first, figures=[merged_figure(figures) for figures in zip(*(t.figures for t in tables))])


class Progress:
    """What is left, on the last line of a terminal; nothing is shown elsewhere, and nothing is left of the line."""

    def __init__(self, total, log=sys.stderr):
        self.total, self.log, self.done, self.begin = total, log, 0, time.monotonic()
        self.lock, self.what = threading.Lock(), ""

    def text(self, seconds):
        left = seconds / max(1, self.done) * (self.total - self.done)
        return f"{self.what}: {self.done} of {self.total} tables and draws" + (f", {left:.0f} s left" if self.done else "")

    def step(self, _=None):
        with self.lock:
            self.done += 1
            self.show(self.text(time.monotonic() - self.begin) if self.done < self.total else "")

    def show(self, text):
        if self.log.isatty():
            print("\r\033[K" + text[:79], end="", file=self.log, flush=True)


def tables_of(makers, run, seeds, progress=None):
    """What the functions return, over all seeds."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        made = [[pool.submit(make, run.at(seed)) for make in makers] for seed in range(seeds)]
        for future in (future for of_seed in made for future in of_seed if progress):
            future.add_done_callback(progress.step)
        return [merged([future.result() for future in of_one]) for of_one in zip(*made)]

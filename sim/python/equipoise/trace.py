"""Traces: the recorded lengths of documents, in arrival order."""

import os
from typing import Any, Union

import numpy as np

from . import _core
from ._values import integer, lengths_array, path_of, text_of


def read_trace(path: Union[str, os.PathLike], column: str = "") -> np.ndarray:
    """Tokens of each document (int64) of a trace file: integers, one per line (plain, .gz, .zst), CSV, JSONL, .npy,
    or a Megatron-LM .idx. `column` names the CSV column or JSONL field."""
    return _core.read_lengths(path_of("path", path), text_of("column", column, "a name"))


def draw_trace(distribution: str, documents: int, seed: int = 0) -> np.ndarray:
    """`documents` lengths (int64) drawn from a published distribution, such as "wlb-128k"."""
    return _core.draw_lengths(text_of("distribution", distribution, "a name"), integer("documents", documents, 1), integer("seed", seed, 0))


def write_trace(lengths: Any, path: Union[str, os.PathLike]) -> None:
    """Writes lengths whole or not at all: .npy, else a line for each document, which .gz and .zst compress."""
    _core.write_lengths(lengths_array(lengths), path_of("path", path))

"""Python values as the simulator takes them: JSON text and arrays of lengths."""

import json
import os
from typing import Any

import numpy as np


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"expected values that JSON has, found {type(value).__name__}")


def json_text(value: Any) -> str:
    """JSON of a value; NumPy's numbers and arrays and paths are taken as what they hold."""
    return json.dumps(value, default=_plain, allow_nan=False)


def lengths_array(lengths: Any) -> np.ndarray:
    """Tokens of each document as int64, without a copy where they are that already."""
    array = np.asarray(lengths)
    if array.ndim != 1:
        raise ValueError(f"lengths: expected one list of integers, found {array.ndim} dimensions")
    if array.size == 0:
        raise ValueError("lengths: expected at least one document, found none")
    if array.dtype.kind not in "iu":
        raise ValueError(f"lengths: expected integers, found {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.int64)

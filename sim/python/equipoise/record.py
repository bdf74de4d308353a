"""The lengths of a live loader as a trace."""

import os
from itertools import islice
from operator import index
from typing import Any, Callable, Iterable, List, Optional, Union

import numpy as np

from ._values import integer, path_of, refuse
from .trace import write_trace

_EXPECTED = (
    "cu_seqlens, attention_mask, lengths, position_ids or input_ids as a list of documents, or an own function "
    "`lengths`"
)


def _array(batch: Any, key: str) -> np.ndarray:
    """The numbers that a batch has under a key."""
    value = batch.get(key)
    try:
        array = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
    except ValueError:  # lists of unequal lengths
        array = np.array(None)
    if array.dtype.kind not in "iubf":
        refuse(f"record: batch: {key}", "an array of integers", value)
    return array


def lengths_of(batch: Any) -> List[int]:
    """Tokens of each document of a batch, in its order. A mapping is asked for what says it best: cu_seqlens
    (borders of packed documents), lengths, attention_mask (ones of each row), position_ids (0 begins a
    document), input_ids as a list of documents; a list is one of documents. Raises ValueError for a padded
    tensor without its mask."""
    get = batch.get if hasattr(batch, "get") else lambda key: None
    for key in ("cu_seqlens", "cu_seqlens_q", "cu_seq_lens_q"):
        if get(key) is not None:
            return [int(n) for n in np.diff(_array(batch, key).ravel())]
    for key in ("lengths", "length"):
        if get(key) is not None:
            return [int(n) for n in _array(batch, key).ravel()]
    if get("attention_mask") is not None and _array(batch, "attention_mask").ndim == 2:
        return [int(n) for n in _array(batch, "attention_mask").astype(bool).sum(axis=1)]
    if get("position_ids") is not None:
        return _between_zeros(_array(batch, "position_ids"))
    documents = get("input_ids") if hasattr(batch, "get") else batch
    if isinstance(documents, (list, tuple)) and documents and all(_is_document(d) for d in documents):
        return [len(d["input_ids"]) if hasattr(d, "get") else len(d) for d in documents]
    found = sorted(batch) if hasattr(batch, "keys") else type(batch).__name__
    raise ValueError(f"record: batch: expected {_EXPECTED}, found {found}")


def _is_document(value: Any) -> bool:
    if hasattr(value, "get"):
        return value.get("input_ids") is not None
    return (
        hasattr(value, "__len__") and getattr(value, "ndim", 1) == 1 and not isinstance(value, (str, bytes))
    )


def _between_zeros(positions: np.ndarray) -> List[int]:
    lengths: List[int] = []
    for row in np.atleast_2d(positions):
        begins = np.flatnonzero(row == 0)
        lengths += [int(n) for n in np.diff(np.append(begins, row.size))]
    return lengths


def record(
    dataloader: Iterable,
    path: Union[str, os.PathLike],
    *,
    batches: Optional[int] = None,
    lengths: Optional[Callable[[Any], Iterable[int]]] = None,
) -> np.ndarray:
    """Runs through a loader (its first `batches` batches) and writes the length of every document as a trace
    that `study` and `pack` read: .npy, else a line for each document, .gz and .zst compressed. Returns the lengths.

    `lengths(batch)` says what a batch holds where `lengths_of` cannot see it. Documents of no token are left
    out.
    """
    if not hasattr(dataloader, "__iter__") or isinstance(dataloader, (str, bytes)):
        refuse("dataloader", "something to iterate over", dataloader)
    if lengths is not None and not callable(lengths):
        refuse("lengths", "a function of a batch", lengths)
    if batches is not None:
        integer("batches", batches, 1)
    path_of("path", path)
    found: List[int] = []
    for batch in islice(dataloader, batches):
        of_batch = (lengths or lengths_of)(batch)
        try:
            found += [n for n in map(index, of_batch) if n > 0]
        except TypeError:
            refuse("lengths", "a function that gives a list of integers", of_batch)
    if not found:
        raise ValueError("dataloader: expected at least one document, found none")
    written = np.array(found, dtype=np.int64)
    write_trace(written, path)
    return written

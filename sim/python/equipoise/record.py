"""Records the lengths of a live loader as a trace."""

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
    """The numbers under a key of a batch."""
    value = batch.get(key)
    try:
        array = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
    except ValueError:  # for lists of unequal lengths
        array = np.array(None)
    if array.dtype.kind not in "iubf":
        refuse(f"record: batch: {key}", "an array of integers", value)
    return array


def lengths_of(batch: Any) -> List[int]:
    """Tokens of each document of a batch, in its order. A mapping is asked for what says it best: cu_seqlens
    (borders of packed documents), lengths, position_ids (0 begins a document), attention_mask (what is not 0 of
    each row; another number is another document), input_ids as a list of documents; a list is one of
    documents. Raises ValueError for a padded tensor without its mask."""
    get = batch.get if hasattr(batch, "get") else lambda key: None
    for key in ("cu_seqlens", "cu_seqlens_q", "cu_seq_lens_q", "cu_seq_lens"):
        if get(key) is not None:
            borders = _array(batch, key).ravel()
            return [int(n) for n in np.diff(borders[borders >= 0])]
    for key in ("seq_lengths", "seq_lens", "lengths", "length"):
        if get(key) is not None:
            return [int(n) for row in _rows(batch, key) for n in row]
    mask = None
    if get("attention_mask") is not None and _array(batch, "attention_mask").ndim == 2:
        mask = _array(batch, "attention_mask").astype(np.int64)
    if get("position_ids") is not None:
        return _between_zeros(np.atleast_2d(_array(batch, "position_ids")), mask)
    if mask is not None:
        return [n for row in mask for n in _counted(row)]
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


def _rows(batch: Any, key: str) -> List[Any]:
    """The rows of a batch under a key, which may have different lengths."""
    value = batch.get(key)
    ragged = isinstance(value, (list, tuple)) and value and all(isinstance(row, (list, tuple)) for row in value)
    return list(value) if ragged else [_array(batch, key).ravel()]


def _counted(mask: np.ndarray) -> List[int]:
    """Documents of a row by its mask: 0 is padding, and a new number begins another document (axolotl)."""
    seen = mask[mask != 0]
    begins = np.flatnonzero(np.diff(seen, prepend=0))
    return [int(n) for n in np.diff(np.append(begins, seen.size))]


def _between_zeros(positions: np.ndarray, mask: Optional[np.ndarray]) -> List[int]:
    lengths: List[int] = []
    for i, row in enumerate(positions):
        if mask is not None and mask.shape == positions.shape:
            row = row[mask[i] != 0]
        begins = np.union1d(np.flatnonzero(row == 0), [0])
        lengths += [int(n) for n in np.diff(np.append(begins, row.size))]
    return [n for n in lengths if n > 0]


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

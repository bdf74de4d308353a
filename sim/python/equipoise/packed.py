"""Packed micro-batches for a model, in PyTorch: tokens one after the other, positions and borders of
documents."""

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple, Union

import numpy as np

from ._values import integer, refuse, text_of

IGNORED = -100  # a label without a loss; PyTorch's own default

# DataLoader takes anything with the two methods below, but its types require this class. torch is not
# imported for it.
if TYPE_CHECKING:
    from torch.utils.data import Dataset

    _Dataset = Dataset[np.ndarray]
else:
    _Dataset = object


class PackedDataset(_Dataset):
    """The documents of a dataset that a BatchSampler's items name: an index, or (document, begin, end)."""

    def __init__(self, dataset: Any, field: str = "input_ids"):
        if not hasattr(dataset, "__getitem__"):
            refuse("dataset", "something whose items are documents, by their index", dataset)
        self.dataset, self.field = dataset, text_of("field", field, "a name")

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, piece: Union[int, Tuple[int, int, int]]) -> np.ndarray:
        """Tokens of a document, or of a range of it."""
        document, begin, end = piece if isinstance(piece, tuple) else (piece, 0, None)
        sample = self.dataset[document]
        if isinstance(sample, dict) and self.field not in sample:
            refuse("field", f"one of {', '.join(map(str, sample))}", self.field)
        return np.asarray(sample[self.field] if isinstance(sample, dict) else sample)[begin:end]


def collate(documents: List[Any], *, multiple: int = 1, length: Optional[int] = None, pad: int = 0) -> Dict[str, Any]:
    """One micro-batch of documents as torch tensors, all int64 but for cu_seqlens (int32):

    input_ids (1, tokens); position_ids (1, tokens), from 0 in each document; labels (1, tokens), the next
    token of the same document, IGNORED at its last; cu_seqlens (documents + 1), where each begins and the
    last ends, as variable-length attention takes it; max_seqlen.

    `multiple`: each document is filled up with tokens `pad` to a multiple of it, by 2 x CP where context parallelism cuts
    each document. Causal attention sees these only from other such tokens, so the document includes them. `length`: padding, as a
    document of its own, fills the micro-batch up to so many tokens. No padding has a loss. Without tokens it makes padding alone.
    """
    if isinstance(documents, (str, bytes)) or not hasattr(documents, "__len__"):
        refuse("documents", "a list of documents", documents)
    multiple, pad = integer("multiple", multiple, 1), integer("pad", pad, 0)
    length = None if length is None else integer("length", length, 1)
    import torch

    arrays = [a for a in (np.asarray(d, dtype=np.int64) for d in documents) if a.size > 0]
    lengths = np.array([a.size for a in arrays], dtype=np.int64)
    sizes = -(-lengths // multiple) * multiple
    left = (multiple if not arrays else 0) if length is None else length - int(sizes.sum())
    if left < 0:
        refuse("length", f"at least {int(sizes.sum())}, the tokens of a micro-batch's documents with their padding", length)
    ends = np.cumsum(np.append(sizes, left) if left > 0 else sizes)
    tokens, labels = np.full(ends[-1], pad, dtype=np.int64), np.full(ends[-1], IGNORED, dtype=np.int64)
    for array, end, size in zip(arrays, ends, sizes):
        begin = end - size
        tokens[begin : begin + array.size] = array
        labels[begin : begin + array.size - 1] = array[1:]
    borders = np.concatenate([[0], ends])
    return {
        "input_ids": torch.from_numpy(tokens)[None],
        "position_ids": torch.from_numpy(np.arange(tokens.size) - np.repeat(borders[:-1], np.diff(borders)))[None],
        "labels": torch.from_numpy(labels)[None],
        "cu_seqlens": torch.from_numpy(borders.astype(np.int32)),
        "max_seqlen": int(np.diff(borders).max()),
    }

"""A policy of one's own as a row of a study, or in place of a policy's name: f(lengths, options) -> steps."""

import json
import os
import reprlib
import time
import traceback
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from operator import index
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union

import numpy as np

from ._values import json_text, refuse

Policy = Callable[[np.ndarray, Dict[str, Any]], Any]
Own = Union[Policy, Mapping]  # a function, or the result of `policy`
_LEVELS = ("steps", "lanes", "micro-batches", "(document, begin, end)")
_FOLDER = os.path.dirname(__file__)


def policy(function: Policy, **keys: Any) -> Dict[str, Any]:
    """Makes an entry of a study's policies from a function and that entry's keys, such as label, shard and schedule.
    The function is given `options`. `pack` and BatchSampler take the entry too, but use only its label and options."""
    if not callable(function):
        refuse("function", "f(lengths, options) that returns steps", function)
    return {"policy": function, **keys}


def parts(own: Any, label: Optional[str] = None) -> Tuple[Policy, str, Mapping]:
    """The function, the label and the options of a policy of one's own."""
    entry = own if isinstance(own, Mapping) else {"policy": own}
    function, options = entry.get("policy"), entry.get("options", {})
    if not callable(function):
        refuse("policy", "a name, a function f(lengths, options) or equipoise.policy(function, ...)", own)
    if not isinstance(options, Mapping):
        refuse("policy: options", "a dict, which the function is given", options)
    if not isinstance(entry.get("label", ""), str):
        refuse("policy: label", "a text", entry["label"])
    return function, label or entry.get("label") or getattr(function, "__name__", "own"), options


def _place(function: Policy) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno} ({code.co_name})" if code else repr(function)


def made_by(function: Policy) -> str:
    """Where a function is defined, for the end of a message about what it returned."""
    return f", returned by {_place(function)}"


def failure_text(error: BaseException, function: Policy) -> str:
    """A one-line description of an exception and where it was raised, the innermost call first."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if os.path.dirname(f.filename) != _FOLDER][-5:]
    calls = ", called at ".join(f"{frame.filename}:{frame.lineno} ({frame.name})" for frame in reversed(frames))
    if not frames and isinstance(error, TypeError):  # the call itself failed
        text = f"TypeError: {error}; expected f(lengths, options), found {_place(function)}"
    elif frames or not isinstance(error, ValueError):
        text = f"{type(error).__name__}: {error}{', at ' if calls else ''}{calls}"
    else:  # for a function that did not return a plan
        text = str(error) if isinstance(error, NoPlan) else f"{error}{made_by(function)}"
    return " ".join(text.split())


class NoPlan(ValueError):
    """The function returned something other than lists of lists of pieces of the documents."""


def document_lengths(documents: np.ndarray) -> np.ndarray:
    """Tokens of each document in the study's set, without what the loader cut off at its end."""
    lengths = np.zeros(int(documents[:, 1].max()) + 1, dtype=np.int64)
    np.maximum.at(lengths, documents[:, 1], documents[:, 3])
    return lengths


def options_of(documents: np.ndarray, shape: str, own: Mapping) -> Dict[str, Any]:
    """The second argument of a policy: the shape of a step, what arrives with each global batch, and what the
    study's entry says in `options`."""
    batches: List[List[Tuple[int, int, int]]] = [[] for _ in range(int(documents[:, 0].max()) + 1)]
    for batch, document, begin, end in documents.tolist():
        batches[batch].append((document, begin, end))
    return {**json.loads(shape), "batches": batches, **own}


def _nested(value: Any, where: str, lengths: np.ndarray, level: int = 0) -> List[Any]:
    """Steps, lanes, micro-batches and pieces as lists, whatever iterables they are."""
    if level == len(_LEVELS):
        return _piece(value, where, lengths)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        return [_nested(item, f"{where}[{i}]", lengths, level + 1) for i, item in enumerate(value)]
    also = ", each a list of lanes of micro-batches of (document, begin, end), or a whole plan" if level == 0 else ""
    raise NoPlan(f"{where}: expected a list of {_LEVELS[level]}{also}, found {reprlib.repr(value)}")


def _piece(value: Any, where: str, lengths: np.ndarray) -> List[int]:
    """(document, begin, end) as integers, a range of a document that is there."""
    expected = "(document, begin, end), three integers"
    try:
        document, begin, end = map(index, value)
        if not 0 <= document < len(lengths):
            expected = f"a document from 0 to {len(lengths) - 1}"
        elif not 0 <= begin < end <= lengths[document]:
            expected = f"0 <= begin < end <= {lengths[document]}, the length of document {document}"
        else:
            return [document, begin, end]
    except (TypeError, ValueError):
        pass
    raise NoPlan(f"{where}: expected {expected}, found {reprlib.repr(value)}")


class _Loader:
    """Where the loader cut each document, and the batch in which each slice came."""

    def __init__(self, documents: np.ndarray):
        self.slices: Dict[int, List[Tuple[int, int, int]]] = {}  # (begin, end, batch) of each document, in
                                                                 # ascending order
        for batch, document, begin, end in documents.tolist():
            self.slices.setdefault(document, []).append((begin, end, batch))
        for of_document in self.slices.values():
            of_document.sort()

    def cut(self, piece: List[int]) -> Iterator[List[int]]:
        """Cuts a piece where the loader cut its document: such parts run as documents of their own in every row."""
        document, begin, end = piece
        for _, border, _ in self.slices.get(document, ()):
            if begin < border < end:
                yield [document, begin, border]
                begin = border
        yield [document, begin, end]

    def slice_of(self, piece: List[int]) -> Optional[Tuple[int, int]]:
        """The slice that contains a piece, as (document, place)."""
        of_document = self.slices.get(piece[0], ())
        place = bisect_right(of_document, (piece[1], float("inf"))) - 1
        return (piece[0], place) if place >= 0 else None

    def carried(self, steps: List[Any]) -> Optional[List[List[List[int]]]]:
        """What each step holds back: slices that have arrived and end later. None for plans that run some
        before they arrive: such a policy sees the whole set first."""
        last: Dict[Tuple[int, int], int] = {}
        for s, lanes in enumerate(steps):
            for key in (self.slice_of(piece) for lane in lanes for m in lane for piece in m):
                if key is not None:
                    last[key] = s
        held: List[List[List[int]]] = [[] for _ in steps]
        for (document, place), step in last.items():
            begin, end, arrived = self.slices[document][place]
            if step < arrived:
                return None
            for between in range(arrived, step):
                held[between].append([document, begin, end])
        return held


def plan_text(function: Policy, label: str, documents: np.ndarray, shape: str, own: Mapping) -> str:
    """JSON (equipoise.plan/1) of what a policy returns: its steps, or a whole plan (values, or
    equipoise.Plan), which is taken as it is. Raises NoPlan where they are not lists of lists, and what the function
    raises."""
    lengths = document_lengths(documents)
    began = time.perf_counter()
    steps = function(lengths.copy(), options_of(documents, shape, own))
    if isinstance(steps, Mapping) or hasattr(steps, "json"):
        return json_text(steps if isinstance(steps, Mapping) else steps.json, f"policy {label}")
    try:
        nested = _nested(steps, "steps", lengths)  # runs the generator to its end
    except NoPlan as wrong:
        raise NoPlan(f"policy {label}: {wrong}{made_by(function)}") from None
    pack_ms = 1000 * (time.perf_counter() - began) / max(1, len(nested))
    loader = _Loader(documents)
    cut = [[[[part for piece in m for part in loader.cut(piece)] for m in lane] for lane in lanes] for lanes in nested]
    context = json.loads(shape)["context"]
    carried = loader.carried(cut)
    batches = int(documents[:, 0].max()) + 1
    plan = {
        "schema": "equipoise.plan/1",
        "policy": label,
        "sees_whole_set": carried is None,
        "steps": [
            {
                "step": s,
                "tail": carried is not None and s >= batches,
                "carried": carried[s] if carried else [],
                "measured": {"pack_ms": pack_ms},
                "lanes": [
                    {"lane": l, "context": context, "micro_batches": [{"slices": m} for m in lane]}
                    for l, lane in enumerate(lanes)
                ],
            }
            for s, lanes in enumerate(cut)
        ],
    }
    return json_text(plan, f"policy {label}")

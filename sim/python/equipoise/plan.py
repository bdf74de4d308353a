"""Plans: which documents run together, where and when."""

import json
import os
from typing import Any, Dict, List, Optional, Tuple, Union

import numpy as np
import pandas as pd

from . import _core, own_policy
from ._values import json_text, lengths_array, path_of, utf8

Slice = Tuple[int, int, int]  # document, begin, end: a token range of one document
MicroBatch = List[Slice]
Steps = List[List[List[MicroBatch]]]  # steps, lanes, micro-batches


class Plan:
    """A packing policy's plan for some lengths: the lanes of every step and the micro-batches of every lane."""

    def __init__(self, text: Optional[str] = None, held: Optional[_core.PackedPlan] = None):
        if (text is None) == (held is None):
            raise TypeError("a plan is made by equipoise.pack or Plan.read")
        self._text = text
        self._held = held
        self._json: Optional[Dict[str, Any]] = None

    @classmethod
    def read(cls, path: Union[str, os.PathLike]) -> "Plan":
        """A plan from a file of schema equipoise.plan/1."""
        plan = cls(text=_core.read_json(path_of("path", path)))
        found = plan.json.get("schema") if isinstance(plan.json, dict) else None
        if found != "equipoise.plan/1":
            raise ValueError(f"{os.fspath(path)}: schema: expected equipoise.plan/1, found {found or 'none'}")
        return plan

    def text(self) -> str:
        """The plan as JSON text, as `equipoise pack --format json` prints it."""
        if self._text is None:
            self._text = self._held.json()
        return self._text

    def write(self, path: Union[str, os.PathLike]) -> None:
        """Writes it as a file that a study takes: {"name": "plan", "file": path}."""
        name = os.fspath(path_of("path", path))
        try:
            _core.write_text(name, self.text() + "\n")
        except ValueError as error:
            raise ValueError(f"path: {error}") from None

    @property
    def json(self) -> Dict[str, Any]:
        """The plan as values, schema equipoise.plan/1."""
        if self._json is None:
            self._json = json.loads(self.text())
        return self._json

    @property
    def metrics(self) -> Dict[str, Optional[float]]:
        """Metrics that need no simulator, by their names: attention_imbalance, token_delay_mean, pr ..."""
        return json.loads(self._held.metrics()) if self._held is not None else self.json["metrics"]

    @property
    def notes(self) -> List[str]:
        """What the program prints as notes: options without effect, choices of the policy."""
        return list(self._held.notes) if self._held is not None else [note if isinstance(note, str) else note["text"] for note in self.json.get("notes", [])]

    @property
    def steps(self) -> Steps:
        """Steps of lanes of micro-batches of (document, begin, end), as a policy of one's own returns
        them."""
        if self._held is not None:
            held = self._held
            return [[held.micro_batches(s, lane) for lane in range(held.lanes(s))] for s in range(held.steps)]
        return [
            [
                [[tuple(piece) for piece in m["slices"]] for m in lane["micro_batches"]]
                for lane in step["lanes"]
            ]
            for step in self.json["steps"]
        ]

    def frame(self) -> pd.DataFrame:
        """One row per micro-batch: step, lane, micro_batch, documents (pieces), tokens, attention_work (sum of
        len^2)."""
        rows = []
        for s, lanes in enumerate(self.steps):
            for l, micro_batches in enumerate(lanes):
                for m, pieces in enumerate(micro_batches):
                    tokens = np.array([end - begin for _, begin, end in pieces], dtype=np.int64)
                    rows.append(
                        (s, l, m, len(pieces), int(tokens.sum()), float((tokens.astype(float) ** 2).sum()))
                    )
        return pd.DataFrame(
            rows, columns=["step", "lane", "micro_batch", "documents", "tokens", "attention_work"]
        )

    def __len__(self) -> int:
        return self._held.steps if self._held is not None else len(self.json["steps"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.steps == other.steps

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self):
        return Plan, (self.text(),)

    def __repr__(self) -> str:
        return f"<equipoise.Plan of {len(self)} steps>"


def planned(lengths: np.ndarray, policy: Union[str, own_policy.Own], options: str) -> _core.PackedPlan:
    """The plan of a policy by name, or of one's own, which the validator of all plans checks."""
    if isinstance(policy, str):
        return _core.pack(lengths, utf8("policy", policy), options)
    function, label, own = own_policy.parts(policy)
    documents, shape = _core.loaded(lengths, options)
    text = own_policy.plan_text(function, label, documents, shape, own)
    try:
        return _core.pack(lengths, utf8("policy", label), options, text)
    except ValueError as error:
        raise ValueError(own_policy.failure_text(error, function)) from None


def pack(lengths: Any, policy: Union[str, own_policy.Own], **options: Any) -> Plan:
    """The plan that a packing policy makes of document lengths (tokens, in arrival order): one that `policy_names`
    lists, or a function, f(lengths, options) or equipoise.policy(f, options={...}), as a study takes it.

    `options` are those of `equipoise pack`, with underscores: context_window, sequences_per_step,
    documents_per_step, max_length, steps, lanes, context, seed, cost, model, profile, and the policy's own (queues,
    chunk_size, pack_length ...), which `equipoise.explain(policy)` lists with their values and defaults. Sizes may be text ("128K"); a name that the program does not know, or a
    value that it does not allow, is a ValueError. int64 arrays are read where they lie.
    """
    given = {name: value for name, value in options.items() if value is not None}
    return Plan(held=planned(lengths_array(lengths), policy, json_text(given, "pack")))

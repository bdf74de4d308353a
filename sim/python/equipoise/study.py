"""Studies: every policy on the same documents, simulated."""

import io
import json
import os
import re
import warnings
from collections.abc import Mapping
from typing import Any, Dict, List, Optional, Tuple, Union

import pandas as pd

from . import _core, own_policy
from ._values import flag, integer, json_text, number, page_data, path_of, refuse, text_of, unknown, utf8

Source = Union[str, os.PathLike, Mapping]


class Result:
    """What a study found. Times are simulated, except those under `measured`."""

    def __init__(
        self,
        summary: str,
        table: str,
        steps: str,
        gpus: str,
        plans: str,
        notes: List[str],
        case: Optional[Dict[str, Any]] = None,
        source: str = "{}",
        checks: str = "[]",
        directory: str = "",
        out: str = "",
    ):
        self._state = (summary, table, steps, gpus, plans, notes, case, source, checks, directory, out)
        self.source: Dict[str, Any] = json.loads(source)  # the study's values, including the assignments
        self.directory = directory  # its paths are relative to this folder
        self.out = out  # the folder of study(out=...); empty without one
        self.summary: Dict[str, Any] = json.loads(summary)  # summary.json
        self.table = table  # what `equipoise study` prints
        self.notes = notes
        self.case = case or {}  # the keys and values of a sweep's case
        self.functions: Dict[str, Dict[str, Any]] = {}  # for rows whose policy is a function; they stay in
                                                        # this process

    @property
    def policies(self) -> List[Dict[str, Any]]:
        """The rows of summary.json, in the study's order."""
        return self.summary["policies"]

    def __getitem__(self, label: str) -> Dict[str, Any]:
        for row in self.policies:
            if row["label"] == label:
                return row
        raise KeyError(unknown("row", label, [row["label"] for row in self.policies]))

    def frame(self) -> pd.DataFrame:
        """One row per policy, indexed by label: status, reason, every metric by its name
        (exposed_comm_ratio.cp is that of one axis), and pack_ms (measured)."""
        rows = [
            {
                **{key: row.get(key) for key in ("label", "policy", "shard", "status", "reason")},
                **_flat(row.get("metrics") or {}),
                **_flat(row.get("measured") or {}),
            }
            for row in self.policies
        ]
        return pd.DataFrame(rows).set_index("label")

    def memory(self) -> pd.DataFrame:
        """One row per policy: what holds the bytes of its fullest GPU."""
        rows = [{"label": row["label"], **_flat(row.get("memory") or {})} for row in self.policies]
        return pd.DataFrame(rows).set_index("label")

    def steps(self) -> pd.DataFrame:
        """One row per policy and step: tokens, step_seconds, bubble_ratio ... (steps.csv)."""
        return pd.read_csv(io.StringIO(self._state[2]))

    def gpus(self) -> pd.DataFrame:
        """One row per policy and GPU: its place and its compute seconds, mean over full steps
        (gpus.csv)."""
        return pd.read_csv(io.StringIO(self._state[3]))

    def plans(self) -> Dict[str, Any]:
        """The plans of all rows, schema equipoise.plans/1 (plan.json)."""
        return json.loads(self._state[4])

    def page(self) -> Dict[str, Any]:
        """What report.html of `study(out=...)` draws, schema equipoise.report/1: where each row's time goes, timelines of
        a few telling steps, document lengths ... Raises ValueError without `out`, and where the folder has another page."""
        if not self.out:
            raise ValueError("result: expected one of study(..., out=FOLDER), whose report.html has this, found one without out")
        page = page_data(self.out, "result", "study")
        if [(row["label"], row["metrics"]) for row in page["summary"]["policies"]] != [(row["label"], row["metrics"]) for row in self.policies]:
            raise ValueError(f"result: {os.path.join(self.out, 'report.html')}: expected this study's page, found another's")
        return page

    def checks(self) -> pd.DataFrame:
        """With `verify=True` one row per check: what, holds (None: it was not checked),
        found."""
        return pd.DataFrame(json.loads(self._state[8]), columns=["what", "holds", "found"])

    def __str__(self) -> str:
        return self.table.rstrip("\n")

    def __repr__(self) -> str:
        rows = ", ".join(f"{row['label']} {row['status']}" for row in self.policies)
        return f"<equipoise.Result: {rows}>"

    def _repr_html_(self) -> str:
        return self.frame()._repr_html_()

    def __reduce__(self):
        return Result, self._state


class VerificationError(Exception):
    """A result that independent code could not reproduce."""

    def __init__(self, text: str, result: Result):
        super().__init__(text, result)
        self.result = result

    def __str__(self) -> str:
        return str(self.args[0])


def _flat(values: Mapping, before: str = "") -> Dict[str, Any]:
    flat: Dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{before}{key}."))
        else:
            flat[before + key] = value
    return flat


def _read(source: Source, directory: Optional[Union[str, os.PathLike]]) -> Tuple[Dict[str, Any], str]:
    """A study's values, and the path that names it in errors and that its own paths are relative to."""
    if isinstance(source, Mapping):
        return dict(source), os.path.join("" if directory in (None, "") else path_of("directory", directory, "a folder"), "study")
    path = path_of("source", source, "a study's path, or a dict of its keys")
    return json.loads(_core.read_json(path)), path


def _mapping(argument: str, value: Any, expected: str) -> Dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        refuse(argument, expected, value)
    return dict(value or {})


OwnRows = Dict[int, Dict[str, Any]]  # the entries of functions by their place


def _with_own(values: Dict[str, Any], policies: Mapping) -> Tuple[Dict[str, Any], OwnRows]:
    """The study with rows for functions, simulated as plans of the caller: f or {"policy": f, "label": ...}
    among its policies, and those of `policies` after them. And the functions' entries."""
    rows = values.get("policies", []) if isinstance(values, dict) else None
    if not isinstance(rows, (list, tuple)):
        return values, {}  # because the simulator says what is wrong
    rows = list(rows)
    for label, f in policies.items():
        if not callable(f.get("policy") if isinstance(f, Mapping) else f):
            refuse(f"policies: {label}", "a function f(lengths, options) or equipoise.policy(function, ...), as built-in policies are in the study (set={\"policies\": [...]})", f)
        rows.append({**f, "label": label} if isinstance(f, Mapping) else {"policy": f, "label": label})
    own: OwnRows = {}
    for place, row in enumerate(rows):
        entry = {"policy": row} if callable(row) else row
        if not isinstance(entry, Mapping) or not callable(entry.get("policy")):
            continue
        f, label, options = own_policy.parts(entry)
        own[place] = own_policy.policy(f, label=label, options=options)
        entry = {key: value for key, value in entry.items() if key not in ("policy", "options")}
        rows[place] = {**entry, "label": label, "name": "plan", "file": _core.PLAN_OF_CALLER}
    return {**values, "policies": rows} if rows else values, own


def open_study(
    source: Source,
    set: Optional[Mapping],
    policies: Optional[Mapping],
    directory: Optional[Union[str, os.PathLike]],
    case: Optional[Mapping] = None,
) -> Tuple["_core.OpenStudy", OwnRows]:
    """A study that is read and checked but has not run, and the functions among its rows."""
    values, path = _read(source, directory)
    overrides = {**_mapping("set", set, "a dict of keys and values, {'parallel.context': 4}"), **(case or {})}
    if "policies" in overrides:
        values = {**values, "policies": overrides.pop("policies")}
    values, own = _with_own(values, _mapping("policies", policies, "functions by label, {label: function}"))
    argument = {key: f"{'grid' if key in (case or {}) else 'set'}: {key}" for key in overrides}
    assignments = [f"{utf8('set', str(key))}={json_text(value, argument[key])}" for key, value in overrides.items()]
    try:
        return _core.OpenStudy(json_text(values, "source"), path, assignments, case_name(case or {})), own
    except ValueError as error:
        raise ValueError(str(error).replace(path, "study") if isinstance(source, Mapping) else str(error)) from None


def warn_of_numbered(opened: "_core.OpenStudy") -> None:
    """Rows without a label of their own get a number after their name: says which, and in what they differ."""
    entries = [{"name": e} if isinstance(e, str) else e for e in json.loads(opened.text).get("policies", [])]
    labels = opened.labels
    for label, entry in zip(labels, entries):
        numbered = re.fullmatch(r"(.*) #\d+", label)
        if numbered is None or entry.get("label") == label or numbered[1] not in labels:
            continue
        first = entries[labels.index(numbered[1])]
        keys = [key for key in {**first, **entry} if key != "label" and first.get(key) != entry.get(key)]
        differ = ", ".join(f"{key} {first.get(key, 'by default')} and {entry.get(key, 'by default')}" for key in keys)
        warnings.warn(
            f'policies: two rows are called "{numbered[1]}", the later one is "{label}" here; they differ in '
            f'{differ or "nothing that the study says"}; "label" names a row',
            stacklevel=3,
        )


def case_name(case: Mapping) -> str:
    """The name of a sweep's case, as the program gives it: key=a key=b."""
    return " ".join(f"{key}={value}" for key, value in case.items())


def study(
    source: Source,
    *,
    set: Optional[Mapping] = None,
    policies: Optional[Mapping] = None,
    fidelity: str = "stage",
    jobs: int = 0,
    ignore_memory: bool = False,
    out: Optional[Union[str, os.PathLike]] = None,
    directory: Optional[Union[str, os.PathLike]] = None,
    max_memory_GB: float = 0,
    verify: bool = False,
    _case: Optional[Dict[str, Any]] = None,
    _carried: bool = False,
) -> Result:
    """Runs a study: a file, or a dict of the same keys.

    `set` overrides keys: {"parallel.context": 4, "policies.2.queues": 3}. `policies` adds rows of one's own,
    by label: functions f(lengths, options) that return a list of steps, each a list of lanes, each a list of
    micro-batches, each a list of (document, begin, end). They are checked by the validator of all plans and
    compared like any other; one that drops or repeats a token, raises, or returns no plan is a row with status
    "refused" and the reason. Such a row is sharded as the baseline is; equipoise.policy(f, shard=..., schedule=...) says otherwise.
    In a dict it is one of the `policies`, alone or as {"policy": f, "label": ..., "shard": ..., "options": {...}}.

    `fidelity`: "stage" or "op" (every kernel and collective of every rank). `jobs`: threads, all cores by
    default. `ignore_memory`: times of rows that do not fit, too. `out`: a folder for summary.json (with the receipt that
    `verify` reads), steps.csv, plan.json and timelines. `directory`: what paths in a dict are relative to. Ctrl-C ends it at once. Raises
    ValueError.

    `verify`: looks at plans, schedules, times, memory and table once more, by code that shares none of the simulator's
    engines, as `equipoise study --verify` does: `checks()` says what holds, and a receipt keeps it. Where something does
    not, that is a fault of this program: VerificationError, which has the `result`.
    """
    max_memory_GB = number("max_memory_GB", max_memory_GB)
    opened, own = open_study(source, set, policies, directory, _case)
    if not _case:
        warn_of_numbered(opened)
    if _carried:
        opened.carry_slowdowns()
    if own:
        _plan_own_rows(opened, own, max_memory_GB, in_sweep=bool(_case))
    folder = path_of("out", out) if out is not None else ""
    texts = opened.run(
        text_of("fidelity", fidelity, "stage or op"), integer("jobs", jobs, 0), flag("ignore_memory", ignore_memory), folder, max_memory_GB,
        flag("verify", verify),
    )
    base = (directory or "") if isinstance(source, Mapping) else os.path.dirname(source)
    result = Result(
        texts.summary, texts.table, texts.steps, texts.gpus, texts.plans, texts.notes, _case, opened.text, texts.checks, os.path.abspath(base),
        os.path.abspath(folder) if folder else "",
    )
    result.functions = {opened.labels[place]: entry for place, entry in own.items()}
    wrong = [f"{check['what']}: {check['found']}" for check in json.loads(texts.checks) if check["holds"] is False]
    if wrong:
        raise VerificationError("; ".join(wrong), result)
    return result


def _plan_own_rows(opened: "_core.OpenStudy", own: OwnRows, max_memory_GB: float, in_sweep: bool) -> None:
    try:
        documents = opened.documents(max_memory_GB)
    except ValueError:
        if in_sweep:
            return  # because run() refuses the rows of this case and says why
        raise
    for place, entry in own.items():
        try:
            opened.set_plan(opened.labels[place], own_plan(opened, place, entry, documents))
        except Exception as error:
            opened.refuse(opened.labels[place], own_policy.failure_text(error, entry["policy"]))


def own_plan(opened: "_core.OpenStudy", place: int, entry: Mapping, documents: Any) -> str:
    """The plan (JSON) that the function in this place makes of the study's documents."""
    function, label, options = own_policy.parts(entry)
    return own_policy.plan_text(function, label, documents, opened.shape(opened.labels[place]), options)


def has_functions(source: Source, set: Optional[Mapping], policies: Optional[Mapping]) -> bool:
    """Whether functions are among a study's rows."""
    rows = [row for keys in (source, set) if isinstance(keys, Mapping) and isinstance(keys.get("policies"), (list, tuple)) for row in keys["policies"]]
    return bool(policies) or any(callable(row.get("policy") if isinstance(row, Mapping) else row) for row in rows)

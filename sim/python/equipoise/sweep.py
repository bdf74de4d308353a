"""Sweeps: a study over the product of keys, on any pool of workers."""

import itertools
import os
from collections.abc import Mapping
from typing import Any, Dict, Iterator, List, Sequence

import pandas as pd

from . import _core
from ._values import path_of, refuse, unknown
from .study import Result, Source, case_name, open_study, study, warn_of_numbered


class Sweep:
    """The results of all cases, in the order of the grid's product, the last key varying fastest."""

    def __init__(self, results: Sequence[Result]):
        self.results = list(results)

    def frame(self) -> pd.DataFrame:
        """One row per case and policy: a column per key of the grid, then those of Result.frame()."""
        frames = []
        for result in self.results:
            frame = result.frame().reset_index()
            for place, (key, value) in enumerate(result.case.items()):
                frame.insert(place, key, [value] * len(frame))
            frames.append(frame)
        return pd.concat(frames, ignore_index=True).infer_objects()  # because a case in which nothing ran has
                                                                     # no numbers

    @property
    def notes(self) -> List[str]:
        """The notes of all cases, each once, with the number of its cases or the name of its only case."""
        cases: Dict[str, List[str]] = {}
        for result in self.results:
            for note in dict.fromkeys(result.notes):
                cases.setdefault(note, []).append(case_name(result.case))
        return [f"{note}{self._said_by(of)}" for note, of in cases.items()]

    def _said_by(self, cases: List[str]) -> str:
        if len(self.results) == 1:
            return ""
        if len(cases) == len(self.results):
            return f" (all {len(cases)} cases)"
        return f" ({len(cases)} of {len(self.results)} cases{': ' + cases[0] if len(cases) == 1 else ''})"

    def __str__(self) -> str:
        frame = self.frame()
        columns = [*self.results[0].case, "label", "status", "tokens_per_second_per_gpu", "step_seconds", "speedup"]
        notes = "".join(f"\nnote: {note}" for note in self.notes)
        return f"{frame[columns].to_string(index=False, max_rows=60)}\n(simulated){notes}"

    def __repr__(self) -> str:
        return f"<equipoise.Sweep of {len(self)} cases over {', '.join(self.results[0].case) or 'no key'}>"

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, place: int) -> Result:
        return self.results[place]


def _run(source: Any, case: Dict[str, Any], options: Dict[str, Any], carried: bool) -> Result:
    """A case, in whichever process it runs; its files in a folder named as the program names it. `carried`:
    whether slowdowns are carried to its profile, since another case's are."""
    if options.get("out"):
        folder = case_name(case).replace("/", "_").replace(" ", "_")
        options = {**options, "out": os.path.join(options["out"], folder)}
    return study(source, _case=case, _carried=carried, **options)


def sweep(source: Source, grid: Mapping, executor: Any = None, **options: Any) -> Sweep:
    """Runs a study for every combination of `grid`: {"batch.context_window": ["64K", "128K"],
    "parallel.context": [1, 2]}.

    `executor` is anything with `submit` as in concurrent.futures: a ProcessPoolExecutor,
    `dask.distributed.Client(...)` or its `get_executor()`, `mpi4py.futures.MPIPoolExecutor`, a Slurm or Ray
    pool. Each case is then a task of one thread (`jobs`); without one, cases run one after the other on all
    cores. Files that the study names must be readable where the workers are. `options` are those of `study`;
    below `out` every case has a folder of its own.

    All cases are read before any runs: a key or value that is not allowed is a ValueError that names its
    case. Values that are allowed and do not go together make the rows of their case "refused"; the others
    run.
    """
    if not isinstance(grid, Mapping):
        refuse("grid", "a dict of keys and lists of values, {'parallel.context': [1, 2]}", grid)
    for key, values in grid.items():
        if isinstance(values, (str, bytes, Mapping)) or not hasattr(values, "__len__") or len(values) == 0:
            refuse(f"grid: {key}", "a list of at least one value", values)
    known = [name for name in study.__kwdefaults__ or {} if not name.startswith("_")]
    for name in options:
        if name not in known:
            raise ValueError(f"options: {unknown('option', name, known)}")
    if executor is not None and not hasattr(executor, "submit"):
        refuse("executor", "something with submit, as concurrent.futures has", executor)
    cases: List[Dict[str, Any]] = [dict(zip(grid, values)) for values in itertools.product(*grid.values())]
    options = {**options, "set": options.get("set") or {}}
    if not isinstance(source, Mapping):
        source = os.path.abspath(path_of("source", source, "a study's path, or a dict of its keys"))
    elif options.get("directory") is None:
        options["directory"] = os.getcwd()
    if options.get("out"):
        options["out"] = os.path.abspath(path_of("out", options["out"]))
    opened = [
        open_study(source, options["set"], options.get("policies"), options.get("directory"), case)[0] for case in cases
    ]
    warn_of_numbered(opened[0])
    carried = _core.OpenStudy.one_rule(opened)
    if executor is None:
        return Sweep([_run(source, case, options, note) for case, note in zip(cases, carried)])
    options.setdefault("jobs", 1)
    futures = [executor.submit(_run, source, case, options, note) for case, note in zip(cases, carried)]
    try:
        return Sweep([future.result() for future in futures])
    except BaseException:
        for future in futures:
            future.cancel()
        raise

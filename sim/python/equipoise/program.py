"""The program `equipoise`, which comes with the module: for commands that the module has no function for."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Union

import numpy as np
import pandas as pd

from . import _core, own_policy
from ._values import flag, folder_of, integer, json_text, number, page_data, path_of, refuse, text_of
from .study import Source, _flat, has_functions, open_study, own_plan
from .tuned_own import rank_functions, without_functions

PATH = Path(__file__).with_name("equipoise")
FAILED = 1  # a failed check is an answer, not an error
StrPath = Union[str, os.PathLike]
DEGREES = ("tensor", "context", "pipeline", "data", "expert")  # keys of `parallel` that define a layout


def main() -> None:
    """The command `equipoise` of an installed module."""
    os.execv(PATH, [str(PATH), *sys.argv[1:]])


def run(*arguments: Any) -> str:
    """What the program prints; a check that fails is an answer. Raises ValueError with the program's one line."""
    done = subprocess.run([str(PATH), *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode in (0, FAILED):
        return done.stdout
    lines = done.stderr.strip().splitlines() or [f"the program ended with status {done.returncode}"]
    raise ValueError(_core.in_python_words(lines[-1].removeprefix("error: ")))


class _Shown(str):
    """A text that a prompt shows unchanged."""

    __repr__ = str.__str__


def explain(word: str = "") -> str:
    """What a policy, a key of a study, a column or an option is: `equipoise explain`. Of a policy also each of its options
    with the values it takes, its default and what it does; of nothing, what there is to ask for."""
    words = [text_of("word", word, "a name")] if word else []
    return _Shown(run("explain", *words).rstrip("\n"))


@contextlib.contextmanager
def _file_of(source: Source, directory: Optional[StrPath] = None, argument: str = "source") -> Iterator[str]:
    """A study's path: its own, or that of a temporary file with its values next to the files that they name."""
    if not isinstance(source, Mapping):
        yield path_of(argument, source, "a path, or a dict of keys")
        return
    text, folder = json_text(source, argument), folder_of("directory", directory)
    try:
        opened = tempfile.NamedTemporaryFile("w", dir=folder, prefix=".study-", suffix=".json")
    except OSError as error:
        raise ValueError(f"directory: {folder}: cannot be written: {error.strerror}") from None
    with opened as file:
        file.write(text)
        file.flush()
        try:
            yield file.name
        except ValueError as error:  # for a dict, since the caller knows no path of it
            raise ValueError(str(error).replace(file.name, "study" if argument == "source" else argument)) from None


@contextlib.contextmanager
def _study_of(source: Source, set: Optional[Mapping], policies: Optional[Mapping], directory: Optional[StrPath]) -> Iterator[List[str]]:
    """A study as the program's first arguments: its path, and what is set. Rows of functions are rows of plans, in files."""
    if not has_functions(source, set, policies):
        with _file_of(source, directory) as path:
            yield [path, *_options(set=set)]
        return
    opened, own = open_study(source, set, policies, directory)
    values, documents = json.loads(opened.text), opened.documents()
    with tempfile.TemporaryDirectory() as folder:
        for place, entry in own.items():
            label = opened.labels[place]
            try:
                text = own_plan(opened, place, entry, documents)
            except Exception as error:
                raise ValueError(f"policies: {label}: {own_policy.failure_text(error, entry['policy'])}") from error
            file = Path(folder) / f"{place}.json"
            file.write_text(text, encoding="utf-8")
            values["policies"][place] = {**json.loads(opened.sharding(label)), **values["policies"][place], "file": str(file)}
        with _file_of(values, directory if isinstance(source, Mapping) else os.path.dirname(source)) as path:
            yield [path]


_OURS = ("format", "quiet")  # options that the module itself sets


def _options(**given: Any) -> List[str]:
    """The given options as --name value; a list is repeated for each item, a dict becomes key=value."""
    words: List[str] = []
    for name, value in given.items():
        option = "--" + name.replace("_", "-")
        if name == "set" and not isinstance(value, (Mapping, type(None))):
            refuse("set", "a dict of keys and values, {'parallel.context': 4}", value)
        if name in _OURS:
            refuse(name, "none, as the module reads what the program prints", value)
        if value is None or value is False:
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if not isinstance(one, (str, os.PathLike, int, float, np.number, Mapping)):
                refuse(name, "text, a number, or a list of these", value)
        if value is True:
            words.append(option)
        elif isinstance(value, Mapping):
            words += [word for key, v in value.items() for word in (option, f"{key}={json_text(v, f'{name}: {key}')}")]
        elif isinstance(value, (list, tuple)):
            words += [word for item in value for word in (option, str(item))]
        else:
            words += [option, str(value)]
    return words


def init(
    model: StrPath,
    gpus: int,
    *,
    gpu: Optional[str] = None,
    trace: Optional[StrPath] = None,
    window: Union[int, str, None] = None,
    framework: Optional[str] = None,
    policies: Optional[Sequence[str]] = None,
    jobs: Optional[int] = None,
) -> Dict[str, Any]:
    """A study of a job, for `study` and `tune`: `equipoise init`. Its layout is the fastest found that fits.

    `model`: built in, or the path of a config.json. `gpu`: a profile, or how its name begins ("h200"). `trace`: a file of lengths, a shipped
    trace or a distribution. Raises ValueError, also where the job fits on no layout.
    """
    integer("gpus", gpus, 1)
    if policies is not None and (isinstance(policies, str) or not all(isinstance(name, str) for name in policies)):
        refuse("policies", "a list of names", policies)
    names = ",".join(policies) if policies else None
    return json.loads(
        run("init", *_options(model=model, gpus=gpus, gpu=gpu, trace=trace, window=window, framework=framework, policies=names, jobs=jobs))
    )


class Tuned:
    """What a search found: schema equipoise.tune/1. Times are simulated."""

    def __init__(self, text: str, best: Optional[Dict[str, Any]], page: Dict[str, Any]):
        self.found: Dict[str, Any] = json.loads(text)
        self.page = page  # what the search's report.html draws, schema equipoise.report/1
        self.best = best  # a study of its rows on that layout, with the ranking's first row last; None if
                          # none runs

    @property
    def ranking(self) -> List[Dict[str, Any]]:
        return self.found["ranking"]

    def frame(self) -> pd.DataFrame:
        """One row per place of the ranking: label, layout, every metric by its name."""
        rows = [{"rank": row["rank"], "label": row["label"], **row["layout"], **_flat(row["metrics"])} for row in self.ranking]
        return pd.DataFrame(rows).set_index("rank") if rows else pd.DataFrame()

    def tried(self) -> pd.DataFrame:
        """One row per candidate, in the order of the search: degrees and the other keys of its layout, label, policy, outcome
        (ok, slower, dropped after few steps, oom, unplaceable, refused, late; states: a layout whose states alone do not fit, with no label), and of
        those that ran to their end tokens_per_second_per_gpu, token_delay_mean and peak_memory_bytes; else the reason.
        Of large searches it has every candidate that ran, and 15,000 and 10,000 layouts of the others."""
        search, gpus = self.page["search"], self.page["tune"]["study"]["gpus"]
        outcomes, reasons = search["outcomes"], [*search["reasons"], None]
        layouts = [
            {**dict(zip(search["keys"], values)), **{f"parallel.{key}": degree for key, degree in zip(DEGREES, degrees)}}
            for *degrees, values in search["layouts"]
        ]
        rows = [
            {
                **layouts[layout],
                "label": search["rows"][row][0],
                "policy": search["rows"][row][1],
                "outcome": outcomes[outcome],
                "tokens_per_second_per_gpu": 1 / seconds / gpus if outcomes[outcome] == "ok" else None,
                "token_delay_mean": delay,
                "peak_memory_bytes": peak if outcomes[outcome] == "ok" else None,
                "reason": reasons[-1 if reason is None else reason],
            }
            for _, layout, row, outcome, seconds, delay, peak, reason in search["trials"]
        ]
        rows += [{**layouts[layout], "outcome": "states", "reason": reasons[-1 if reason is None else reason]} for layout, reason in search["too_large"]]
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        return f"{len(self.ranking)} rows, the fastest first; simulated\n{self.frame()}"

    __repr__ = __str__


def tune(
    source: Source,
    space: Optional[Mapping] = None,
    *,
    set: Optional[Mapping] = None,
    policies: Optional[Mapping] = None,
    budget: Optional[int] = None,
    minutes: Optional[float] = None,
    resume: bool = False,
    framework: Optional[str] = None,
    max_delay: Union[float, Sequence[float], None] = None,
    what_if: bool = False,
    gpus: Optional[int] = None,
    jobs: Optional[int] = None,
    out: Optional[StrPath] = None,
    directory: Optional[StrPath] = None,
) -> Tuned:
    """The fastest policy, options and layout for a study's documents, model and cluster: `equipoise tune`.

    `space`: keys of a study with the values to try, and `policies`; a default one without it. `max_delay`: the most
    iterations that a token may wait, on the mean and at the longest. `minutes`: the time of the search. `what_if`: run the
    winner and its rivals under other conditions, too, up to 36 candidates in full. `framework`: only
    layouts that it has flags for ("megatron": --for). `out`: a folder for tune.json, best.json and the journal that a
    stopped search goes on from with `resume`.

    `policies`: functions by label, as `study` has them. Layouts are searched with the other policies; on those of the ranking
    each function runs in full and is ranked with them, without an interval. Files in `out` are of the search alone.
    """
    searched: Dict[str, Any] = {}
    functions: List[Dict[str, Any]] = []
    if has_functions(source, set, policies):
        searched, functions, directory = without_functions(source, set, policies, directory)
        source, set = searched, None
    with contextlib.ExitStack() as files:
        study = files.enter_context(_file_of(source, directory))
        folder = path_of("out", out) if out is not None else files.enter_context(tempfile.TemporaryDirectory()) + "/tune"
        for name, value, least in (("budget", budget, 1), ("gpus", gpus, 1), ("jobs", jobs, 0)):
            if value is not None:
                integer(name, value, least)
        bounds = max_delay if isinstance(max_delay, (list, tuple)) else [] if max_delay is None else [max_delay]
        for bound in bounds:
            number("max_delay", bound)
        if minutes is not None:
            number("minutes", minutes)
        if framework is not None:
            text_of("framework", framework, "a name")
        words = _options(set=set, budget=budget, minutes=minutes, resume=flag("resume", resume), what_if=flag("what_if", what_if), max_delay=max_delay, gpus=gpus, jobs=jobs)
        words += _options(**{"for": framework})
        if space is not None:
            words += ["--space", files.enter_context(_file_of(space, tempfile.gettempdir(), "space"))]
        try:
            text = run("tune", study, "--out", folder, "--format", "json", "--quiet", *words)
        except ValueError as error:  # `for` is a keyword of Python
            raise ValueError(re.sub("^for: ", "framework: ", str(error))) from None
        best = Path(folder) / "best.json"
        found = json.loads(best.read_text(encoding="utf-8")) if best.exists() else None
        tuned = Tuned(text, found, page_data(folder, "out", "tune"))
        if functions and found is not None:
            tuned.found["ranking"], tuned.page["names"], tuned.best = rank_functions(
                tuned.found, tuned.page["names"], found, searched, functions, [float(bound) for bound in bounds], directory)
        return tuned


class Checked:
    """Whether speed-ups and step times are as expected. True where they are."""

    def __init__(self, text: str):
        self.found: Dict[str, Any] = json.loads(text)

    def __bool__(self) -> bool:
        return bool(self.found["passed"])

    @property
    def rows(self) -> List[Dict[str, Any]]:
        return self.found["policies"]

    def frame(self) -> pd.DataFrame:
        return pd.DataFrame(self.rows)

    def __str__(self) -> str:
        return f"{'as expected' if self else 'not as expected'}\n{self.frame()}"

    __repr__ = __str__


def check(
    source: Source,
    expect: StrPath,
    *,
    set: Optional[Mapping] = None,
    policies: Optional[Mapping] = None,
    metric: Optional[Sequence[str]] = None,
    tolerance: Optional[Sequence[Union[str, float]]] = None,
    only_worse: bool = False,
    update: bool = False,
    directory: Optional[StrPath] = None,
) -> Checked:
    """Compares a study with what it is expected to show, a file that `update` makes: `equipoise check`. With `only_worse`
    a metric that moved for the better is said (`gain`) and does not fail. `policies`: functions by label, as `study` has them."""
    with _study_of(source, set, policies, directory) as study:
        words = _options(only_worse=flag("only_worse", only_worse), update=flag("update", update))
        for name, value in (("metric", metric), ("tolerance", tolerance)):
            if isinstance(value, str) or not hasattr(value or [], "__iter__"):
                refuse(name, "a list", value)
        if metric is not None:
            words += ["--metric", ",".join(text_of("metric", one, "a list of names") for one in metric)]
        if tolerance is not None:
            words += ["--tolerance", ",".join(map(str, tolerance))]
        return Checked(run("check", *study, "--expect", path_of("expect", expect), "--format", "json", "--quiet", *words))


def fit(
    samples: Union[StrPath, Sequence[StrPath]],
    out: StrPath,
    *,
    recipe: Optional[StrPath] = None,
    base: Optional[str] = None,
    **options: Any,
) -> Dict[str, Any]:
    """Measurements in, a profile out: `equipoise fit`. Samples are what `equipoise profile` wrote, tables, nccl-tests'
    output or traces of torch.profiler; a `recipe` says which make which table, a `base` which profile they calibrate.
    Returns the profile, which is also in `out`."""
    files = list(samples) if isinstance(samples, (list, tuple)) else [samples]
    names = [path_of("samples", file) for file in files]
    if not names:
        refuse("samples", "at least one file", samples)
    run("fit", "--samples", *names, "--out", path_of("out", out), *_options(recipe=recipe, base=base, **options))
    return json.loads(Path(out).read_text(encoding="utf-8"))


def predict(profile: StrPath, rows: StrPath, **options: Any) -> pd.DataFrame:
    """Attention, GEMM or collective rows in the columns of the public tables, with what a profile says of them
    (`predicted_ms`) and, where a time is given, the error: `equipoise predict`."""
    words = _options(profile=path_of("profile", profile, "a profile's name or path"), rows=path_of("rows", rows), **options)
    return pd.read_csv(io.StringIO(run("predict", "--format", "csv", *words)))


def validate(
    source: Source,
    *,
    set: Optional[Mapping] = None,
    policies: Optional[Mapping] = None,
    directory: Optional[StrPath] = None,
    **options: Any,
) -> Dict[str, Any]:
    """Compares a study's steps, run for real on ranks of this machine or taken from a log (`measured=...`), with their
    simulation, op by op: `equipoise validate`, whose options these are. `policies`: functions by label, as `study` has them.
    Returns its JSON."""
    with _study_of(source, set, policies, directory) as study:
        return json.loads(run("validate", *study, "--format", "json", "--quiet", *_options(**options)))


def verify(summary: StrPath) -> pd.DataFrame:
    """Compares a saved summary.json (of `study(out=...)` or `equipoise study --out`) with its receipt, its inputs as they
    are now, and a new run: `equipoise verify`. Rows of functions run again with the plans next to it, in plan.json. It
    returns a line for each check; `holds` says whether it is as it was, null where nothing was to be run again."""
    return pd.DataFrame(json.loads(run("verify", path_of("summary", summary), "--format", "json", "--quiet")))

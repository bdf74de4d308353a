"""A job that runs becomes a study: a framework's arguments, its log's header or its configuration.

    job = equipoise.import_job("train.sh", gpus=64)   # Megatron-LM's arguments, or the head of its log
    job = equipoise.import_job("llama3_8b.toml")      # torchtitan
    job.study                                         # a dict, for `equipoise.study`
    job.unknown                                       # every setting that was not understood
    job.assumed                                       # what the file does not say and the study takes for granted

Each setting is a row of a table: what it becomes in a study, or why it changes no time (where data lie, what is logged,
how the optimizer is tuned). A setting without a row is unknown, and named: it may change the job. Nothing here needs the
compiled module, so that the program `equipoise` runs it, too.
"""

import os
from typing import Callable, Dict, List, Optional, Union

from .job import MOST_GPUS, Imported, Job, Options, Table, refuse
from .megatron import megatron
from .texts import settings_of
from .torchtitan import torchtitan
from .trainer import trainer
from .verl import verl

Maker = Callable[[Job], Imported]

# Names of --as with their tables and makers, in the order in which they are tried.
FORMATS: Dict[str, Dict[str, Maker]] = {
    "bridge": {"bridge": megatron},
    "nemo": {"nemo": megatron, "automodel": trainer},
    "verl": {"verl": verl, "verl_sft": trainer},
    "torchtitan": {"torchtitan": torchtitan},
    "axolotl": {"axolotl": trainer},
    "llamafactory": {"llamafactory": trainer},
    "deepspeed": {"deepspeed": trainer},
    "megatron": {"megatron": megatron},
    "trl": {"trl": trainer},
}


def import_job(path: Union[str, os.PathLike], *, framework: Optional[str] = None, gpus: Optional[int] = None,
               gpu: Optional[str] = None, model: Optional[str] = None) -> Imported:
    """Reads a job's file: a script with its arguments, a log whose head lists them, YAML, TOML or JSON. `framework` is
    found by the contents by default. `gpus`: how many the job has, `gpu`: the profile of what it runs on, `model`: a
    built-in name or a config.json, each where the file does not say it. Raises ValueError for what is no job."""
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        refuse("path", "a path", path)
    name = os.fspath(path)
    if framework is not None and framework not in FORMATS:
        refuse("framework", " or ".join(f'"{one}"' for one in FORMATS), framework)
    if gpus is not None and (isinstance(gpus, bool) or not hasattr(gpus, "__index__") or not 1 <= gpus <= MOST_GPUS):
        refuse("gpus", f"an integer from 1 to {MOST_GPUS}", gpus)
    try:
        with open(name, encoding="utf-8", errors="replace") as file:
            settings = settings_of(name, file.read())
    except OSError as error:
        raise ValueError(f"{name}: {error.strerror}") from None
    options = Options(None if gpus is None else int(gpus), gpu, model)
    tables = [(one, maker) for known, formats in FORMATS.items() if framework in (None, known) for one, maker in formats.items()]
    for one, maker in tables:
        table = Table(one)
        if table.recognises(settings):
            return _made(name, Job(name, settings, table, options), maker)
    # A file whose framework the user names needs no setting to identify it.
    if framework is not None and settings:
        one, maker = tables[0]
        return _made(name, Job(name, settings, Table(one), options), maker)
    raise ValueError(f"{name}: expected a job of {framework or ', '.join(FORMATS)}, found none of their settings")


def _made(path: str, job: Job, maker: Maker) -> Imported:
    try:
        return maker(job)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


__all__: List[str] = ["FORMATS", "Imported", "import_job"]

"""Runs whose steps were timed and whose documents are known, and a study of each.

A table of runs (schema equipoise.runs/1) says what a user knows of each: shape, layout, what the harness did, and the
steps. Steps are lines of JSON: {"step": 12, "seconds": 1.83, "lanes": [[[8192, 512], [4096]], [[16384]]]}, for every
data-parallel lane its micro-batches, for each its documents' lengths in order.
"""

import csv
import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

SCHEMA = "equipoise.runs/1"


class RunsError(ValueError):
    """What is wrong with a table of runs: file and key, what was found, what is allowed."""


@dataclass
class Step:
    lanes: list  # [lane][micro-batch][document]: tokens
    seconds: float = 0.0  # measured
    sample: str = ""  # a name of its documents, which links runs of policies that pack them differently


@dataclass
class Run:
    name: str
    study: dict  # keys of a study: model, cluster, parallel, framework, precision
    steps: list = field(default_factory=list)
    policy: str = ""  # as the report calls it
    shard: str = "per-sequence"
    group: str = ""  # for runs among whose layouts a user chooses
    window: int = 0  # tokens; 0: unknown


def plan_of(run):
    """The plan that a run executed, and the trace of its documents.

    Documents come in the order in which they ran. A study's global batches have equally many of them, so that those of
    later steps may arrive early and are in `carried`; what fills the last batch runs in a step behind the measured
    ones, which is marked as the end of the data.
    """
    context = run.study["parallel"].get("context", 1)
    lengths, steps, after = [], [], []
    for number, step in enumerate(run.steps):
        lanes = []
        for lane, micro_batches in enumerate(step.lanes):
            packed = []
            for documents in micro_batches:
                first = len(lengths)
                lengths += documents
                packed.append({"slices": [[first + i, 0, n] for i, n in enumerate(documents)]})
            lanes.append({"lane": lane, "context": context, "micro_batches": packed})
        steps.append({"step": number, "lanes": lanes})
        after.append(len(lengths))
    lanes = len(run.steps[0].lanes)
    per_step = max(-(-done // (number + 1)) for number, done in enumerate(after))
    per_step = max(per_step, -(-(after[-1] + lanes) // (len(steps) + 1)))
    ran = len(lengths)
    lengths += [32 * context] * (per_step * (len(steps) + 1) - ran)
    for number, step in enumerate(steps):
        arrived = range(after[number], per_step * (number + 1))
        step["carried"] = [[d, 0, lengths[d]] for d in arrived]
    fill = [
        [{"slices": [[d, 0, lengths[d]] for d in range(ran + lane, len(lengths), lanes)]}]
        for lane in range(lanes)
    ]
    steps.append(
        {
            "step": len(steps),
            "tail": True,
            "carried": [],
            "lanes": [{"lane": i, "context": context, "micro_batches": m} for i, m in enumerate(fill)],
        }
    )
    return {"schema": "equipoise.plan/1", "policy": "measured", "steps": steps}, lengths, per_step


def write_study(run, folder):
    """study.json, plan.json and lengths.txt of a run, in a folder of its own; the study's path."""
    folder.mkdir(parents=True, exist_ok=True)
    plan, lengths, per_step = plan_of(run)
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "lengths.txt").write_text("".join(f"{n}\n" for n in lengths))
    study = dict(
        run.study,
        name=run.name,
        trace={"file": "lengths.txt"},
        batch={"documents_per_step": per_step, "steps": len(plan["steps"])},
        policies=[{"name": "plan", "file": "plan.json", "label": "run", "shard": run.shard}],
    )
    (folder / "study.json").write_text(json.dumps(study, indent=1))
    return folder / "study.json"


def simulate(program, study, name, options=()):
    """Runs a study file by `equipoise study`: the folder of its results, next to it, and what was printed."""
    out = study.with_name("out")
    command = [program, "study", str(study), "--ignore-memory", "--quiet", "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunsError(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    return out, done.stdout


def step_seconds(out):
    """Seconds of each simulated step in a folder of results."""
    with open(out / "steps.csv", encoding="utf-8", newline="") as file:
        return [float(row["step_seconds"]) for row in csv.DictReader(file)]


def predict(program, run, folder, options=()):
    """Seconds of each step of the run, in order. Measured times are not read."""
    out, said = simulate(program, write_study(run, folder), run.name, options)
    seconds = step_seconds(out)
    if len(seconds) < len(run.steps):
        refusal = [line for line in said.splitlines() if " is refused: " in line]
        raise RunsError(f"{run.name}: {refusal[0] if refusal else 'no step was simulated'}")
    return seconds[: len(run.steps)]


def version_of(program):
    try:
        return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise RunsError(f"--program {program}: expected equipoise: {error}") from error


def read_runs(path, blind=False):
    """Runs of a table (equipoise.runs/1), with paths relative to it. `blind` means without their seconds, which are
    then not read. Raises RunsError."""
    path = Path(path)
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunsError(f"{path}: cannot be read: {error}") from error
    if not isinstance(table, dict) or table.get("schema") != SCHEMA:
        raise RunsError(f"{path}: schema: expected {SCHEMA}")
    runs = []
    for i, entry in enumerate(table.get("runs") or []):
        where = f"{path}: runs[{i}]"
        if not isinstance(entry, dict):
            raise RunsError(f"{where}: expected an object")
        known = {"name", "group", "policy", "shard", "window", "study", "steps"}
        unknown = sorted(set(entry) - known)
        if unknown:
            raise RunsError(f"{where}: unknown key {unknown[0]}, allowed: {', '.join(sorted(known))}")
        if not isinstance(entry.get("study"), dict) or "parallel" not in entry["study"]:
            raise RunsError(f"{where}.study: expected a study's keys, parallel among them")
        if not isinstance(entry.get("steps"), str):
            raise RunsError(f"{where}.steps: expected the path of a file of steps")
        steps = read_steps(path.parent / entry["steps"], entry["study"]["parallel"].get("data", 1), blind)
        options = {key: entry[key] for key in ("group", "policy", "shard", "window") if key in entry}
        runs.append(Run(name=entry.get("name", f"run {i}"), study=entry["study"], steps=steps, **options))
    if not runs:
        raise RunsError(f"{path}: runs: expected at least one")
    return runs


def read_steps(path, lanes, blind=False):
    """Steps of a file of JSON lines. Raises RunsError with the line."""
    steps = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise RunsError(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            step = Step(lanes=entry["lanes"], seconds=0.0 if blind else float(entry["seconds"]))
            sound = (blind or step.seconds > 0) and all(n > 0 for lane in step.lanes for m in lane for n in m)
        except (ValueError, KeyError, TypeError):
            sound = False
        if not sound:
            raise RunsError(
                f'{path}: line {number}: expected {{"seconds": s > 0, "lanes": [lane][micro-batch][tokens of a document > 0]}}'
            )
        if len(step.lanes) != lanes:
            raise RunsError(
                f"{path}: line {number}: lanes: expected {lanes} as parallel.data says, found {len(step.lanes)}"
            )
        steps.append(step)
    if not steps:
        raise RunsError(f"{path}: expected at least one step, found none")
    return steps

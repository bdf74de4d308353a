"""Predicted seconds of every step of a run, by `equipoise study`. Measured times are not looked at here."""

import csv
import subprocess

from .runs import RunsError, write_study


def predict(program, run, folder, options=()):
    """Seconds of each step of the run, in order."""
    study, out = write_study(run, folder), folder / "out"
    command = [program, "study", str(study), "--ignore-memory", "--quiet", "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunsError(f"{run.name}: {done.stderr.strip().splitlines()[-1]}")
    with open(out / "steps.csv", encoding="utf-8", newline="") as file:
        seconds = [float(row["step_seconds"]) for row in csv.DictReader(file)]
    if len(seconds) < len(run.steps):
        refusal = [line for line in done.stdout.splitlines() if " is refused: " in line]
        raise RunsError(f"{run.name}: {refusal[0] if refusal else 'no step was simulated'}")
    return seconds[: len(run.steps)]


def version_of(program):
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()

#!/usr/bin/env python3
"""Whether builds by different compilers and with different options say the same: compare_builds.py PROGRAM PROGRAM...

Every shipped study at few steps, written by each program: plan.json, steps.csv and summary.json are equal to the byte but for
what is measured on the machine. Prints the first key or line in which a file differs from the first program's; 1: one does."""
import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
STUDIES = ROOT / "traces/studies"
SLOW = {"405b-131k-gpus", "wlb-8k-gpus", "llama3-405b-16k-gpus", "deepseek-v3"}  # what they run, smaller studies do, too
MEASURED = {"measured", "pack_ms", "program", "compiler"}


def without_measured(node):
    if isinstance(node, dict):
        return {key: without_measured(value) for key, value in node.items() if key not in MEASURED}
    return [without_measured(value) for value in node] if isinstance(node, list) else node


def first_difference(one, other, path=""):
    """Path and both values of the first difference of two JSON values; None where there is none."""
    if isinstance(one, dict) and isinstance(other, dict):
        if list(one) != list(other):
            return path, list(one), list(other)
        pairs = [(f"{path}.{key}", one[key], other[key]) for key in one]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(one, other))]
    else:
        return None if one == other and type(one) is type(other) else (path, one, other)
    return next((found for at, a, b in pairs if (found := first_difference(a, b, at))), None)


def written(program, study, options, folder):
    """What the study gives, by file: JSON without what is measured, CSV by lines; and the refusal of a study that does not run."""
    done = subprocess.run([*program, "study", study, "--out", folder, "--quiet", *options], text=True, capture_output=True)
    files = {"exit status": done.returncode, "stderr": done.stderr}
    for file in sorted(pathlib.Path(folder).glob("*.json")):
        files[file.name] = without_measured(json.loads(file.read_text()))
    for file in sorted(pathlib.Path(folder).glob("*.csv")):
        header, *rows = file.read_text().splitlines()
        kept = [i for i, name in enumerate(header.split(",")) if name not in MEASURED]
        files[file.name] = [[row.split(",")[i] for i in kept] for row in (header, *rows)]
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="+", type=pathlib.Path)
    parser.add_argument("--studies", nargs="*", help="names of shipped studies; all but the largest by default")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--emulator", default="", help="command that runs the last program, in one thread: emulators may not start more")
    options = parser.parse_args()
    names = options.studies or sorted(file.stem for file in STUDIES.glob("*.json") if file.stem not in SLOW)
    differences = 0
    for name in names:
        settings = ["--set", f"batch.steps={options.steps}"]
        results = []
        for place, program in enumerate(options.programs, 1):
            emulator = shlex.split(options.emulator) if place == len(options.programs) else []
            own = ["--jobs", "1"] if emulator else []
            with tempfile.TemporaryDirectory() as folder:
                result = written([*emulator, program.resolve()], STUDIES / f"{name}.json", [*settings, *own], folder)
                results.append(json.loads(json.dumps(result).replace(folder, "OUT")))  # where a result names it
        for program, result in zip(options.programs[1:], results[1:]):
            found = first_difference(results[0], result, name)
            if found:
                differences += 1
                path, one, other = found
                print(f"{program}: {path}: {str(other)[:200]} instead of {str(one)[:200]}", flush=True)
    print(f"{len(names)} studies by {len(options.programs)} programs: {differences} differ")
    return 1 if differences else 0


sys.exit(main())

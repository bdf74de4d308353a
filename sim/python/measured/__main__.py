"""Measured steps with known document lengths against the simulator's.

  python3 -m measured RUNS.json                 a table of runs (equipoise.runs/1)
  python3 -m measured --distca FOLDER           the steps that DistCA's authors timed (steps.csv, documents.csv.gz)

Prints errors by window, sharding and CP degree, how often the best layout is right and what a wrong choice costs.
Predicted seconds go to a file (--predictions), with the program's version, before a measured time is read.
"""

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .distca import read_distca
from .plot import svg
from .report import Predicted, text
from .runs import RunsError, predict, read_runs, version_of

ROOT = Path(__file__).resolve().parents[3]


def predict_all(program, runs, options, jobs=2):
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(jobs) as pool:
        folders = [Path(scratch) / str(i) for i in range(len(runs))]
        return list(pool.map(lambda run, folder: predict(program, run, folder, options), runs, folders))


def read_all(args, blind):
    return read_distca(args.distca, blind) if args.distca else read_runs(args.runs, blind)


def write_predictions(args, version, runs, seconds):
    """What the program says, before anybody has looked at what the steps took."""
    predicted = {run.name: times for run, times in zip(runs, seconds)}
    file = Path(args.predictions)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"program": version, "set": args.set, "seconds": predicted}), encoding="utf-8")
    print(f"predictions: {file}, written before the measured times were read", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(
        prog="measured", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="?", help="table of runs")
    parser.add_argument("--distca", metavar="FOLDER")
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/equipoise"))
    parser.add_argument(
        "--predictions",
        metavar="FILE",
        default=str(ROOT / "build/measured_predictions.json"),
        help="JSON of predicted seconds, by run; build/measured_predictions.json by default",
    )
    parser.add_argument("--plot", metavar="FILE", help="SVG")
    parser.add_argument("--out", metavar="FILE", help="the report as Markdown; printed without it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of every study")
    args = parser.parse_args()
    if (args.runs is None) == (args.distca is None):
        parser.error("expected a table of runs or --distca FOLDER")
    options = [part for value in args.set for part in ("--set", value)]
    try:
        runs = read_all(args, blind=True)
        seconds = predict_all(args.program, runs, options)
        version = version_of(args.program)
        write_predictions(args, version, runs, seconds)
        results = [Predicted(run, times) for run, times in zip(read_all(args, blind=False), seconds)]
    except RunsError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)  # as the program does
    report = text(results, version)
    if args.plot:
        Path(args.plot).write_text(svg(results), encoding="utf-8")
    if args.out:
        Path(args.out).write_text(report, encoding="utf-8")
    else:
        print(report)


if __name__ == "__main__":
    main()

"""Measured steps with known document lengths against the simulator's.

  python3 -m measured RUNS.json                 a table of runs (equipoise.runs/1)
  python3 -m measured --distca FOLDER           the steps that DistCA's authors timed (steps.csv, documents.csv.gz)

Prints errors by window, sharding and CP degree, how often the best layout is right and what a wrong choice costs.
Predicted seconds go to --predictions, with the program's version, before any error is computed: no study holds a measured time.
"""

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .distca import read_distca
from .plot import svg
from .predict import predict, version_of
from .report import Predicted, text
from .runs import RunsError, read_runs

ROOT = Path(__file__).resolve().parents[3]


def predict_all(program, runs, options, jobs=2):
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(jobs) as pool:
        folders = [Path(scratch) / str(i) for i in range(len(runs))]
        return list(pool.map(lambda run, folder: predict(program, run, folder, options), runs, folders))


def main():
    parser = argparse.ArgumentParser(
        prog="measured", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="?", help="table of runs")
    parser.add_argument("--distca", metavar="FOLDER")
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/equipoise"))
    parser.add_argument("--predictions", metavar="FILE", help="JSON of predicted seconds, by run")
    parser.add_argument("--plot", metavar="FILE", help="SVG")
    parser.add_argument("--out", metavar="FILE", help="the report as Markdown; printed without it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of every study")
    args = parser.parse_args()
    if (args.runs is None) == (args.distca is None):
        parser.error("expected a table of runs or --distca FOLDER")
    try:
        runs = read_distca(args.distca) if args.distca else read_runs(args.runs)
        options = [part for value in args.set for part in ("--set", value)]
        seconds = predict_all(args.program, runs, options)
    except RunsError as error:
        sys.exit(f"error: {error}")
    version = version_of(args.program)
    if args.predictions:
        predicted = {run.name: times for run, times in zip(runs, seconds)}
        Path(args.predictions).write_text(json.dumps({"program": version, "set": args.set, "seconds": predicted}))
    results = [Predicted(run, times) for run, times in zip(runs, seconds)]
    report = text(results, version)
    if args.plot:
        Path(args.plot).write_text(svg(results), encoding="utf-8")
    if args.out:
        Path(args.out).write_text(report, encoding="utf-8")
    else:
        print(report)


if __name__ == "__main__":
    main()

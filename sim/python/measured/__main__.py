"""Compares measured steps with known document lengths with the simulator's.

  python3 -m measured RUNS.json                 a table of runs (equipoise.runs/1)
  python3 -m measured --distca FOLDER           the steps that DistCA's authors timed (steps.csv, documents.csv.gz)
  python3 -m measured --others                  figures that other sources print, and what is predicted for each
  python3 -m measured --layers                  layers that this project timed on an H100 and an H200
  python3 -m measured --forms                   a published benchmark of forms of context parallelism on H100

Prints errors by window, sharding and CP degree, how often the best layout is right and what a wrong choice costs.
Predicted seconds go to a file (--predictions), with the program's version, before a measured time is read.
"""

import argparse
import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from figures import draw_steps

from .distca import read_distca
from .forms import PUBLISHED as FORMS
from .forms import forms_table, predict_forms
from .layers import layer_table, packings, predict_layers
from .others import PUBLISHED, all_figures, predict_figures, table
from .ratios import of_figures, of_runs
from .report import Predicted, points, text
from .runs import RunsError, predict, read_runs, version_of

ROOT = Path(__file__).resolve().parents[3]


def predict_all(program, runs, options, jobs=2):
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(jobs) as pool:
        folders = [Path(scratch) / str(i) for i in range(len(runs))]
        return list(pool.map(lambda run, folder: predict(program, run, folder, options), runs, folders))


def read_all(args, blind):
    return read_distca(args.distca, blind) if args.distca else read_runs(args.runs, blind)


def write_predictions(args, version, predicted):
    """Writes the predictions before a measured time is read."""
    file = Path(args.predictions)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"program": version, "set": args.set, **predicted}), encoding="utf-8")
    print(f"predictions: {file}, written before the measured times were read", file=sys.stderr)


def report_runs(args, version):
    options = [part for value in args.set for part in ("--set", value)]
    runs = read_all(args, blind=True)
    seconds = predict_all(args.program, runs, options)
    write_predictions(args, version, {"seconds": {run.name: times for run, times in zip(runs, seconds)}})
    results = [Predicted(run, times) for run, times in zip(read_all(args, blind=False), seconds)]
    if args.ratios:
        Path(args.ratios).write_text(json.dumps(of_runs(results, "DistCA" if args.distca else "runs"), indent=0), encoding="utf-8")
    if args.plot:
        Path(args.plot).with_suffix(".json").write_text(json.dumps(points(results), indent=0), encoding="utf-8")
        draw_steps(points(results), args.plot)
    return text(results, version)


def report_others(args, version):
    figures = all_figures(os.environ.get("EQUIPOISE_PUBLIC_DATA"))
    with tempfile.TemporaryDirectory() as scratch:
        values = predict_figures(args.program, figures, scratch)
    predicted = {f"{f.source}: {f.setting}, {f.method}, {f.unit}": found for f, found in zip(figures, values)}
    write_predictions(args, version, {"figures": predicted})
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    if args.ratios:
        Path(args.ratios).write_text(json.dumps(of_figures(figures, values, published), indent=0), encoding="utf-8")
    return f"Predicted by {version}.\n\n{table(figures, values, published)}\n"


def report_layers(args, version):
    with tempfile.TemporaryDirectory() as scratch:
        predicted = predict_layers(args.program, Path(scratch), packings())
    write_predictions(args, version, {"layers": predicted})
    return f"Predicted by {version}.\n\n{layer_table(predicted)}\n"


def report_forms(args, version):
    with tempfile.TemporaryDirectory() as scratch:
        predicted = predict_forms(args.program, Path(scratch))
    write_predictions(args, version, {"forms": predicted})
    published = json.loads(FORMS.read_text(encoding="utf-8"))
    return f"Predicted by {version}.\n\n{forms_table(predicted, published)}\n"


def main():
    parser = argparse.ArgumentParser(
        prog="measured", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="?", help="table of runs")
    parser.add_argument("--distca", metavar="FOLDER")
    parser.add_argument("--others", action="store_true", help="with EQUIPOISE_PUBLIC_DATA, FlexSP's too")
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--forms", action="store_true")
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/equipoise"))
    parser.add_argument(
        "--predictions",
        metavar="FILE",
        default=str(ROOT / "build/measured_predictions.json"),
        help="JSON of what was predicted; build/measured_predictions.json by default",
    )
    parser.add_argument("--plot", metavar="FILE.svg", help="a figure of all steps, and FILE.json with what it shows; needs matplotlib")
    parser.add_argument("--ratios", metavar="FILE", help="JSON of ratios of two rows, measured and predicted (tests/published_errors.py)")
    parser.add_argument("--out", metavar="FILE", help="the report as Markdown; printed without it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of every study")
    args = parser.parse_args()
    fixed = [name for name in ("others", "layers", "forms") if getattr(args, name)]
    if [args.runs is not None, args.distca is not None].count(True) + len(fixed) != 1:
        parser.error("expected a table of runs, --distca FOLDER, --others, --layers or --forms")
    if args.ratios and fixed not in ([], ["others"]):
        parser.error(f"--ratios: expected runs or --others, found --{fixed[0]}")
    if fixed and (args.set or args.plot):
        parser.error(f"--{fixed[0]}: expected no {'--set' if args.set else '--plot'}")
    try:
        version = version_of(args.program)
        made = {"others": report_others, "layers": report_layers, "forms": report_forms}
        report = made.get(fixed[0] if fixed else None, report_runs)(args, version)
    except RunsError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)  # the program's exit status for wrong input
    if args.out:
        Path(args.out).write_text(report, encoding="utf-8")
    else:
        print(report)


if __name__ == "__main__":
    main()

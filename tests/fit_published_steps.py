#!/usr/bin/env python3
"""Fits the slowdowns of the shipped framework presets to published steps, and writes them with their error.

  tests/fit_published_steps.py --rows ROWS.csv --models MODELS.csv [--program P] [--write]

A slowdown is how much slower a kind of kernel runs in a long training than alone: one for GEMM, attention and
elementwise kernels of a framework, never of a row or model. `equipoise fit --steps` fits these three
(sim/calibration/slowdown_fit.h) to the bf16 rows, holds each benchmark out in its turn and predicts it by the fit of the
others: those errors are the result. What follows is fitted here with SciPy (python3-scipy), since the command fits no such number.

Eager rows, with experts or adapters and without graphs of whole layers (of every precision: their groups are few), fit two numbers of
`megatron-eager`, with the other numbers as its file has them: what a launch takes the host, and what a kernel of PyTorch's own
functions takes it. What each expert's product takes the GPU in addition to its arithmetic stays at the 20 us of an earlier fit. It is a
search on a grid. Each benchmark counts once, however many rows it has, and each source, a repository or paper, is predicted by the fit of
the others. `--experts` fits only that, and `--grid` takes another grid. The shipped grid ends at 90 us a launch because wider ones are
further off on sources held out (docs/results/published-steps.md).

Rows of small models that wait for their host (`--host`: nanotron's sweep, vTrain's A100 tables) fit what a launch takes it
in addition to one slowdown of all kernels. Attention that writes its scores to memory has a slowdown of its own. Each size of model counts once and is predicted by the fit of the others; the least and most that these
fits give a launch are its band. Every other preset keeps the host that its file states.

--write puts slowdowns, rows, date, sources and errors into sim/framework/presets/. `deepspeed` has no rows in these tables;
sim/python/papers/fits.py fits it to a paper's.
"""
import argparse
import datetime
import itertools
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import published_a100
import published_steps as steps
from published_errors import source_of
from published_settings import doubtful, with_stages

try:
    import numpy as np
    from scipy.interpolate import RegularGridInterpolator
    from scipy.optimize import least_squares
except ImportError:
    sys.exit("error: this program needs SciPy: install python3-scipy, or pip install scipy")

KINDS = ("gemm", "attention", "elementwise")
PRESETS = steps.ROOT / "sim/framework/presets"
ROBUST = 0.08                     # of a logarithm: beyond it a row counts linearly
EAGER = "megatron-eager"
EAGER_GRID = [[60, 75, 90], [15, 20], [20]]  # us per launch, per kernel of PyTorch's functions, per expert's product
LAUNCH_GRID_US = (0, 15, 30, 45, 60, 90)
KERNEL_GRID = (1.0, 1.3, 1.8)
SCORES_GRID = (0.5, 1.0, 2.0)
HOSTS = {"nanotron": False, published_a100.PRESET: True}  # whether attention writes its scores
SAME_CHIP = {"H100": ("H800",)}   # H800: the H100's chip with a narrower NVLink


class Family:
    """The rows of one preset, and the slowdowns that `equipoise fit --steps` finds for them."""

    def __init__(self, name, rows, args):
        simulator = steps.Simulator(args.program, rows, args.shapes, name, args.jobs)
        made = Path(simulator.folder.name) / "fitted.json"
        run = subprocess.run([*simulator.command, "--out", made], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            sys.exit(run.stderr.strip().splitlines()[-1])
        self.kernels = json.loads(made.read_text())["kernels"]
        self.slowdowns = {kind: self.kernels["slowdowns"][kind] for kind in KINDS}
        first = simulator.predict(self.at(self.slowdowns.values()))
        self.ids = [row["row_id"] for row in first]
        self.benchmarks = [row["benchmark"] for row in first]
        self.published = np.array([float(row["published_seconds"]) for row in first])
        self.predict = simulator.predict

    @staticmethod
    def at(slowdowns):
        return ",".join(f"{x:.9g}" for x in slowdowns)

    def errors(self, slowdowns):
        """predicted / published - 1 of every row, by the simulator."""
        return np.array([float(row["predicted_seconds"]) for row in self.predict(self.at(slowdowns))]) / self.published - 1


def summary(errors):
    return {"rows": len(errors), "mean_abs_error": round(statistics.mean(map(abs, errors)), 4),
            "mean_error": round(statistics.mean(errors), 4), "worst": round(max(errors, key=abs), 4)}


def print_errors(title, errors, constant="-"):
    s = summary(errors)
    print(f"{title:44} {s['rows']:4d} {100 * s['mean_abs_error']:12.1f} {100 * s['mean_error']:11.1f} "
          f"{100 * s['worst']:8.1f} {constant:>16}", flush=True)


def fit_family(name, rows, args):
    """The `kernels` part of a preset, from its rows, and the errors of rows held out; prints them."""
    family = Family(name, rows, args)
    by_benchmark = defaultdict(list)
    for i, benchmark in enumerate(family.benchmarks):
        by_benchmark[benchmark].append(i)
    of_benchmark, held_out, seen_by_none = {}, [], []
    constants = [{"row": row_id, "benchmark": benchmark, "published": float(published), "family": name, "precision": "bf16"}
                 for row_id, benchmark, published in zip(family.ids, family.benchmarks, family.published)]
    steps.add_constant(constants, rows, args.shapes)
    for benchmark, members in sorted(by_benchmark.items()):
        errors = [float(e) for e in family.errors(family.kernels["left_out"]["benchmarks"][benchmark]["slowdowns"])[members]]
        print_errors(f"{name}: {benchmark}", errors, steps.mean_constant([constants[i] for i in members]))
        of_benchmark[benchmark] = summary(errors)
        held_out += errors
        seen_by_none += [(family.ids[i], error) for i, error in zip(members, errors)]
    print_errors(f"{name}, all", held_out, steps.mean_constant(constants))
    in_sample = [float(e) for e in family.errors(family.slowdowns.values())]
    print_errors(f"{name}, in sample", in_sample)
    numbers = family.kernels["fit"]["numbers"]
    print(f"  fitted to all of them: {family.slowdowns}" + (", one number for all kinds" if numbers == 1 else ""), flush=True)
    used = [row for row in rows if (row.get("row_id") or "") in family.ids]
    families = sorted({word for row in used for word in ("H100", "H200") if word in row["gpu"]})
    sources = sorted({row.get("source", "").split("@")[0] for row in used} - {""})
    return {
        "kind": "fitted",
        "gpu_families": families + [alike for word in families for alike in SAME_CHIP.get(word, ())],
        "slowdowns": {**family.slowdowns, "full_load": True},
        "fit": {"rows": len(family.ids), "benchmarks": len(by_benchmark), "numbers": numbers,
                "source": sources, "date": datetime.date.today().isoformat(), "error_in_sample": summary(in_sample)},
        "left_out": {**summary(held_out), "benchmarks": of_benchmark},
    }, seen_by_none


def errors_of_others(name, rows, slowdowns, args):
    """(row's id, error) of dense rows in precisions that no fit sees."""
    if not rows:
        return []
    at = ",".join(f"{slowdowns[kind]:.9g}" for kind in KINDS)
    found = steps.Simulator(args.program, rows, args.shapes, name, args.jobs).predict(at)
    return [(row["row_id"], float(row["predicted_seconds"]) / float(row["published_seconds"]) - 1) for row in found]


class EagerFamily:
    """Rows with experts or adapters, which can wait for the host: their errors at each point of a grid of what a launch and a
    kernel of PyTorch's functions take it, and what each expert's product takes the GPU in addition to its arithmetic. All else
    is the preset's, by GPU and precision."""

    def __init__(self, name, rows, args):
        self.name, self.args = name, args
        of_id = {row["row_id"]: row for row in rows}
        found = {point: self.predict(point, rows) for point in itertools.product(*args.grid)}
        first = next(iter(found.values()))
        self.ids = [row["row_id"] for row in first]
        self.benchmarks = np.array([row["benchmark"] for row in first])
        self.sources = np.array([source_of(of_id[i]) for i in self.ids])
        self.errors = {point: np.array([float(row["error"]) for row in rows]) for point, rows in found.items()}

    def predict(self, point, rows):
        preset = json.loads((PRESETS / f"{self.name}.json").read_text())
        launch, kernel, product = (1e-6 * us for us in point)
        preset["host"] |= {"seconds_per_launch": launch, "seconds_per_kernel": kernel}
        preset["kernels"]["slowdowns"]["expert_product_seconds"] = product
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / f"{self.name}.json").write_text(json.dumps(preset))
            return steps.Simulator(self.args.program, rows, self.args.shapes, self.name, self.args.jobs, folder).predict("preset")

    def mean_error(self, point, members):
        """Mean absolute error in which each benchmark counts once; of a logarithm, so that no factor is cheaper below than above."""
        of = defaultdict(list)
        for i in members:
            of[self.benchmarks[i]].append(abs(np.log1p(self.errors[point][i])))
        return statistics.mean(map(statistics.mean, of.values()))

    def fit(self, seen):
        return min(self.errors, key=lambda point: self.mean_error(point, seen))


def fit_eager(name, rows, args):
    """The host's and the experts' part of a preset, and the errors of rows whose source was held out; prints them."""
    family = EagerFamily(name, rows, args)
    everything = np.arange(len(family.ids))
    for point in family.errors:
        print(f"{point[0]} us per launch, {point[1]} per kernel, {point[2]} per product: {100 * family.mean_error(point, everything):.1f} %")
    of_source, of_benchmark, seen_by_none = {}, defaultdict(list), []
    for source in np.unique(family.sources):
        members = everything[family.sources == source]
        point = family.fit(np.setdiff1d(everything, members))
        errors = [float(error) for error in family.errors[point][members]]
        print_errors(f"{source[-30:]}, at {point[0]}, {point[1]} and {point[2]} us", errors)
        of_source[str(source)] = {**summary(errors), "launch_us": point[0], "kernel_us": point[1], "product_us": point[2]}
        seen_by_none += [(family.ids[i], error) for i, error in zip(members, errors)]
        for i, error in zip(members, errors):
            of_benchmark[family.benchmarks[i]].append(abs(error))
    mean = statistics.mean(map(statistics.mean, of_benchmark.values()))
    best = family.fit(everything)
    print(f"mean of {len(of_benchmark)} benchmarks, sources held out, {100 * mean:.1f} %; best {best}")
    launches = [of["launch_us"] for of in of_source.values()]
    host = {"seconds_per_launch": round(1e-6 * best[0], 8), "seconds_per_kernel": round(1e-6 * best[1], 8),
            "band": {"least": round(1e-6 * min(launches), 8), "most": round(1e-6 * max(launches), 8)},
            "known": f"fitted, {100 * mean:.0f} % off on sources that the fit did not see"}
    return host, round(1e-6 * best[2], 8), {
        "fit": {"rows": len(family.ids), "benchmarks": len(of_benchmark),
                "numbers": sum(len(axis) > 1 for axis in args.grid), "source": sorted(of_source),
                "date": datetime.date.today().isoformat(), "error_in_sample": summary([float(e) for e in family.errors[best]])},
        "left_out": {"mean_abs_error_of_benchmarks": round(mean, 4), "sources": of_source},
    }, seen_by_none


class HostFamily:
    """Rows of a preset whose small steps wait for their host: seconds by slowdowns and by what a launch takes."""

    def __init__(self, name, rows, benchmark_of, args):
        self.name, self.scores = name, HOSTS[name]
        self.axes = [KERNEL_GRID, SCORES_GRID, LAUNCH_GRID_US] if self.scores else [KERNEL_GRID, LAUNCH_GRID_US]
        points = [self.at(theta) for theta in itertools.product(*self.axes)]
        simulator = steps.Simulator(args.program, rows, args.shapes, name, args.jobs)
        found = simulator.predict(*points)
        first = found[:len(found) // len(points)]
        of_id = {row["row_id"]: row for row in rows}
        self.rows = [of_id[row["row_id"]] for row in first]
        self.benchmarks = np.array([benchmark_of(row) for row in self.rows])
        self.published = np.array([float(row["published_seconds"]) for row in first])
        seconds = np.array([float(row["predicted_seconds"]) for row in found])
        shape = [len(axis) for axis in self.axes] + [len(first)]
        self.interpolant = RegularGridInterpolator(self.axes, np.log(seconds.reshape(shape)))
        self.simulate = lambda theta: np.array([float(row["predicted_seconds"]) for row in simulator.predict(self.at(theta))])

    def at(self, theta):
        # Where no row writes scores, row kernels are counted one by one and run as fast as the profile has them.
        attention = theta[1] if self.scores else theta[0]
        return f"{theta[0]:.9g},{attention:.9g},{theta[0] if self.scores else 1:.9g},1,0,{theta[-1]:.9g}"

    def fit(self, seen):
        """What the rows `seen` ask for, each benchmark counting once."""
        _, of_row, count = np.unique(self.benchmarks[seen], return_inverse=True, return_counts=True)

        def residuals(theta):
            error = self.interpolant(theta)[0][seen] - np.log(self.published[seen])
            robust = np.sign(error) * ROBUST * np.sqrt(2 * (np.sqrt(1 + (error / ROBUST) ** 2) - 1))
            return robust / np.sqrt(count[of_row])

        low, high = [axis[0] for axis in self.axes], [axis[-1] for axis in self.axes]
        starts = itertools.product(*([axis[1], axis[-2]] for axis in self.axes))
        best = min((least_squares(residuals, start, bounds=(low, high), x_scale=high, diff_step=1e-3) for start in starts),
                   key=lambda found: found.cost)
        return [round(float(x), 3) for x in best.x]


def fit_host(name, rows, benchmark_of, args):
    """The `host` and `kernels` parts of a preset; prints their errors."""
    family = HostFamily(name, rows, benchmark_of, args)
    everything = np.arange(len(family.rows))
    of_benchmark, launches, seen_by_none = {}, [], []
    for benchmark in np.unique(family.benchmarks):
        members = everything[family.benchmarks == benchmark]
        theta = family.fit(np.setdiff1d(everything, members))
        errors = [float(e) for e in (family.simulate(theta) / family.published - 1)[members]]
        print_errors(f"{name}: {benchmark}, at {theta[-1]:.0f} us per launch", errors)
        of_benchmark[str(benchmark)] = {**summary(errors), "launch_us": theta[-1]}
        launches.append(theta[-1])
        seen_by_none += [(family.rows[i]["row_id"], error) for i, error in zip(members, errors)]
    mean = statistics.mean(of["mean_abs_error"] for of in of_benchmark.values())
    theta = family.fit(everything)
    errors = [float(e) for e in family.simulate(theta) / family.published - 1]
    print_errors(f"{name}, in sample", errors)
    print(f"  {len(of_benchmark)} groups held out {100 * mean:.1f} %; fitted to all: {theta}", flush=True)
    fit = {"rows": len(errors), "benchmarks": len(of_benchmark), "numbers": len(theta),
           "source": sorted({row.get("source", "").split("@")[0] for row in family.rows} - {""}),
           "date": datetime.date.today().isoformat(), "error_in_sample": summary(errors)}
    held_out = {"mean_abs_error": round(mean, 4), "benchmarks": of_benchmark}
    host = {"seconds_per_launch": round(1e-6 * theta[-1], 8),
            "band": {"least": round(1e-6 * min(launches), 8), "most": round(1e-6 * max(launches), 8)},
            "known": f"fitted, {100 * mean:.1f} % off on sizes of model that the fit did not see"}
    slowdowns = {"gemm": theta[0], "attention": theta[1] if family.scores else theta[0], "elementwise": theta[0] if family.scores else 1, "full_load": True}
    gpus = ["A100"] if family.scores else ["H100", *SAME_CHIP["H100"]]
    args.held_out |= dict(seen_by_none)
    return host, {"kind": "fitted", "gpu_families": gpus, "slowdowns": slowdowns, "fit": fit, "left_out": held_out}


def preset_text(preset):
    """A preset's file: launches of both passes, and other pairs of numbers, on one line."""
    return re.sub(r"\[\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2]", json.dumps(preset, indent=1)) + "\n"


def write_preset(name, kernels, host=None):
    path = PRESETS / f"{name}.json"
    preset = json.loads(path.read_text())
    preset["host"] = {**preset.get("host", {}), **(host or {})}
    before = preset.get("kernels", {})
    if "on_gpus" in before:
        kernels["on_gpus"] = before["on_gpus"]
    if "there" in before:
        kernels["there"] = before["there"]
    if "experts" in before and "experts" not in kernels:
        kernels["experts"] = before["experts"]
        kernels["slowdowns"]["expert_product_seconds"] = before["slowdowns"]["expert_product_seconds"]
    preset["kernels"] = kernels
    path.write_text(preset_text(preset))
    eager = PRESETS / f"{EAGER}.json"  # follows what was fitted anew
    eager.write_text(preset_text(steps.eager_preset(json.loads((PRESETS / "megatron.json").read_text()), json.loads(eager.read_text()))))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", required=True, action="append")
    parser.add_argument("--models", default=[], action="append")
    parser.add_argument("--program", default=str(steps.ROOT / "build/release/bin/equipoise"))
    parser.add_argument("--write", action="store_true", help="write the shipped presets")
    parser.add_argument("--only", choices=(*steps.FAMILIES, published_a100.PRESET), help="only this preset")
    parser.add_argument("--experts", action="store_true", help="only the numbers of the preset megatron-eager")
    parser.add_argument("--grid", type=json.loads, default=EAGER_GRID, metavar="JSON",
                        help=f"us of each of these numbers; {EAGER_GRID} by default")
    parser.add_argument("--host", action="store_true", help="only what a launch takes the host of nanotron and megatron-2022")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--errors", metavar="FILE", help="write the error of each row by the fit that did not see it (published_errors.py)")
    args = parser.parse_args()
    args.held_out = {}
    of_vtrain = [path for path in args.rows if "iteration time (ms)" in Path(path).read_text().splitlines()[0]]
    if of_vtrain and args.only in (None, published_a100.PRESET):
        a100, models = published_a100.read_rows(of_vtrain)
        args.shapes = list(models.values())
        fitted = fit_host(published_a100.PRESET, a100, lambda row: row["group"].split(", micro-batch")[0], args)
        # And with the slowdowns of today's Megatron carried over, without what it overlaps and shards.
        carried = [{**row, "zero": 0, "tp_overlap": 0} for row in a100]
        slowdowns = json.loads((PRESETS / "megatron.json").read_text())["kernels"]["slowdowns"]
        print_errors("megatron on A100, carried over", [error for _, error in errors_of_others("megatron", carried, slowdowns, args)])
        if args.write:
            write_preset(published_a100.PRESET, *reversed(fitted))
    args.shapes = steps.read_tables(args.models, ("model_id", "n_layers", "hidden"))
    rows = steps.read_tables([path for path in args.rows if path not in of_vtrain], ("gpu", "model_id", "step_time_s"))
    with_stages(rows, args.shapes)
    of_sweep = [row for row in rows if steps.family_of(row) == "nanotron"]
    if of_sweep and args.only in (None, "nanotron"):
        fitted = fit_host("nanotron", of_sweep, lambda row: row["model_id"], args)
        if args.write:
            write_preset("nanotron", *reversed(fitted))
    if args.host:
        return
    rows = [row for row in rows if steps.family_of(row) not in HOSTS]
    routed = {model["model_id"] for model in args.shapes if model.get("n_experts")}
    eager = [row for row in rows if steps.family_of(row) == EAGER and not doubtful(row)]
    rows = [row for row in rows if row["model_id"] not in routed and not row.get("lora")]
    others = [row for row in rows if (row.get("precision") or "bf16") != "bf16"]
    rows = [row for row in rows if (row.get("precision") or "bf16") == "bf16"]
    print(f"{'held out, predicted by the others':44} {'rows':>4} {'mean |err| %':>12} {'mean err %':>11} {'worst %':>8} "
          f"{'constant |err| %':>16}")
    for name in () if args.experts else [name for name in steps.FAMILIES if name not in (*HOSTS, EAGER)]:
        of_family = [row for row in rows if steps.family_of(row) == name]
        if not of_family or args.only not in (None, name):
            continue
        kernels, left_out = fit_family(name, of_family, args)
        args.held_out |= dict(left_out)
        of_others = [row for row in others if steps.family_of(row) == name]
        if of_others:
            print_errors(f"{name}, other precisions",
                         [error for _, error in errors_of_others(name, of_others, kernels["slowdowns"], args)])
        if args.write:
            write_preset(name, kernels)
    if eager and args.only in (None, EAGER):
        host, seconds, experts, left_out = fit_eager(EAGER, eager, args)
        args.held_out |= dict(left_out)
        if args.write:
            kernels = json.loads((PRESETS / f"{EAGER}.json").read_text())["kernels"]
            kernels["slowdowns"]["expert_product_seconds"], kernels["experts"] = seconds, experts
            kernels["left_out"] = {"mean_abs_error": experts["left_out"]["mean_abs_error_of_benchmarks"]}
            write_preset(EAGER, kernels, host)
    if args.errors:
        Path(args.errors).write_text(json.dumps(args.held_out))


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Predicts published training steps and prints the error of each: the simulator's truth test.

  tests/published_steps.py --rows h100_training_steps.csv --models models.csv [--program build/release/bin/equipoise]
  tests/published_steps.py --rows h100_moe_steps.csv --models moe_models.csv
  tests/published_steps.py --rows ultrascale_h100_steps.csv --models ultrascale_models.csv

Both options may be given several times: the tables are read as one.

Every row is simulated by `equipoise fit --steps ... --slowdowns preset`: as documents of one length, as published
benchmarks train, with the shipped preset of the framework that ran it and nothing else set but what the row states.
Columns of the rows: gpu, model_id, seq_len, tp, cp, pp, dp, mbs, gbs_seqs, step_time_s; if there are: row_id, group,
n_gpus, layers_run, vp, precision, act_recompute, attention_impl, optimizer_state_dtype, peak_memory_GiB, notes. Of the models: model_id,
n_layers, hidden, n_heads, n_kv_heads, ffn_hidden, gated_mlp, vocab. An empty recompute means the cheaper of none and full
that fits in memory, an empty vp 1. For models with experts docs/how-to/fit-your-own-steps.md says which columns there are in addition to
these; their rows are summed up by model and benchmark, with the mean over these groups and the worst of them: forty rows
of nearly one layout say no more than four. What does not qualify is listed with the reason.
published_settings.py adds what the sources of a table publish in addition. --parts GROUP takes the steps of groups that begin
so apart, by number of GPUs.

Slowdowns of the presets were fitted to bf16 rows of this table (fit_published_steps.py), so errors here are in sample.
How wrong a preset is on benchmarks that its fit did not see is in its file and in `equipoise list frameworks`.
"constant" is what a simulator has to beat: the median share of peak of all other benchmarks of a framework and precision.
EQUIPOISE_FRAMEWORKS=DIR takes other presets.
"""
import argparse
import csv
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from published_settings import SETTINGS, doubtful, with_settings, with_stages

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = ("megatron", "megatron-eager", "fsdp", "torchtitan", "nanotron")  # the presets that rows were published for
LEAST_MFU = 15  # %: rows of a sweep of layouts below it depend on stalls that no kernel explains


def family_of(row):
    """The preset of the framework that ran a row. Megatron's steps with expert parallelism or adapters are eager unless graphs of
    whole layers or steps are stated."""
    framework = framework_of(row)
    eager = (int(row.get("ep") or 1) > 1 or row.get("lora")) and row.get("graphs") not in ("layer", "full")
    return f"{framework}-eager" if framework == "megatron" and eager else framework


def eager_preset(megatron, own):
    """The preset megatron-eager: megatron's, with a host, a time of each expert's product and errors of its own."""
    host, kernels, errors = megatron["host"], megatron["kernels"], own["kernels"]
    times = ("seconds_per_launch", "seconds_per_kernel")
    product = errors["slowdowns"]["expert_product_seconds"]
    return {
        **megatron, "name": own["name"], "summary": own["summary"],
        "host": {**host, **{key: own["host"][key] for key in (*times, "band", "known")},
                 "sources": {**host["sources"], **{key: own["host"]["sources"][key] for key in times}}},
        "kernels": {"kind": kernels["kind"], "gpu_families": kernels["gpu_families"],
                    "slowdowns": {**kernels["slowdowns"], "expert_product_seconds": product},
                    "experts": errors["experts"], "there": kernels["there"], "left_out": errors["left_out"]},
    }


def framework_of(row):
    """The framework of a row: the one that it states, or by its group's name."""
    group = row.get("group") or ""
    if row.get("preset"):
        return row["preset"]
    if group.startswith(("titan", "aws")):
        return "torchtitan"
    if group.startswith("ultrascale"):
        return "nanotron"
    return "fsdp" if group.startswith(("mpt", "fms")) else "megatron"


def of_sweep(row):
    """The row of a sweep of layouts, which has a `status` and no group; None where it is no step to be predicted."""
    if "status" not in row:
        return row
    if row["status"] != "ok" or float(row["mfu_pct"]) < LEAST_MFU:
        return None
    return {**row, "group": "ultrascale_" + row["model_id"]}


def read_tables(paths, columns):
    """Rows of CSV files as of one with the columns of all."""
    tables = [read_table(path, columns) for path in paths]
    names = dict.fromkeys(name for table in tables for row in table[:1] for name in row)
    names |= dict.fromkeys(column for _, columns, *_ in SETTINGS for column in columns)
    names |= {"group": None, "stage_layers": None}  # what with_stages fills
    kept = [row for table in tables for row in map(of_sweep, table) if row is not None]
    return [with_settings({name: row.get(name) or "" for name in names}) for row in kept]


def read_table(path, columns):
    """Rows of a CSV file; ends the program with one line where it cannot be read or lacks one of the columns."""
    try:
        with open(path, newline="") as file:
            table = csv.DictReader(file)
            rows = list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        sys.exit(f"error: {path}: cannot be read: {error}")
    missing = [column for column in columns if column not in (table.fieldnames or [])]
    if missing:
        sys.exit(f"error: {path}: expected the columns in this program's --help, found none called {missing[0]}")
    return rows


class Simulator:
    """The program, for the rows of one family: their seconds at any slowdowns. `presets`: a folder of other presets."""

    def __init__(self, program, rows, models, family, jobs, presets=None):
        self.folder = tempfile.TemporaryDirectory()
        self.environment = os.environ | ({"EQUIPOISE_FRAMEWORKS": str(presets)} if presets else {})
        self.command = [program, "fit", "--steps", self.write("rows.csv", rows), "--preset", family]
        self.command += ["--jobs", str(jobs)]
        self.command += ["--models", self.write("models.csv", models)] if models else []  # none: built-in names
        self.excluded = []

    def write(self, name, rows):
        path = Path(self.folder.name) / name
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
        return str(path)

    def predict(self, *slowdowns):
        """What the program prints at each of the slowdowns ("preset", or "gemm,attention,elementwise"), in order."""
        asked = [part for s in slowdowns for part in ("--slowdowns", s)]
        run = subprocess.run(self.command + asked, capture_output=True, text=True, check=False, env=self.environment)
        if run.returncode != 0:
            sys.exit(run.stderr.strip().splitlines()[-1])
        self.excluded = [line[len("excluded: "):] for line in run.stderr.splitlines() if line.startswith("excluded: ")]
        return list(csv.DictReader(io.StringIO(run.stdout)))


def model_flops(row, model):
    """Model FLOPs of a step of a dense model: causal attention, nothing twice."""
    hidden, heads = int(model["hidden"]), int(model["n_heads"])
    kv_heads = int(model.get("n_kv_heads") or heads)
    head_dim = int(model.get("head_dim") or hidden // heads)
    layers, sequence = int(row.get("layers_run") or model["n_layers"]), int(row["seq_len"])
    ffn = (3 if model.get("gated_mlp") == "1" else 2) * hidden * int(model["ffn_hidden"])
    matrices = layers * ((2 * heads + 2 * kv_heads) * head_dim * hidden + ffn) + hidden * int(model["vocab"])
    return int(row["gbs_seqs"]) * sequence * (6 * matrices + 6 * layers * sequence * heads * head_dim)


def add_constant(results, rows, models):
    """Next to each result of a dense model (`constant`): the error of one share of peak for all rows of its framework and
    precision, the median over the benchmarks that it does not belong to; None where there is no other benchmark."""
    shapes = {model["model_id"]: model for model in models if not model.get("n_experts")}
    of_row = {row.get("row_id"): row for row in rows}
    for r in results:
        row = of_row[r["row"]]
        if row["model_id"] in shapes:
            gpus = int(row["tp"] or 1) * int(row["cp"] or 1) * int(row["pp"] or 1) * int(row["dp"] or 1)
            r["ideal"] = model_flops(row, shapes[row["model_id"]]) / gpus
    for r in results:
        others = [o["published"] / o["ideal"] for o in results if "ideal" in o and "ideal" in r and o["benchmark"] != r["benchmark"]
                  and (o["family"], o["precision"]) == (r["family"], r["precision"])]
        r["constant"] = statistics.median(others) * r["ideal"] / r["published"] - 1 if others else None


def mean_constant(results):
    """Mean absolute error of the constant share of peak, in %; a dash where it does not exist."""
    found = [abs(r["constant"]) for r in results if r.get("constant") is not None]
    return f"{100 * statistics.mean(found):.1f}" if len(found) == len(results) else "-"


def summarise(results, key, title="group"):
    groups = defaultdict(list)
    for r in results:
        groups[key(r)].append(r)
    print(f"{title:44} {'rows':>4} {'mean |err| %':>12} {'mean err %':>11} {'worst %':>8} {'constant |err| %':>16}")
    for name, members in sorted(groups.items()):
        errors = [r["error"] for r in members]
        worst = max(errors, key=abs)
        print(f"{name:44} {len(errors):4d} {100 * statistics.mean(map(abs, errors)):12.1f} "
              f"{100 * statistics.mean(errors):11.1f} {100 * worst:8.1f} {mean_constant(members):>16}")


def summarise_experts(results):
    """Runs of models with experts by model and benchmark, and the mean of these groups."""
    if not results:
        return
    summarise(results, lambda r: r["benchmark"], "with experts: model and benchmark")
    groups = defaultdict(list)
    for r in results:
        groups[r["benchmark"]].append(r["error"])
    means = {name: statistics.mean(map(abs, errors)) for name, errors in groups.items()}
    worst = max(means, key=means.get)
    of_rows = statistics.mean(abs(r["error"]) for r in results)
    print(f"mean of {len(means)} groups {100 * statistics.mean(means.values()):.1f} %, of {len(results)} rows "
          f"{100 * of_rows:.1f} %; worst group {worst}, {100 * means[worst]:.1f} %")


def peak_error(row, found):
    """Predicted over printed peak of what an allocator holds, less 1; None where none is printed."""
    return float(found["allocated_GiB"]) / float(row["peak_memory_GiB"]) - 1 if row.get("peak_memory_GiB") else None


def summarise_memory(results):
    """All of these ran. Peaks are those that the sources print, of allocated or reserved bytes. Doubtful rows do not count."""
    results = [r for r in results if not doubtful(r)]
    refused = [r for r in results if not r["fits"]]
    print(f"memory: {len(refused)} of {len(results)} runs that ran are called out of memory: "
          + ", ".join(f"{name} ({n})" for name, n in Counter(r["group"] for r in refused).items()))
    groups = defaultdict(list)
    for r in results:
        if r["peak_error"] is not None:
            groups[r["group"]].append(r["peak_error"])
    for name, errors in sorted(groups.items()):
        print(f"{name:44} {len(errors):4d} peaks, {100 * statistics.mean(map(abs, errors)):.1f} % off, mean {100 * statistics.mean(errors):+.1f} %")
    errors = [error for some in groups.values() for error in some]
    if errors:
        print(f"{len(errors)} peaks: {100 * statistics.median(map(abs, errors)):.1f} % off at the median, "
              f"{100 * statistics.mean(map(abs, errors)):.1f} % in the mean")


PARTS = ("waits", "tp", "ep", "dp")


def print_parts(args, rows, models):
    """Rows of one benchmark by layout and number of GPUs: what of the predicted step waits and is exchanged unhidden, in % of
    it, with a chunk of the model a stage and with as many as it has layers; and the error of both."""
    rows = [row for row in rows if row["group"].startswith(args.parts)]
    layers = {model["model_id"]: int(model["n_layers"] or 0) for model in models}
    if not rows:
        sys.exit(f"error: --parts {args.parts}: expected the beginning of a group's name, found none that begins so")
    print(f"{'group':44} {'GPUs':>5} {'micro':>5} {'published':>9}   {'chunks':>6} {'predicted':>9} {'error %':>7} "
          + " ".join(f"{part + ' %':>7}" for part in PARTS))
    for chunked in (False, True):
        asked = [{**row, "vp": str(layers[row["model_id"]] // int(row["pp"])) if chunked else "1"} for row in rows]
        found = Simulator(args.program, asked, models, family_of(rows[0]), args.jobs).predict("preset")
        of_id = {row["row_id"]: row for row in asked}
        for row in sorted(found, key=lambda r: (r["group"], int(of_id[r["row_id"]]["n_gpus"]))):
            said, seconds = of_id[row["row_id"]], float(row["predicted_seconds"])
            micro = int(said["gbs_seqs"]) // int(said["dp"]) // int(said["mbs"] or 1)
            print(f"{row['group']:44} {said['n_gpus']:>5} {micro:5d} {float(row['published_seconds']):9.3f}   {said['vp']:>6} "
                  f"{seconds:9.3f} {100 * float(row['error']):7.1f} "
                  + " ".join(f"{100 * float(row[part]) / seconds:7.1f}" for part in PARTS))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", required=True, action="append")
    parser.add_argument("--models", required=True, action="append")
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/equipoise"))
    parser.add_argument("--json", help="also write all results to this file")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--parts", metavar="GROUP", help="only of groups that begin so: parts of their steps by number of GPUs")
    args = parser.parse_args()
    rows = read_tables(args.rows, ("gpu", "model_id", "step_time_s"))
    models = read_tables(args.models, ("model_id", "n_layers", "hidden"))
    with_stages(rows, models)
    if args.parts:
        return print_parts(args, rows, models)
    with_experts = {model["model_id"] for model in models if model.get("n_experts")}
    routed = {row.get("row_id") for row in rows if row["model_id"] in with_experts}
    results, excluded = [], []
    print(f"{'row':8} {'group':44} {'prec':10} {'recompute':10} {'published s':>11} {'predicted s':>11} {'error %':>8}")
    for family in FAMILIES:
        of_family = [row for row in rows if family_of(row) == family]
        if not of_family:
            continue
        simulator = Simulator(args.program, of_family, models, family, args.jobs)
        of_row = {row["row_id"]: row for row in of_family}
        for row in simulator.predict("preset"):
            published, predicted = float(row["published_seconds"]), float(row["predicted_seconds"])
            results.append({"row": row["row_id"], "group": row["group"], "benchmark": row["benchmark"],
                            "precision": row["precision"], "family": family,
                            "recompute": row["recompute"], "published": published, "predicted": predicted,
                            "error": predicted / published - 1, "fits": row["fits"] == "yes",
                            "peak_error": peak_error(of_row[row["row_id"]], row)})
            print(f"{row['row_id']:8} {row['group']:44} {row['precision']:10} {row['recompute']:10} "
                  f"{published:11.3f} {predicted:11.3f} {100 * results[-1]['error']:8.1f}")
        excluded += simulator.excluded
    add_constant(results, rows, models)
    print("\nexcluded:")
    for line in excluded:
        print(f"  {line}")
    print()
    summarise(results, lambda r: r["group"])
    print()
    summarise(results, lambda r: f"{r['family']} {r['precision']}", "preset and precision")
    print()
    summarise(results, lambda r: f"all {r['precision']}", "precision")
    print()
    summarise_experts([r for r in results if r["row"] in routed])
    print()
    summarise_memory(results)
    print(f"\n{len(results)} rows predicted, {len(excluded)} excluded (predicted: simulated; published: as printed by "
          "their sources)")
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    sys.exit(main())

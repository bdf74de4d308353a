#!/usr/bin/env python3
"""Makes the table of prediction intervals from published steps, and measures how often held-out sources lie inside.

  tests/published_errors.py --rows ROWS.csv --models MODELS.csv [--ratios FILE] [--program P] [--write]

Rows and models are those of published_steps.py, and vTrain's tables of A100 steps (published_a100.py); both options may be given
several times. Every row is predicted by the shipped preset. What a step's error hangs on is its kind: framework, dense or with experts, LoRA, architecture of the GPU, precision.
The steps of one benchmark are nearly one error, so each benchmark counts once, however many rows it has. The interval is centred on
the median over benchmarks of log(measured / predicted); its half-width is the 90 % quantile of the distance from there, widened by
1/K for K benchmarks, since the next one is none of them. Fewer than five have no interval, and a wider kind answers for them.

Slowdowns were fitted to some of the bf16 rows: --held-out FILE (fit_published_steps.py --errors FILE) has the errors of these by fits
that did not see them.

A ratio of two rows of one study is off by what their errors do not share. Steps of one group, model, number of GPUs, length, batch and
precision are such rows: two jobs. Rows of two policies come from --ratios FILE (./run.sh measured ... --ratios FILE). The interval is
symmetric, as either may be the first: the same quantile of what separates log(measured ratio) and log(predicted ratio), widened by
1/S for S sources: one source compares its rows in one way. vTrain's layouts say nothing here: its frameworks are of 2022.

The evaluation holds out whole sources (a repository or paper): a table is made of the other sources and asked about its rows.
--write puts the table of all rows into sim/framework/published_errors.json.
"""
import argparse
import itertools
import json
import math
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

import published_a100
import published_steps as steps
from published_settings import doubtful, with_stages

TABLE = steps.ROOT / "sim/framework/published_errors.json"
PRESETS = steps.ROOT / "sim/framework/presets"
LEVEL = 0.9
LEAST_BENCHMARKS = 5
ARCHITECTURES = {"Hopper": ("H100", "H200", "H800", "GH200", "H20"), "Blackwell": ("B200", "B300"), "Ampere": ("A100",),
                 "CDNA 3": ("MI300",)}
COORDINATES = ("framework", "experts", "lora", "architecture", "precision")
LADDER = (COORDINATES, COORDINATES[:4], COORDINATES[1:], COORDINATES[1:4], ("experts", "lora"), ("experts",), ())
# Of two rows: policies of one job, or two jobs on as many GPUs.
LADDER_OF_RATIOS = (("policies", "framework", "experts"), ("policies", "experts"), ("experts",), ())
ONE_STUDY = ("group", "model_id", "gpu", "n_gpus", "seq_len", "gbs_seqs", "precision")
DOUBTFUL_RATIOS = ("TRL",)  # three quarters of its steps are not the model's kernels


def kind_of(row, experts):
    architecture = next(name for name, words in ARCHITECTURES.items() if any(word in row["gpu"] for word in words))
    return {"framework": steps.family_of(row), "experts": experts, "lora": bool(row.get("lora")), "architecture": architecture,
            "precision": "fp8" if (row.get("precision") or "bf16").startswith("fp8") else "bf16"}


def source_of(row):
    """The repository or paper of a row; a sweep of layouts is one, and so are all rounds of MLPerf."""
    group = row["group"].split("_")[0] if row["group"].startswith("ultrascale") else row["group"]
    source = row.get("source") or group
    if paper := re.search(r"arxiv[^0-9]*(\d{4}\.\d{5})", source, re.IGNORECASE):
        return f"arXiv {paper[1]}"
    repository = re.match(r"(?:https://github\.com/)?([^@:\s]+)", source)[1]
    return re.sub(r"(mlcommons/training_results)_v[\d.]+$", r"\1", repository)


def weighted_quantile(values, level):
    """The value at or below which a share `level` of the weights lies: [(value, weight)]."""
    total = 0
    for value, weight in sorted(values):
        total += weight
        if total >= level - 1e-12:
            return value
    return max(values)[0]


def by_benchmark(evidence):
    groups = defaultdict(list)
    for e in evidence:
        groups[e["benchmark"]].append(e["log"])
    return groups


def interval(evidence, of_ratios=False):
    """(low, high, mean absolute error over benchmarks, rows, benchmarks); None where they are too few."""
    groups = by_benchmark(evidence)
    if len(groups) < LEAST_BENCHMARKS:
        return None
    center = 0 if of_ratios else statistics.median(statistics.median(logs) for logs in groups.values())
    alike = len({e["source"] for e in evidence}) if of_ratios else len(groups)
    weighted = [(abs(log - center), 1 / (len(groups) * len(logs))) for logs in groups.values() for log in logs]
    half = weighted_quantile(weighted, LEVEL) * (1 + 1 / alike)
    error = statistics.mean(statistics.mean(abs(math.expm1(-log)) for log in logs) for logs in groups.values())
    return math.exp(center - half), math.exp(center + half), error, len(evidence), len(groups)


def table_of(evidence, ladder=LADDER):
    """Kinds that have an interval, the narrowest first: [(what they have in common, interval)]."""
    table = []
    for keys in ladder:
        kinds = defaultdict(list)
        for e in evidence:
            kinds[tuple(e["kind"][key] for key in keys)].append(e)
        for values, members in sorted(kinds.items(), key=str):
            if found := interval(members, ladder is LADDER_OF_RATIOS):
                table.append((dict(zip(keys, values)), found))
    return table


def look_up(table, kind):
    """The interval of the narrowest kind that the steps are of; None where no kind has one."""
    return next((found for common, found in table if all(kind[key] == value for key, value in common.items())), None)


def ratios_of(evidence):
    """Pairs of steps of one study that are not predicted alike, by what their errors do not share."""
    studies = defaultdict(list)
    for e in evidence:
        studies[e["study"], e["source"], e["kind"]["framework"]].append(e)
    ratios = []
    for (_, source, framework), members in studies.items():
        for one, other in itertools.combinations(members, 2):
            if one["predicted"] != other["predicted"]:
                kind = {"policies": False, "framework": framework, "experts": one["kind"]["experts"]}
                ratios.append({"kind": kind, "benchmark": one["benchmark"], "source": source, "log": one["log"] - other["log"]})
    return ratios


def read_ratios(paths):
    """Ratios of two policies, which `measured --ratios` wrote: [{source, benchmark, framework, measured, predicted}]."""
    return [{"kind": {"policies": r["policies"], "framework": r["framework"], "experts": False}, "benchmark": r["benchmark"],
             "source": r["source"], "log": math.log(r["measured"] / r["predicted"])}
            for path in paths for r in json.loads(Path(path).read_text()) if r["source"] not in DOUBTFUL_RATIOS]


def evaluate(evidence, ladder=LADDER):
    """Holds out each source in its turn, and prints how many of its steps lie in the intervals that the others give."""
    held = []
    for source in sorted({e["source"] for e in evidence}):
        table = table_of([e for e in evidence if e["source"] != source], ladder)
        for e in evidence:
            if e["source"] == source and (found := look_up(table, e["kind"])):
                low, high = found[:2]
                held.append({**e, "inside": low <= math.exp(e["log"]) <= high, "half": (high - low) / 2})
    if not held:
        return
    print(f"{'held out by source':52} {'rows':>5} {'inside %':>9} {'mean half-width %':>18} {'mean |err| %':>13}")
    line = lambda name, some: print(
        f"{name:52} {len(some):5d} {100 * statistics.mean(e['inside'] for e in some):9.1f} "
        f"{100 * statistics.mean(e['half'] for e in some):18.1f} {100 * statistics.mean(abs(math.expm1(-e['log'])) for e in some):13.1f}")
    kinds = defaultdict(list)
    for e in held:
        kinds[", ".join(str(e["kind"][key]) for key in ladder[0])].append(e)
    for name, some in sorted(kinds.items()):
        line(name, some)
    groups = defaultdict(list)
    for e in held:
        groups[e["benchmark"]].append(e["inside"])
    line("all", held)
    print(f"each benchmark counting once: {100 * statistics.mean(statistics.mean(g) for g in groups.values()):.1f} % of {len(groups)}")


def evidence_of(program, jobs, family, rows, models, held_out):
    """What the steps of a preset show, one entry a row that can be simulated."""
    simulator = steps.Simulator(program, rows, models, family, jobs)
    with_experts = {model["model_id"] for model in models if model.get("n_experts")}
    of_id = {row["row_id"]: row for row in rows}
    evidence = []
    for found in simulator.predict("preset"):
        row = of_id[found["row_id"]]
        error = held_out.get(found["row_id"], float(found["predicted_seconds"]) / float(found["published_seconds"]) - 1)
        experts = row["model_id"] in with_experts or bool(row.get("ep")) and int(row["ep"]) > 1
        evidence.append({
            "kind": kind_of(row, experts), "benchmark": found["benchmark"], "log": -math.log1p(error),
            "study": tuple(str(row.get(key)) for key in ONE_STUDY), "predicted": float(found["predicted_seconds"]),
            "source": source_of(row)})
    for line in simulator.excluded:
        print(f"not predicted: {line}", file=sys.stderr)
    return evidence


def read_rows(tables, models):
    """Rows, models and vTrain's shapes. Rows that say of themselves that they are not comparable are excluded."""
    of_vtrain = [path for path in tables if "iteration time (ms)" in Path(path).read_text().splitlines()[0]]
    rows = steps.read_tables([path for path in tables if path not in of_vtrain], ("gpu", "model_id", "step_time_s"))
    models = steps.read_tables(models, ("model_id", "n_layers", "hidden"))
    with_stages(rows, models)
    a100, shapes = published_a100.read_rows(of_vtrain)
    # By the preset that was fitted to them, and by today's, whose slowdowns are carried over there.
    a100 = [{**row, "group": row["group"].split(", micro-batch")[0], "source": "vTrain"} for row in a100]
    rows += [{**row, "preset": published_a100.PRESET} for row in a100]
    rows += [{**row, "row_id": f"{row['row_id']} carried", "preset": "megatron", "zero": 0, "tp_overlap": 0} for row in a100]
    return [row for row in rows if not doubtful(row)], models, list(shapes.values())


def evidence_of_all(program, jobs, rows, models, held_out, shapes=()):
    """What the steps of all presets show. `shapes`: models of vTrain's rows, a table of other columns."""
    evidence = []
    for family in sorted({steps.family_of(row) for row in rows}):
        for known, is_vtrain in ((models, False), (shapes, True)):
            some = [row for row in rows if steps.family_of(row) == family and (row.get("source") == "vTrain") == is_vtrain]
            if some:
                evidence += evidence_of(program, jobs, family, some, known, held_out)
    return evidence


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", required=True, action="append")
    parser.add_argument("--models", required=True, action="append")
    parser.add_argument("--program", default=str(steps.ROOT / "build/release/bin/equipoise"))
    parser.add_argument("--held-out", metavar="FILE", help="errors of rows by fits that did not see them: {row_id: error}")
    parser.add_argument("--ratios", action="append", default=[], metavar="FILE", help="ratios of two policies")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write sim/framework/published_errors.json")
    args = parser.parse_args()
    held_out = json.loads(Path(args.held_out).read_text()) if args.held_out else {}
    rows, models, shapes = read_rows(args.rows, args.models)
    evidence = evidence_of_all(args.program, args.jobs, rows, models, held_out, shapes)
    if len(by_benchmark(evidence)) <= LEAST_BENCHMARKS:
        sys.exit(f"error: expected steps of at least {LEAST_BENCHMARKS + 1} benchmarks, found {len(by_benchmark(evidence))}")
    ratios = ratios_of([e for e in evidence if e["source"] != "vTrain"]) + read_ratios(args.ratios)
    tables = []
    for some, ladder in ((evidence, LADDER), (ratios, LADDER_OF_RATIOS)):
        evaluate(some, ladder)
        tables.append(table_of(some, ladder))
        for common, (low, high, error, rows, benchmarks) in tables[-1]:
            print(f"{str(list(common.values())):60} {low:6.3f} {high:6.3f}   {100 * error:5.1f} %  {rows:4d} of {benchmarks} benchmarks")
    if args.write:
        TABLE.write_text(json.dumps(file_of(evidence, *tables), indent=1) + "\n")


def kinds_of(table):
    kinds = []
    for common, (low, high, error, rows, benchmarks) in table:
        kind = dict(common)
        if "architecture" in kind:
            kind["gpus"] = list(ARCHITECTURES[kind["architecture"]])
        kinds.append(kind | {"low": round(low, 4), "high": round(high, 4), "rows": rows, "sources": benchmarks,
                             "mean_abs_error": round(error, 4)})
    return kinds


def file_of(evidence, table, ratios):
    seen = sorted({e["kind"]["architecture"] for e in evidence})
    return {
        "schema": "equipoise.errors/1",
        "about": "Measured over predicted seconds of published steps, and of the ratio of two of one study: 90 % intervals by kind, the "
                 "narrowest first (tests/published_errors.py)",
        "frameworks": sorted(path.stem for path in PRESETS.glob("*.json") if "kernels" in json.loads(path.read_text())),
        "gpus": [list(ARCHITECTURES[name]) for name in seen],
        "kinds": kinds_of(table),
        "ratios": kinds_of(ratios),
    }


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Fails where a change makes a kind of published steps worse: what an accepted fit may not do to the kinds that it did not see.

  tests/published_acceptance.py PROGRAM [--update]

EQUIPOISE_PUBLIC_DATA names a folder with step_times/*.csv; without it the test is skipped. published_kinds.json has what shipped
presets reach: by kind (published_errors.py) the mean absolute error over benchmarks, the standard error of that mean, and the number
of benchmarks. The first row of each group is predicted, since the rows of a group are nearly one error. A kind of four benchmarks
and more may become worse by one point, or by its standard error where that is more. --update refuses what is worse than that, and
writes the smaller of both errors with its own standard error, so that small steps do not add up. Whoever accepts more has to write it
into the file by hand.

A fit sees rows of its own kind, so that these are in sample; the table is about all others.
"""
import json
import math
import os
import statistics
import sys
from collections import defaultdict
from pathlib import Path

import published_errors
import published_steps as steps

TABLE = steps.ROOT / "tests/published_kinds.json"
ROWS = ("fresh_steps.csv", "h100_training_steps.csv", "h100_moe_steps.csv")
MODELS = ("models.csv", "moe_models.csv")
OWN_MODELS = steps.ROOT / "tests/published_models.csv"
LEAST_BENCHMARKS = 4
ONE_POINT = 0.01
SKIPPED = 77


def first_of_groups(rows):
    return list({row["group"]: row for row in reversed(rows) if row["step_time_s"]}.values())


def name_of(kind):
    return ", ".join([kind["framework"], "experts" if kind["experts"] else "dense", *["LoRA"] * kind["lora"],
                      kind["architecture"], kind["precision"]])


def kinds_of(evidence):
    """{kind: mean absolute error over benchmarks, its standard error, their number} of kinds with enough of them."""
    by_kind = defaultdict(list)
    for e in evidence:
        by_kind[name_of(e["kind"])].append(e)
    kinds = {}
    for name, members in sorted(by_kind.items()):
        benchmarks = published_errors.by_benchmark(members).values()
        errors = [statistics.mean(abs(math.expm1(-log)) for log in logs) for logs in benchmarks]
        if len(errors) >= LEAST_BENCHMARKS:
            kinds[name] = {"mean_abs_error": round(statistics.mean(errors), 4),
                           "standard_error": round(statistics.stdev(errors) / math.sqrt(len(errors)), 4), "benchmarks": len(errors)}
    return kinds


def worse(stated, found):
    """What breaks the rule, one line a kind."""
    for name, was in stated.items():
        now = found.get(name, {"mean_abs_error": math.inf, "benchmarks": 0})
        allowed = was["mean_abs_error"] + max(ONE_POINT, was["standard_error"])
        if now["benchmarks"] < was["benchmarks"]:
            yield f"{name}: {was['benchmarks']} benchmarks were predicted, now {now['benchmarks']}"
        if now["mean_abs_error"] > allowed:
            yield (f"{name}: {100 * was['mean_abs_error']:.1f} % before, now {100 * now['mean_abs_error']:.1f}, "
                   f"allowed {100 * allowed:.1f} ({was['benchmarks']} benchmarks)")


def kept(was, now):
    """What to state. The old error keeps its old standard error, since a larger one would allow more."""
    return now if was is None or now["mean_abs_error"] <= was["mean_abs_error"] else {**was, "benchmarks": now["benchmarks"]}


def main():
    folder = os.environ.get("EQUIPOISE_PUBLIC_DATA")
    if not folder:
        print("skipped: EQUIPOISE_PUBLIC_DATA names no folder with the published steps")
        return SKIPPED
    of = lambda names: [Path(folder) / "step_times" / name for name in names]
    rows, models, _ = published_errors.read_rows(of(ROWS), [*of(MODELS), OWN_MODELS])
    found = kinds_of(published_errors.evidence_of_all(sys.argv[1], 2, first_of_groups(rows), models, {}))
    stated = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    broken = list(worse(stated, found))
    for name, now in found.items():
        was = f"{100 * stated[name]['mean_abs_error']:.1f}" if name in stated else "-"
        print(f"{name:44} {now['benchmarks']:3d} benchmarks  stated {was:>5} %  now {100 * now['mean_abs_error']:5.1f} %")
    for line in broken:
        print(f"worse: {line}")
    if "--update" in sys.argv[2:] and not broken:
        TABLE.write_text(json.dumps({name: kept(stated.get(name), now) for name, now in found.items()}, indent=1) + "\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

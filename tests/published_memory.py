#!/usr/bin/env python3
"""Memory verdicts compared with layouts that ran and layouts that crashed.

  tests/published_memory.py --rows ultrascale_h100_steps.csv --models ultrascale_models.csv [--out page.json]

Every row of a sweep of layouts is simulated as `equipoise study` would: documents of one length, the shipped preset of
its framework, nothing set but what the row states. What we say (fits, out of memory, refused: the framework's own
division of layers leaves a stage without a block) is compared with what happened (ran, crashed). A crash gives no reason in the table: layouts with fewer micro-batches than stages - 1 are excluded, since
that framework refuses them whatever the memory; the others may still have crashed for another reason, so a crash that
we say fits is an upper bound of our optimism. Where a row without a pipeline ran and printed its peak, the error of ours
is compared, too: the framework prints GiB that its allocator has reserved on rank 0 (huggingface/nanotron@67c5ebb6,
helpers.py), and rank 0 has a pipeline's first stage, which need not be the fullest.

What is said of crashes is not fitted. --slack prints what such peaks of one size of model ask the preset's allocator_slack
to be, and how far off the peaks of the others then are. Columns: see the README of the table.
"""
import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GIB = 2**30
SAID = ("fits", "out of memory", "refused")
RESERVE_GIB = 3.5  # of the profile: context and communicators, which an allocator does not count


def model_of(model):
    number = {key: int(model[key]) for key in ("n_layers", "hidden", "n_heads", "n_kv_heads", "head_dim", "ffn_hidden", "vocab")}
    return {"name": model["model_id"], "layers": number["n_layers"], "hidden": number["hidden"], "heads": number["n_heads"],
            "kv_heads": number["n_kv_heads"], "head_dim": number["head_dim"], "ffn": number["ffn_hidden"],
            "vocab": number["vocab"], "gated_ffn": model["gated_mlp"] == "1", "tied_embeddings": model["tied_embeddings"] == "1"}


def study_of(row, models, framework):
    n = {key: int(row[key]) for key in ("tp", "pp", "dp", "zero", "mbs", "gbs_seqs", "seq_len", "n_gpus", "nodes")}
    return {"trace": {"uniform": n["seq_len"]}, "model": model_of(models[row["model_id"]]),
            "cluster": {"profile": "h100-sxm", "gpus_per_node": n["n_gpus"] // n["nodes"]},
            "parallel": {"tensor": n["tp"], "pipeline": n["pp"], "data": n["dp"], "zero": n["zero"]},
            "batch": {"context_window": n["seq_len"], "sequences_per_step": n["gbs_seqs"], "micro_batch_size": n["mbs"], "steps": 1},
            "framework": framework, "policies": ["plain"]}


def verdict_of(program, study):
    """("fits", "out of memory" or "refused", peak bytes, reason)."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(study, file)
        file.flush()
        done = subprocess.run([program, "study", file.name, "--format", "json", "--quiet", "--jobs", "1", "--ignore-memory"],
                              capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return "refused", None, done.stderr.strip().splitlines()[-1].partition(".json: ")[2]
    row = json.loads(done.stdout)["policies"][0]
    if row["status"] == "refused":
        return "refused", None, row["reason"]
    return SAID[row["status"] != "ok"], row["metrics"]["peak_memory_bytes"], row["reason"] or ""


def share(part, whole):
    return f"{part} of {whole} ({100 * part / whole:.1f} %)" if whole else "0 of 0"


def table_of(judged):
    said = Counter((row["status"], verdict) for row, verdict, _ in judged)
    lines = ["| | " + " | ".join(f"said: {verdict}" for verdict in SAID) + " |", "| --- |" + " ---: |" * len(SAID)]
    for status, name in (("ok", "ran"), ("crashed", "crashed")):
        lines.append(f"| {name} | " + " | ".join(str(said[status, verdict]) for verdict in SAID) + " |")
    right = sum(count for (status, verdict), count in said.items() if (status == "ok") == (verdict == "fits"))
    return lines, right, sum(said.values())


def printed_peaks(judged):
    """(row, our bytes, printed bytes) where both are of one rank."""
    return [(row, peak, float(row["memory_GB"]) * GIB) for row, _, peak in judged
            if peak and row["status"] == "ok" and row["memory_GB"] and row["pp"] == "1"]


def print_slack(program, pool, kept, models, framework):
    """The slack that printed peaks ask for at the median (a host that is not ahead leaves some far lower); each size of
    model by the others."""
    rows = [row for row in kept if row["status"] == "ok" and row["memory_GB"] and row["pp"] == "1"]
    peaks = [list(pool.map(lambda row: verdict_of(program, study_of(row, models, {"preset": framework, "allocator_slack": slack}))[1],
                           rows)) for slack in (0, 1)]
    of_size = defaultdict(list)
    for row, none, whole in zip(rows, *peaks):
        of_size[row["model_id"]].append((none - RESERVE_GIB * GIB, whole - none, float(row["memory_GB"]) * GIB))
    median = lambda points: statistics.median((printed - none) / moves for none, moves, printed in points)
    for model, points in sorted(of_size.items()):
        slack = median([point for other, theirs in of_size.items() if other != model for point in theirs])
        off = statistics.median(abs((none + slack * moves) / printed - 1) for none, moves, printed in points)
        print(f"{model}: slack {slack:.3f} of the others, {len(points)} peaks {100 * off:.1f} % off at the median")
    print(f"slack of all: {median([point for points in of_size.values() for point in points]):.3f}")


def print_report(judged, refused):
    for model in (None, *sorted({row["model_id"] for row, _, _ in judged})):
        chosen = [entry for entry in judged if model in (None, entry[0]["model_id"])]
        lines, right, count = table_of(chosen)
        print(f"\n{model or 'all layouts'}: right on {share(right, count)}\n")
        print("\n".join(lines))
    ratios = defaultdict(list)
    for row, peak, printed in printed_peaks(judged):
        ratios[row["model_id"]].append((peak - RESERVE_GIB * GIB) / printed)
    for model, values in sorted(ratios.items()):
        off = statistics.median(abs(v - 1) for v in values)
        print(f"\n{model}: predicted peak over printed peak of {len(values)} layouts that ran without a pipeline: "
              f"median {statistics.median(values):.3f}, median error {100 * off:.1f} %")
    optimistic = [(row, peak) for row, verdict, peak in judged if verdict == "fits" and row["status"] == "crashed"]
    by_use = Counter(min(9, int(10 * peak / GIB / 80)) for _, peak in optimistic)
    print("\ncrashed, and said to fit, by the share of 80 GiB that we say it needs: "
          + ", ".join(f"{10 * tenth} to {10 * tenth + 10} %: {n}" for tenth, n in sorted(by_use.items())))
    for reason, count in Counter(refused).most_common(3):
        print(f"refused: {count} x {reason}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--framework", default="nanotron")
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/equipoise"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--slack", action="store_true", help="only what printed peaks ask the preset's allocator_slack to be")
    parser.add_argument("--out", help="every row's verdict, as CSV")
    args = parser.parse_args()
    try:
        models = {m["model_id"]: m for m in csv.DictReader(open(args.models, newline="", encoding="utf-8"))}
        rows = list(csv.DictReader(open(args.rows, newline="", encoding="utf-8")))
    except OSError as error:
        sys.exit(f"error: {error}")
    kept = [row for row in rows if int(row["grad_acc"]) >= int(row["pp"]) - 1]
    print(f"{len(rows)} layouts, {len(rows) - len(kept)} excluded: fewer micro-batches than stages - 1")
    with ThreadPoolExecutor(args.jobs) as pool:
        if args.slack:
            return print_slack(args.program, pool, kept, models, args.framework)
        verdicts = list(pool.map(lambda row: verdict_of(args.program, study_of(row, models, args.framework)), kept))
    judged = [(row, verdict, peak) for row, (verdict, peak, _) in zip(kept, verdicts)]
    if args.out:
        with open(args.out, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["row_id", "status", "said", "peak_GiB", "printed_GiB"])
            for row, verdict, peak in judged:
                writer.writerow([row["row_id"], row["status"], verdict, f"{peak / GIB:.2f}" if peak else "", row["memory_GB"]])
    print_report(judged, [reason for verdict, _, reason in verdicts if verdict == "refused"])


if __name__ == "__main__":
    main()

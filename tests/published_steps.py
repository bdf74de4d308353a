#!/usr/bin/env python3
"""Predicts published training steps and prints the error of each: the simulator's truth test.

Every row of a table of published H100 training runs becomes a study with documents of one length (as published
benchmarks train), is run with the equipoise program, and its predicted step time stands beside the published one.

  tests/published_steps.py --rows h100_training_steps.csv --models models.csv [--program build/release/bin/equipoise]

Columns of the rows: row_id, group, gpu, n_gpus, model_id, layers_run, seq_len, tp, cp, pp, vp, dp, fsdp_shard, mbs,
gbs_seqs, precision, act_recompute, step_time_s. Of the models: model_id, n_layers, hidden, n_heads, n_kv_heads,
ffn_hidden, gated_mlp, vocab. A row qualifies if it has a step time, a layout and a batch; an empty recompute means
the cheapest of none, selective and full that fits in memory, an empty vp means 1. What does not qualify is listed.

Options of a run (--options) are per framework family, never per row or model; see FAMILIES.
"""
import argparse
import csv
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Per framework family: what it overlaps and shards by default (from its documentation: NeMo and Megatron-Bridge run
# with TP overlap, the distributed optimizer and overlapped parameter gathering; FSDP frameworks shard everything), and
# how much slower its kernels run in long training than alone (power limit, unlike shapes, unfused elementwise kernels).
# The slowdowns are those that fit_published_steps.py finds on all bf16 rows of the family; it also says how wrong they
# are on benchmarks that it leaves out, which is the error to quote.
FAMILIES = {
    "megatron": {"zero": 1, "framework": {"tp_overlap": True, "overlap_param_gather": True, "gradient_bytes": 2,
                                          "gemm_slowdown": 1.214, "attention_slowdown": 1, "elementwise_slowdown": 1.441}},
    "fsdp": {"zero": 3, "framework": {"tp_overlap": False, "gradient_bytes": 4, "attention_kernel": "flash-attention-2",
                                      "gemm_slowdown": 1.163, "attention_slowdown": 1.905,
                                      "elementwise_slowdown": 1.629}},
    "torchtitan": {"zero": 3, "framework": {"tp_overlap": False, "gradient_bytes": 4,
                                            "attention_kernel": "flash-attention-2", "gemm_slowdown": 1.894,
                                            "attention_slowdown": 1.285, "elementwise_slowdown": 1.043}},
}


def family_of(row):
    if row["group"].startswith(("titan", "aws")):
        return "torchtitan"
    return "fsdp" if row["group"].startswith(("mpt", "fms")) else "megatron"


def stem(group):
    """The benchmark that a group is one version or precision of: rows of one stem differ little."""
    return re.sub(r"_(bf16|fp8|fp8-linear)?_?(v?[0-9.]+)?$", "", group)


def number(text):
    return float(text) if text not in ("", None) else None


def profile_of(row):
    return "h200-sxm" if "H200" in row["gpu"] else "h100-sxm"


def why_not(row, models):
    """The reason a row does not qualify, or None."""
    if not row["step_time_s"]:
        return "no step time"
    if row["model_id"] not in models:
        return "unknown model"
    for key in ("seq_len", "tp", "cp", "pp", "dp", "gbs_seqs"):
        if not row[key]:
            return f"no {key}"
    if not row["mbs"]:
        return "no micro-batch size"
    if row["precision"] not in ("bf16", "fp8", "fp8-linear"):
        return f"precision {row['precision']}"
    recompute = row["act_recompute"].split(" ")[0]
    if recompute not in ("", "none", "selective", "full"):
        return f"recompute {row['act_recompute']}"
    return None


def shape_of(row, models):
    m = models[row["model_id"]]
    return {
        "name": row["model_id"], "layers": int(row["layers_run"] or m["n_layers"]), "hidden": int(m["hidden"]),
        "heads": int(m["n_heads"]), "kv_heads": int(m["n_kv_heads"] or m["n_heads"]), "ffn": int(m["ffn_hidden"]),
        "vocab": int(m["vocab"]), "gated_ffn": m["gated_mlp"] == "1",
    }


def study_of(row, models, recompute):
    family = FAMILIES[family_of(row)]
    window = int(row["seq_len"])
    zero = family["zero"]
    if zero == 3 and int(row["pp"]) > 1:
        zero = 1  # PyTorch's pipelining holds parameters and gradients whole, and reduces after the last backward
    if "SHARD_GRAD_OP" in row["notes"]:
        zero = 2
    parallel = {
        "tensor": int(row["tp"]), "context": int(row["cp"]), "pipeline": int(row["pp"]), "data": int(row["dp"]),
        "virtual_pipeline": int(row["vp"] or 1), "zero": zero, "recompute": recompute,
    }
    if "ring" in row["notes"]:
        parallel["context_comm"] = "ring"
    cluster = {"profile": profile_of(row), "gpus_per_node": min(8, int(row["n_gpus"]))}
    if row["act_recompute"]:
        cluster["memory_GB"] = 1e6  # the run existed: its time is asked, not whether it fits
    return {
        "name": row["row_id"], "trace": {"uniform": window}, "model": shape_of(row, models),
        "cluster": cluster,
        "parallel": parallel, "framework": family["framework"],
        "batch": {"context_window": window, "sequences_per_step": int(row["gbs_seqs"]),
                  "micro_batch_size": int(row["mbs"]), "steps": 1},
        "precision": "bf16" if row["precision"] == "bf16" else "fp8",
        "policies": ["plain"],
    }


def simulate(program, study):
    """Metrics of the only policy and whether it fits; raises RuntimeError with the program's message."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(study, file)
        file.flush()
        run = subprocess.run([program, "study", file.name, "--format", "json", "--jobs", "1", "--quiet"],
                             capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise RuntimeError(run.stderr.strip())
    policy = json.loads(run.stdout)["policies"][0]
    return policy["metrics"]["step_seconds"], policy["status"]


def predict(program, row, models):
    given = row["act_recompute"].split(" ")[0]
    modes = [given] if given else ["none", "selective", "full"]
    error = "does not fit in memory with any recompute mode"
    for mode in modes:
        try:
            seconds, status = simulate(program, study_of(row, models, mode))
        except RuntimeError as failure:
            return None, mode, str(failure)
        if status == "ok":
            return seconds, mode, ""
    return None, modes[-1], error


def summarise(results, key):
    groups = defaultdict(list)
    for r in results:
        groups[key(r)].append(r["error"])
    print(f"{'group':44} {'rows':>4} {'mean |err| %':>12} {'mean err %':>11} {'worst %':>8}")
    for name, errors in sorted(groups.items()):
        worst = max(errors, key=abs)
        print(f"{name:44} {len(errors):4d} {100 * statistics.mean(map(abs, errors)):12.1f} "
              f"{100 * statistics.mean(errors):11.1f} {100 * worst:8.1f}")


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


def read_rows(rows_path, models_path):
    """Models by id, the rows that qualify, and (row id, reason) of those that do not."""
    models = {m["model_id"]: m for m in read_table(models_path, ("model_id", "n_layers", "hidden"))}
    rows = read_table(rows_path, ("row_id", "group", "gpu", "model_id", "step_time_s"))
    left_out = [(r["row_id"], why_not(r, models)) for r in rows if why_not(r, models)]
    return models, [r for r in rows if not why_not(r, models)], left_out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/equipoise"))
    parser.add_argument("--families", help="JSON file that replaces the family parameters, as fit_published_steps.py writes it")
    parser.add_argument("--json", help="also write all results to this file")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    if args.families:
        FAMILIES.update(json.loads(Path(args.families).read_text()))
    models, rows, left_out = read_rows(args.rows, args.models)
    with ThreadPoolExecutor(args.jobs) as pool:
        predictions = list(pool.map(lambda r: predict(args.program, r, models), rows))
    results = []
    print(f"{'row':8} {'group':44} {'prec':10} {'recompute':10} {'published s':>11} {'predicted s':>11} {'error %':>8}")
    for row, (seconds, mode, why) in zip(rows, predictions):
        published = number(row["step_time_s"])
        if seconds is None:
            left_out.append((row["row_id"], why))
            continue
        error = seconds / published - 1
        results.append({"row": row["row_id"], "group": row["group"], "precision": row["precision"], "family": family_of(row),
                        "recompute": mode, "published": published, "predicted": seconds, "error": error})
        print(f"{row['row_id']:8} {row['group']:44} {row['precision']:10} {mode:10} {published:11.3f} {seconds:11.3f} {100 * error:8.1f}")
    print("\nleft out:")
    for row_id, why in left_out:
        print(f"  {row_id}: {why}")
    print()
    summarise(results, lambda r: r["group"])
    print()
    summarise(results, lambda r: f"{r['family']} {r['precision']}")
    print()
    summarise(results, lambda r: f"all {r['precision']}")
    print(f"\n{len(results)} rows predicted, {len(left_out)} left out (predicted: simulated; published: as printed by their sources)")
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    sys.exit(main())

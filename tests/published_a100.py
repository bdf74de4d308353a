#!/usr/bin/env python3
"""Predicts published A100 steps with `a100-sxm`, a profile derived from the H100's by rule but for collectives of a node.

  tests/published_a100.py --rows a100_single_node.csv --rows a100_multi_node.csv [--program EQUIPOISE]

Rows as vTrain (github.com/VIA-Research/vTrain, MIT) publishes them: "# GPUs", "global batch", "micro batch",
"hidden size", "attention heads", "# layers", "sequence length", the three degrees of parallelism, "iteration
time (ms)". What the rows do not say is read off its configuration: GPT with 4 x
hidden, vocabulary 50,257 (padded to 51,200), every layer recomputed, 1F1B. The framework is Megatron-LM as of
then, the preset `megatron-2022`: nothing overlapped, no ZeRO, attention's scores written to memory, and a host that
small models wait for. tests/fit_published_steps.py fits its three numbers to these rows. Next to ours: the constant share of
peak that is the median of all other groups.
"""

import argparse
import statistics
import sys
from collections import defaultdict
from pathlib import Path

import published_steps as steps

PEAK = 312e12
PRESET = "megatron-2022"
VOCABULARY = 51200


def column(row, name):
    return int(float(row[name]))


def rows_and_models(table, name):
    """Rows as `fit --steps` reads them, and their model's shape."""
    rows, models = [], {}
    for i, row in enumerate(table):
        hidden, layers = column(row, "hidden size"), column(row, "# layers")
        model = f"gpt-{hidden}-{layers}"
        models[model] = {
            "model_id": model,
            "n_layers": layers,
            "hidden": hidden,
            "n_heads": column(row, "attention heads"),
            "n_kv_heads": column(row, "attention heads"),
            "ffn_hidden": 4 * hidden,
            "gated_mlp": 0,
            "vocab": VOCABULARY,
        }
        rows.append(
            {
                "row_id": f"{name}{i}",
                "group": f"{name}, hidden {hidden}, micro-batch {column(row, 'micro batch')}",
                "gpu": "A100",
                "model_id": model,
                "seq_len": column(row, "sequence length"),
                "tp": column(row, "tensor parallelism"),
                "cp": 1,
                "pp": column(row, "pipeline parallelism"),
                "dp": column(row, "data parallelism"),
                "mbs": column(row, "micro batch"),
                "gbs_seqs": column(row, "global batch"),
                "act_recompute": "full",
                "step_time_s": float(row["iteration time (ms)"]) / 1e3,
            }
        )
    return rows, models


def read_rows(paths):
    """Rows of vTrain's tables and the shapes of their models, by name."""
    rows, models = [], {}
    for path in paths:
        found, shapes = rows_and_models(
            steps.read_table(path, ("hidden size", "iteration time (ms)")),
            "multi-node" if "multi" in Path(path).name else "one node",
        )
        rows, models = rows + found, {**models, **shapes}
    return rows, models


def flops(row, model):
    """Model FLOPs of a step: causal attention, nothing twice."""
    tokens = row["gbs_seqs"] * row["seq_len"]
    matrices = model["n_layers"] * 12 * model["hidden"] ** 2 + model["hidden"] * VOCABULARY
    return tokens * (6 * matrices + 6 * model["n_layers"] * row["seq_len"] * model["hidden"])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", required=True, action="append")
    parser.add_argument("--program", default=str(steps.ROOT / "build/release/bin/equipoise"))
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    rows, models = read_rows(args.rows)
    simulator = steps.Simulator(args.program, rows, list(models.values()), PRESET, args.jobs)
    predicted = {row["row_id"]: float(row["predicted_seconds"]) for row in simulator.predict("preset")}
    groups = defaultdict(list)
    for row in rows:
        if row["row_id"] in predicted:
            ideal = flops(row, models[row["model_id"]]) / (row["tp"] * row["pp"] * row["dp"] * PEAK)
            groups[row["group"]].append((row["step_time_s"], predicted[row["row_id"]], ideal))
    print(
        f"{'group':44} {'rows':>4} {'mean |err| %':>12} {'mean err %':>11} {'worst %':>8} "
        f"{'constant |err| %':>16}"
    )
    total, total_constant = [], []
    for name, members in sorted(
        groups.items(),
        key=lambda item: [int(w) if w.isdigit() else w for w in item[0].replace(",", "").split()],
    ):
        constant = statistics.median(
            t / ideal for other, found in groups.items() if other != name for t, _, ideal in found
        )
        errors = [p / t - 1 for t, p, _ in members]
        constants = [constant * ideal / t - 1 for t, _, ideal in members]
        total, total_constant = total + errors, total_constant + constants
        print(line(name, errors, constants))
    print(line("all", total, total_constant))
    for text in simulator.excluded:
        print(f"excluded: {text}")


def line(name, errors, constants):
    return (
        f"{name:44} {len(errors):4d} {100 * statistics.mean(map(abs, errors)):12.1f} "
        f"{100 * statistics.mean(errors):11.1f} "
        f"{100 * max(errors, key=abs):8.1f} {100 * statistics.mean(map(abs, constants)):16.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())

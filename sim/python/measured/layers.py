"""Transformer layers that this project timed on a GPU (profiler/measured), and the same layers in a study.

No fit saw these times. What is predicted is what two more layers add to a step: attention by FlashAttention-2's table, all
kernels at their benchmark speed, no optimizer and no gradients to reduce, as in the measurement.
"""

import json
from pathlib import Path
from statistics import median

from .runs import Run, Step, predict

MEASURED = Path(__file__).resolve().parents[3] / "profiler/measured/h200-2026-11-27-torch.json"
SHAPE = {"name": "layers", "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336, "vocab": 1024}
FRAMEWORK = {
    "preset": "none",
    "attention_kernel": "flash-attention-2",
    "optimizer_step": False,
    "reduce_gradients": False,
}


def study_of(layers, profile):
    return {
        "model": dict(SHAPE, layers=layers),
        "cluster": {"profile": profile},
        "parallel": {"tensor": 1, "data": 1},
        "framework": FRAMEWORK,
    }


def predict_layers(program, folder, measured, profile="h200-sxm"):
    """Seconds of the measured number of layers, forward and backward, for each of the measured packings."""
    steps = [Step([[row["documents"]]]) for row in measured]
    layers = measured[0]["layers"]
    fewer, more = (
        predict(program, Run(f"{n} layers", study_of(n, profile), steps), folder / str(n))
        for n in (layers, 2 * layers)
    )
    return [b - a for a, b in zip(fewer, more)]


def packings():
    """The measured layers without their times."""
    rows = json.loads(MEASURED.read_text(encoding="utf-8"))["layers"]
    return [{key: row[key] for key in ("compiled", "layers", "documents")} for row in rows]


def layer_table(predicted):
    """Markdown: a line for each way of running and number of tokens. `predicted`: seconds of each of `packings`."""
    rows = json.loads(MEASURED.read_text(encoding="utf-8"))["layers"]
    groups = {}
    for row, seconds in zip(rows, predicted):
        groups.setdefault((row["compiled"], sum(row["documents"])), []).append((row["seconds"], seconds))
    lines = [
        "| PyTorch 2.11 | tokens | packings | measured ms | predicted ms | error, median | beside that: median | worst |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (compiled, tokens), pairs in groups.items():
        errors = [p / m - 1 for m, p in pairs]
        apart = [abs((1 + e) / (1 + median(errors)) - 1) for e in errors]
        ends = [f"{1e3 * min(v):.1f} to {1e3 * max(v):.1f}" for v in zip(*pairs)]
        lines.append(
            f"| {'compiled' if compiled else 'eager'} | {tokens:,} | {len(pairs)} | {ends[0]} | {ends[1]} "
            f"| {100 * median(errors):+.1f} % | {100 * median(apart):.1f} % | {100 * max(apart):.1f} % |"
        )
    return "\n".join(lines)

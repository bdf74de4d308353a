"""Transformer layers that this project timed on a GPU (profiler/measured), and the same layers in a study.

No fit saw these times. What is predicted is what two more layers add to a step: attention by FlashAttention-2's table, all
kernels at their benchmark speed, no optimizer and no gradients to reduce, as in the measurement.
"""

import json
from pathlib import Path
from statistics import median

from .runs import Run, Step, predict

MEASURED = Path(__file__).resolve().parents[3] / "profiler/measured"
GPUS = {"h100": "h100-sxm", "h200": "h200-sxm"}  # where it was measured, and the profile of that GPU
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


def measured_rows(gpu):
    return json.loads((MEASURED / f"{gpu}-2026-11-27-torch.json").read_text(encoding="utf-8"))["layers"]


def packings():
    """The measured layers of every GPU, without their times."""
    keys = ("compiled", "layers", "documents")
    return {gpu: [{key: row[key] for key in keys} for row in measured_rows(gpu)] for gpu in GPUS}


def predict_layers(program, folder, packings):
    """Seconds of the measured number of layers, forward and backward, for each of every GPU's packings."""
    predicted = {}
    for gpu, rows in packings.items():
        steps = [Step([[row["documents"]]]) for row in rows]
        layers = rows[0]["layers"]
        fewer, more = (
            predict(program, Run(f"{n} layers", study_of(n, GPUS[gpu]), steps), folder / gpu / str(n))
            for n in (layers, 2 * layers)
        )
        predicted[gpu] = [b - a for a, b in zip(fewer, more)]
    return predicted


def layer_table(predicted):
    """A Markdown table with a line for each GPU, way of running and number of tokens. `predicted` comes from
    predict_layers."""
    groups = {}
    for gpu, seconds_of in predicted.items():
        for row, seconds in zip(measured_rows(gpu), seconds_of):
            key = (gpu.upper(), row["compiled"], sum(row["documents"]))
            groups.setdefault(key, []).append((row["seconds"], seconds))
    lines = [
        "| GPU | PyTorch 2.11 | tokens | packings | measured ms | predicted ms | error, median | spread around it: median | worst |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (gpu, compiled, tokens), pairs in groups.items():
        errors = [p / m - 1 for m, p in pairs]
        apart = [abs((1 + e) / (1 + median(errors)) - 1) for e in errors]
        ends = [f"{1e3 * min(v):.1f} to {1e3 * max(v):.1f}" for v in zip(*pairs)]
        lines.append(
            f"| {gpu} | {'compiled' if compiled else 'eager'} | {tokens:,} | {len(pairs)} | {ends[0]} | {ends[1]} "
            f"| {100 * median(errors):+.1f} % | {100 * median(apart):.1f} % | {100 * max(apart):.1f} % |"
        )
    return "\n".join(lines)

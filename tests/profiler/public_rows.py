"""Public tables in other columns, rewritten as `equipoise fit` reads them (profiler/README.md, "Making one")."""
import csv
import gzip
import statistics
from collections import defaultdict
from pathlib import Path

ATTENTION = ("gpu", "kernel", "dtype", "pass", "mask", "layout", "batch", "seq_q", "seq_kv", "n_q_heads", "n_kv_heads",
             "head_dim", "time_ms", "tflops", "method", "source", "notes")
GEMM = ("gpu", "op", "M", "N", "K", "dtype", "time_ms", "method", "source")
# PyTorch's linear layer, by the newest collectors: versions of cuBLAS that differ by 2 to 6 % on one shape.
LINEAR_LAYERS = ("0.24.0", "0.5.14", "1.3.0rc20")
COLLECTED = "https://github.com/ai-dynamo/aiconfigurator@095f58a51c4c:aic-core/src/aiconfigurator_core/systems/data"
VARLEN = "https://github.com/hao-ai-lab/DistCA"
# Below these the host, which is inside the times, is a tenth of a call.
SHORTEST_SYNCHRONISED_MS, SHORTEST_MS = 2.0, 0.5


def rows_of(path):
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path)
    with opened as lines:
        yield from csv.DictReader(lines)


def write(path, columns, rows):
    with open(path, "w", newline="") as out:
        writer = csv.DictWriter(out, columns, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def varlen_attention(data):
    """FlashAttention-2 on packed documents: equal ones both ways, and lists of unequal ones forward."""
    for row in rows_of(data / "fa2_varlen.csv"):
        if "deterministic" in row["source"]:  # another kernel backward
            continue
        tokens, count = int(row["tokens"]), int(row["documents"])
        made = {"kernel": "FlashAttention-2", "dtype": "bf16", "mask": "causal", "head_dim": 128,
                "method": "published time", "source": f"{VARLEN}@{row['source'].split(' ')[-1]}"}
        if row["lengths"]:
            yield {**made, "gpu": "H100 (Modal)", "pass": "fwd", "layout": f"documents of {row['lengths']}", "batch": 1,
                   "seq_q": tokens, "seq_kv": tokens, "n_q_heads": 64, "n_kv_heads": 4, "time_ms": row["fwd_ms"]}
            continue
        for name in ("fwd", "bwd"):
            if float(row[f"{name}_ms"]) < SHORTEST_SYNCHRONISED_MS or float(row[f"{name}_sd"]) > 0.1 * float(row[f"{name}_ms"]):
                continue
            yield {**made, "gpu": "not named (DistCA)", "pass": name, "layout": f"varlen: {count} equal documents",
                   "batch": count, "seq_q": tokens // count, "seq_kv": tokens // count, "n_q_heads": row["heads"],
                   "n_kv_heads": row["heads"], "time_ms": row[f"{name}_ms"]}
    for row in rows_of(data / "attention_kernels.csv"):  # few queries at the end of longer keys
        if row["kernel"].startswith("vllm-flash-attn") and float(row["time_ms"]) >= SHORTEST_MS:
            yield {**row, "kernel": "FlashAttention-2"}


def linear_layers(data):
    """The median over the newest frameworks of each shape, bf16."""
    times = defaultdict(list)
    for row in rows_of(data / "gemm_forward.csv.gz"):
        if row["dtype"] == "bfloat16" and row["version"] in LINEAR_LAYERS:
            times[row["gpu"], row["M"], row["N"], row["K"]].append(float(row["time_ms"]))
    for (gpu, m, n, k), several in times.items():
        yield {"gpu": gpu, "op": "linear", "M": m, "N": n, "K": k, "dtype": "bf16", "time_ms": statistics.median(several),
               "method": "median of three frameworks' linear layers", "source": f"{COLLECTED}/{gpu.lower()}_sxm"}


def rewritten(data, folder):
    """The files, as CSV in `folder`."""
    return [write(Path(folder) / "linear_layers.csv", GEMM, linear_layers(data)),
            write(Path(folder) / "varlen_attention.csv", ATTENTION, varlen_attention(data))]

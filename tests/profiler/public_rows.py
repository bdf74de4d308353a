"""Public tables in other columns, rewritten as `equipoise fit` reads them (docs/reference/formats.md)."""
import csv
import gzip
import statistics
from collections import defaultdict
from pathlib import Path

ATTENTION = ("gpu", "kernel", "dtype", "pass", "mask", "layout", "batch", "seq_q", "seq_kv", "n_q_heads", "n_kv_heads",
             "head_dim", "time_ms", "tflops", "method", "source", "notes")
GEMM = ("gpu", "op", "M", "N", "K", "dtype", "time_ms", "method", "source", "groups", "next_N", "next_K", "moved_bytes",
        "hidden", "inter", "experts")
# PyTorch's linear layer, by the newest collectors: versions of cuBLAS that differ by 2 to 6 % on one shape.
LINEAR_LAYERS = ("0.24.0", "0.5.14", "1.3.0rc20")
COLLECTED = "https://github.com/ai-dynamo/aiconfigurator@095f58a51c4c:aic-core/src/aiconfigurator_core/systems/data"
# FP8 by cuBLASLt with a static scale; the others quantise by token and run CUTLASS.
STATIC_FP8 = "1.3.0rc20"
# One kernel for all experts' products, the newest collector of each.
GROUPED = {("TRTLLM", "1.3.0rc20", "moe_torch_flow_cutlass"): "CUTLASS grouped",
           ("SGLang", "0.5.14", "sglang_fused_moe_triton"): "Triton fused"}
# Widths by number of experts for which that SGLang ships tuned tiles in bf16 (configs/triton_*).
TUNED = {"H100": {8: (1792, 2048, 3584, 4096, 7168), 16: (1024, 2048), 128: (192, 352, 384, 512, 704, 768), 512: (64, 128)},
         "H200": {8: (1792, 2048, 3584, 4096, 7168, 14336), 16: (1024,), 128: (192, 384, 704, 768), 512: (64, 128, 256)}}
EXCHANGES = ("gpu", "op", "software", "n_gpus", "n_nodes", "gpus_per_node", "size_bytes", "time_us", "tokens", "hidden", "topk",
             "experts", "method", "source")
COLLECTIVES = ("op", "gpu", "n_gpus", "n_nodes", "gpus_per_node", "size_bytes", "time_us", "dtype", "software", "device")
DEEPEP_SMS = "20"  # DeepEP's default, which the presets' exchange_sms is, too
PRECISIONS = {"bfloat16": ("bf16", 2), "fp8": ("fp8", 1)}
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
    """Each shape's median over the newest frameworks, bf16 and fp8, and cuBLASLt's fp8 alone. In FP8 the cast of the bf16
    input is inside: read in two bytes, written in one."""
    times, static = defaultdict(list), {}
    for row in rows_of(data / "gemm_forward.csv.gz"):
        if row["dtype"] not in PRECISIONS or row["version"] not in LINEAR_LAYERS:
            continue
        key = row["gpu"], PRECISIONS[row["dtype"]][0], row["M"], row["N"], row["K"]
        times[key].append(float(row["time_ms"]))
        if row["dtype"] == "fp8" and row["version"] == STATIC_FP8:
            static[key] = float(row["time_ms"])
    for op, method, of_shape in (("linear", "median of three frameworks' linear layers", times),
                                 ("linear, static scale", "TensorRT-LLM's linear layers (cuBLASLt)", static)):
        for (gpu, dtype, m, n, k), measured in of_shape.items():
            if gpu == "A100" and dtype == "fp8":
                continue
            time = statistics.median(measured) if op == "linear" else measured
            yield {"gpu": gpu, "op": op, "M": m, "N": n, "K": k, "dtype": dtype, "time_ms": time,
                   "moved_bytes": 3 * int(m) * int(k) if dtype == "fp8" else "", "method": method,
                   "source": f"{COLLECTED}/{gpu.lower()}_sxm"}


def tuning_of(row):
    """The name of a setting's tuning file in TensorRT-LLM's collector, and the entry there that is its own."""
    width, here = int(row["inter"]) // int(row["tp"]), int(row["experts"]) // int(row["ep"])
    file = "_".join((row["gpu"], row["version"], row["dtype"], row["hidden"], str(width), str(here)))
    return file, (row["topk"], row["tp"], row["ep"])


def tuned_by_others(rows):
    """Settings that may have run untuned, 2 to 4 times as slow. The collector tunes only where it finds no file whose name
    begins with that of the setting. The file that it finds may be of another setting, and lack the entry."""
    entries = defaultdict(set)
    for row in rows:
        if row["framework"] == "TRTLLM":
            file, entry = tuning_of(row)
            entries[file].add(entry)
    return {(file, entry) for file, mine in entries.items() for entry in mine
            if any(other.startswith(file) and there != {entry} for other, there in entries.items())}


def expert_layers(data):
    """A layer's experts on one GPU, powers of two of tokens, balanced: two grouped products, and what is around them.
    TensorRT-LLM sorts rows, activates, weighs and sums up. Triton's products read tokens where they lie and weigh: no
    sort, and no sum of one choice. Of SGLang's rows those with tuned tiles: without, and with other ranks' copies, another
    computation runs."""
    rows = list(rows_of(data / "grouped_gemm_h100_h200.csv.gz"))
    doubtful = tuned_by_others(rows)
    for row in rows:
        kernel = GROUPED.get((row["framework"], row["version"], row["kernel"]))
        if kernel is None or row["dtype"] not in PRECISIONS or row["distribution"] != "balanced" or not row["gated"]:
            continue
        dtype, element = PRECISIONS[row["dtype"]]
        tokens, hidden, experts, ranks = (int(row[name]) for name in ("tokens", "hidden", "experts", "ep"))
        copies, width = tokens * int(row["topk"]) // ranks, int(row["inter"]) // int(row["tp"])
        triton = kernel == "Triton fused"
        if tokens & (tokens - 1) or copies < experts // ranks or (tuning_of(row) in doubtful and not triton):
            continue
        if triton and (ranks > 1 or width not in TUNED[row["gpu"]].get(experts, ())):
            continue
        up = width * (2 if row["gated"] == "1" else 1)
        summed = 2 * (tokens + copies) * hidden if copies > tokens or not triton else 0
        moved = summed + copies * (2 * up + element * width)
        if not triton:
            moved += (2 * tokens + element * copies) * hidden
        yield {"gpu": row["gpu"], "op": f"experts of a layer, {kernel}", "dtype": dtype, "M": -(-copies * ranks // experts),
               "N": up, "K": hidden, "groups": experts // ranks, "next_N": hidden, "next_K": width, "moved_bytes": moved,
               "hidden": hidden, "inter": row["inter"], "experts": experts, "time_ms": row["time_ms"],
               "method": "a layer's experts, forward, loads forced equal", "source": f"{COLLECTED}/{row['gpu'].lower()}_sxm"}


def node_collectives(data):
    """Each run at the median of its key's: short all-to-alls differ from run to run, mostly to the slow side."""
    runs = defaultdict(list)
    for row in rows_of(data / "nccl_intra_node.csv"):
        runs[tuple(row[name] for name in row if name not in ("time_us", "busbw_GBps"))].append(row)
    for rows in runs.values():
        median = statistics.median(float(row["time_us"]) for row in rows)
        yield from ({**row, "time_us": median} for row in rows)


def deepep_exchanges(data):
    """DeepEP's dispatch in FP8 and combine in bf16, from 4 MB of activations a GPU on."""
    for row in rows_of(data / "deepep_normal.csv.gz"):
        for way in ("dispatch", "combine"):
            if row[f"{way}_sms"] != DEEPEP_SMS or int(row["tokens_per_gpu"]) < 512:
                continue
            time = float(row[f"{way}_transmit_us"]) + float(row[f"{way}_notify_us"])
            yield {"gpu": row["gpu"], "op": f"alltoall (EP {way})", "software": f"DeepEP, measured on {row['nodes']} nodes",
                   "n_gpus": row["n_gpus"], "n_nodes": row["nodes"], "gpus_per_node": 8, "time_us": time,
                   "tokens": row["tokens_per_gpu"], "hidden": row["hidden"], "topk": row["topk"], "experts": row["experts"],
                   "method": "DeepEP's own test, 20 SMs", "source": f"{COLLECTED}/{row['gpu'].lower()}_sxm"}


def rewritten(data, folder):
    """The files, as CSV in `folder`."""
    return [write(Path(folder) / "linear_layers.csv", GEMM, linear_layers(data)),
            write(Path(folder) / "expert_layers.csv", GEMM, expert_layers(data)),
            write(Path(folder) / "node_collectives.csv", COLLECTIVES, node_collectives(data)),
            write(Path(folder) / "deepep_exchanges.csv", EXCHANGES, deepep_exchanges(data)),
            write(Path(folder) / "varlen_attention.csv", ATTENTION, varlen_attention(data))]

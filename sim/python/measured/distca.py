"""Steps that DistCA's authors timed (hao-ai-lab/DistCA, Apache-2.0), as runs that a user would state.

A folder with steps.csv and documents.csv.gz, as its README describes them. The harness's scripts say what it did, and the
framework's keys express it: nothing here is fitted to the steps.
"""

import csv
import gzip
from collections import defaultdict
from pathlib import Path

from .runs import Run, RunsError, Step

SHAPES = {
    "llama-8b": {"hidden": 4096, "heads": 32, "ffn": 14336, "vocab": 128256},
    "codellama-34b": {"hidden": 8192, "heads": 64, "ffn": 22016, "vocab": 32000},
}
# Megatron-core 0.12.1 on H200, FlashAttention-2 varlen. finalize_model_grads is never called, so no gradient is
# reduced; TP collectives and the parameters' gather are not overlapped; the gathered K and V are kept. The TransformerConfig
# (megatron_test_utils.py) has gradient_accumulation_fusion off, so DDP's hook adds each bf16 gradient to an fp32 sum.
HARNESS = {
    "preset": "megatron",
    "tp_overlap": False,
    "overlap_param_gather": False,
    "reduce_gradients": False,
    "keep_gathered_kv": True,
    "gradient_add_bytes": 10,
    "attention_kernel": "flash-attention-2",
    "loss": "sum",
}
# For the 8B runs, the script that was committed on 9 August 2025 (b99ac08) takes the mean of (logit - 1)^2 as
# its loss and has no fusions on. Its next commit, after the last of these runs, takes the sum of the logits
# (53a9c5a). The fusions came on 12 August, with 5cdcca3.
EARLY_LOSS, NO_FUSIONS = "mean-square", {"fused_rope": False, "fused_activation": False}
FUSIONS_FROM, LOSS_FROM = "2025-08-12", "2025-08-17"
CLUSTER = {"profile": "h200-sxm", "gpus_per_node": 8, "network": {"name": "rail-400-infiniband", "nic_GBps": 50}}
POLICIES = {"baseline", "wlbllm", "wlbllm_perseq", "d2"}
# d2: windows in two nano-batches, each a run of tokens per rank. Attention may run on any rank, within 5 % of
# the mean, or more if buffers overflow (the scripts' default; no row says what it was). A flag says whether a
# backward sends Q, K and V again or keeps them: kept, as srun_multi.n32.sh has it. Its ranks are stated as
# one CP group, which reduces and shards as DP does.
DISAGGREGATED = {"context_comm": "disaggregated", "epsilon": 0.05, "nano_batches": 2}


def read_distca(folder, blind=False):
    """Runs of a folder, by name. `blind` means without their seconds, which are then not read."""
    folder = Path(folder)
    csv.field_size_limit(1 << 30)
    try:
        with gzip.open(folder / "documents.csv.gz", "rt", encoding="utf-8") as file:
            documents = {row["id"]: row for row in csv.DictReader(file)}
        with open(folder / "steps.csv", encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["policy"] in POLICIES]
    except OSError as error:
        raise RunsError(f"{folder}: expected steps.csv and documents.csv.gz: {error}") from error
    except KeyError as error:
        raise RunsError(f"{folder}: steps.csv and documents.csv.gz: expected a column {error}") from error
    of_run = defaultdict(list)
    for row in rows:
        of_run[row["run"]].append(row)
    return [run_of(name, steps, documents, blind) for name, steps in sorted(of_run.items())]


def run_of(name, rows, documents, blind):
    first = rows[0]
    context, lanes = int(first["cp"]), int(first["dp"])
    disaggregated = first["sharding"] == "disaggregated"
    if disaggregated:
        context, lanes = context * lanes, 1
    framework = dict(HARNESS, optimizer_step=first["optimizer"] == "1")
    if first["date"] < LOSS_FROM:
        framework["loss"] = EARLY_LOSS
    if first["date"] < FUSIONS_FROM:
        framework.update(NO_FUSIONS)
    model = dict(
        SHAPES[first["model"]], name=first["model"], layers=int(first["layers"]), kv_heads=8, head_dim=128
    )
    parallel = {"tensor": int(first["tp"]), "context": context, "pipeline": int(first["pp"]), "data": lanes}
    parallel["recompute"] = {"modules": ["mlp"]} if first["recompute"] == "mlp" else "none"
    if disaggregated:
        parallel.update(DISAGGREGATED)
    steps = []
    for row in rows:
        ran = documents[row["id"]]
        packed = ran["windows" if disaggregated else "micro_batches"]
        batches = [[int(n) for n in batch.split(";")] for batch in packed.split("|")]
        if disaggregated:
            batches = [[tokens for window in batches for tokens in window]]
        elif first["sharding"] != "none":
            batches = [padded(batch, context, lanes) for batch in batches]
        seconds = 0.0 if blind else float(row["step_ms"]) / 1000
        steps.append(Step([[batch] for batch in batches], seconds, ran["windows"]))
    return Run(
        name=name,
        study={"model": model, "cluster": CLUSTER, "parallel": parallel, "framework": framework},
        steps=steps,
        policy={"none": "as they come"}.get(first["sharding"], first["sharding"]),
        shard="contiguous" if disaggregated else first["sharding"] if context > 1 else "per-sequence",
        group=f"{first['model']}, {first['layers']} layers, {int(first['window']) // 1024}K, {first['gpus']} GPUs",
        window=int(first["window"]),
    )


def padded(batch, context, lanes):
    """A batch padded as the harness does: documents of 512 tokens for lanes with fewer documents than there are lanes,
    and a longer last one, so that the sum divides by 16 x CP."""
    batch = batch + [512] * max(0, lanes - len(batch))
    batch[-1] += -sum(batch) % (16 * context)
    return batch

"""One attention layer under each form of context parallelism, compared with a published benchmark of them on H100.

MagiAttention's authors timed a causal attention of 64 query and 8 KV heads of 128 on 8 to 64 GPUs, 8K tokens on each, every
baseline with FlashAttention-3. What is predicted is the time from the rotary embedding to the output projection of a layer,
forward and backward, at op fidelity: exchanges, calls of the kernel and what lies between them. Kernels run at their benchmark
speed. Nothing is fitted to these figures.
"""

import json
from pathlib import Path

from papers.perfetto import slices

from .runs import simulate

PUBLISHED = Path(__file__).with_name("forms.json")
HEADS, HEAD_DIM, TOKENS = 64, 128, 8192  # per layer; tokens per GPU
GPUS = (8, 16, 32, 64)
# The benchmark's names of forms: keys of `parallel`, and the sharding rule.
FORMS = {
    "ulysses": ({"context_comm": "ulysses"}, {"shard": "per-sequence"}),
    "ring_p2p": ({"context_comm": "ring"}, {"shard": "per-sequence"}),
    "ring_allgather": ({"context_comm": "all-gather"}, {"shard": "per-sequence"}),
    "usp": ({"context_comm": "ulysses-ring", "context_inner": 8}, {"shard": "per-sequence"}),
    "magi_attn-a2av": (
        {"context_comm": "group-cast", "cast_stages": 2, "block": 512},
        {"shard": "heap-dispatch", "block": 512},
    ),
}


def study_of(gpus, parallel, policy):
    """A study of one layer, narrow except for its attention, on one document with all tokens."""
    window = gpus * TOKENS
    return {
        "trace": {"uniform": window, "documents": 2},
        "model": {"name": "attention", "layers": 1, "hidden": 1024, "heads": HEADS, "kv_heads": 8, "head_dim": HEAD_DIM,
                  "ffn": 1024, "vocab": 1024, "tied_embeddings": False},
        "cluster": {"profile": "h100-sxm", "gpus_per_node": 8, "network": {"nic_GBps": 50}},
        "framework": {"preset": "none", "attention_kernel": "flash-attention-3", "ring_merges": True},
        "parallel": {"context": gpus, "zero": 0, **parallel},
        "batch": {"context_window": window, "sequences_per_step": 1, "steps": 1},
        "policies": [{"name": "plain", **policy}],
    }


def attention_times(events):
    """Seconds of the attention and its exchanges, forward and backward, from slices (track, name, begin, end) in ns."""
    turn = min(begin for _, name, begin, _ in events if name == "B0")
    forward = [event for event in events if event[2] < turn - 1]
    backward = [event for event in events if event[2] >= turn - 1]
    begin = max(end for _, name, _, end in forward if name == "rope")
    end = max(begin for _, name, begin, _ in forward if name == "out_gemm")  # on the slowest rank
    back_begin = min(begin for track, name, begin, _ in backward if name == "attention" or track == "cp")
    back_end = max(begin for _, name, begin, _ in backward if name == "rope")
    return (end - begin) / 1e9, (back_end - back_begin) / 1e9


def predict_forms(program, folder):
    """TFLOP/s of a GPU by form, forward and backward, as a list over GPUS."""
    predicted = {}
    for name, (parallel, policy) in FORMS.items():
        predicted[name] = {"forward": [], "backward": []}
        for count in GPUS:
            file = folder / f"{name}-{count}" / "study.json"
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps(study_of(count, parallel, policy)), encoding="utf-8")
            out, _ = simulate(program, file, f"{name} on {count} GPUs", ("--fidelity", "op"))
            seconds = attention_times(slices((out / "timeline/plain.pftrace").read_bytes()))
            window = count * TOKENS
            flops = 4 * (window * (window + 1) / 2) * HEADS * HEAD_DIM
            for which, factor, time in zip(("forward", "backward"), (1, 2.5), seconds):
                predicted[name][which].append(factor * flops / time / count / 1e12)
    return predicted


def forms_table(predicted, published):
    """A Markdown table of published and predicted TFLOP/s of a GPU, with the error in %."""
    head = " | ".join(f"{n} GPUs: published, ours, %" for n in GPUS)
    lines = [f"| pass, form | {head} |", "| --- |" + " ---: |" * len(GPUS)]
    for which in ("forward", "backward"):
        for name, values in predicted.items():
            cells = [f"{p}, {o:.0f}, {100 * (o / p - 1):+.0f}" for p, o in zip(published[which][name], values[which])]
            lines.append(f"| {which}, {name} | {' | '.join(cells)} |")
    return "\n".join(lines)

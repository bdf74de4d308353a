"""Skrull (arXiv 2505.19609)."""
from statistics import mean

from .figure import Table
from .runner import metric, speedup

PAPER = "Skrull"
HOST = "small batches are bound by the host: 8 us an op are assumed (framework.seconds_per_op), not measured"
SETS = ("wikipedia", "lmsys-chat-1m", "chatqa2-long-sft")


def headline(run):
    table = Table(PAPER, "Over DeepSpeed and over sorted batching, means over three data sets",
                  "7B on ChatQA2 runs on DP 2, CP 16, batch 40; everything else on DP 4, CP 8, batch 64 a replica.")
    rows = [{"name": "padded", "shard": "per-sequence", "label": "deepspeed"}, {"name": "sorted", "shard": "per-sequence"}, "skrull"]
    found = {}
    for model in ("qwen2.5-0.5b", "qwen2.5-7b"):
        for data_set in SETS:
            narrow = model == "qwen2.5-7b" and data_set == "chatqa2-long-sft"
            found[model, data_set] = run.summary(
                "skrull-7b", rows, model=model, trace={"distribution": data_set, "seed": 0}, batch__steps=10,
                parallel__data=2 if narrow else 4, parallel__context=16 if narrow else 8,
                batch__documents_per_step=80 if narrow else 256)
    gains = {key: speedup(summary, "skrull", "deepspeed") for key, summary in found.items()}
    over_sorted = {key: speedup(summary, "skrull", "sorted") for key, summary in found.items()}
    table.add("mean over DeepSpeed", 3.76, mean(gains.values()), headline=True, cause=HOST)
    table.add("peak over DeepSpeed", 7.54, max(gains.values()), headline=True, cause=HOST)
    for model, published in (("qwen2.5-0.5b", 5.50), ("qwen2.5-7b", 2.03)):
        table.add(f"mean over DeepSpeed, {model}", published, mean(v for (m, _), v in gains.items() if m == model), cause=HOST)
    table.add("mean over sorted batching", 3.45, mean(over_sorted.values()), cause=HOST)
    table.add("peak over sorted batching", 6.85, max(over_sorted.values()), cause=HOST)
    return table


def case_study(run):
    table = Table(PAPER, "Case study: Qwen2.5-0.5B, ChatQA2, DP 1, CP 8, batch 64")
    summary = run.summary("skrull-0.5b")
    table.add("round-robin, as they arrived", 1.17, metric(summary, "round-robin, as they arrived", "speedup"), cause=HOST)
    table.add("skrull", 1.40, metric(summary, "skrull", "speedup"), cause=HOST)
    return table


def tables(run):
    return [make(run) for make in (headline, case_study)]

"""Skrull (arXiv 2505.19609)."""
from .figure import Table, mean_of
from .runner import metric, speedup

PAPER = "Skrull"
MODELS = ("qwen2.5-0.5b", "qwen2.5-7b")
SETS = ("wikipedia", "lmsys-chat-1m", "chatqa2-long-sft")
ROWS = [{"name": "padded", "shard": "per-sequence", "label": "deepspeed"}, {"name": "sorted", "shard": "per-sequence"},
        {"name": "skrull", "oversize": "truncate"}]
HOST = "small batches wait for the host, whose 8 us an op are assumed, not measured (framework.seconds_per_op)"
REDUCE = ("hangs on whether ZeRO-2 reduces every micro-batch's gradients: the band is with and without "
          "(framework.reduce_each_micro_batch)")


def gains(run, against, reduce_each):
    """Speed-ups of Skrull by model and data set."""
    found = {}
    for model in MODELS:
        for data_set in SETS:
            narrow = model == "qwen2.5-7b" and data_set == "chatqa2-long-sft"
            summary = run.summary(
                "skrull-7b", ROWS, model=model, trace={"distribution": data_set, "seed": 0}, batch__steps=10,
                parallel__data=2 if narrow else 4, parallel__context=16 if narrow else 8,
                batch__documents_per_step=80 if narrow else 256, framework__reduce_each_micro_batch=reduce_each)
            found[model, data_set] = speedup(summary, "skrull", against)
    return found


def headline(run):
    table = Table(PAPER, "Over DeepSpeed and over sorted batching, means over three data sets",
                  "7B on ChatQA2 runs on DP 2, CP 16, batch 40; everything else on DP 4, CP 8, batch 64 a replica. LMSys has "
                  "documents of more than 100K tokens, which no BucketSize of the paper holds: Skrull's row cuts them, and the "
                  "baselines of 7B run there beyond 80 GB by our memory model. The band: gradients reduced with every "
                  "micro-batch (first, as DeepSpeed's code does) and once a step.")
    over = {against: [gains(run, against, each) for each in (True, False)] for against in ("deepspeed", "sorted")}

    def add(what, published, against, combine, model=None, **keywords):
        band = [combine([v for (m, _), v in found.items() if model in (None, m)]) for found in over[against]]
        table.add(what, published, band[0], band=tuple(band), **keywords)

    add("mean over DeepSpeed", 3.76, "deepspeed", mean_of, headline=True, cause=f"{HOST}; {REDUCE}")
    add("peak over DeepSpeed", 7.54, "deepspeed", max, headline=True, cause=HOST)
    add("mean over DeepSpeed, qwen2.5-0.5b", 5.50, "deepspeed", mean_of, "qwen2.5-0.5b", cause=HOST)
    add("mean over DeepSpeed, qwen2.5-7b", 2.03, "deepspeed", mean_of, "qwen2.5-7b", cause=REDUCE)
    add("mean over sorted batching", 3.45, "sorted", mean_of, cause=HOST)
    add("peak over sorted batching", 6.85, "sorted", max, cause=HOST)
    return table


def case_study(run):
    table = Table(PAPER, "Case study: Qwen2.5-0.5B, ChatQA2, DP 1, CP 8, batch 64")
    summary = run.summary("skrull-0.5b")
    table.add("round-robin, as they arrived", 1.17, metric(summary, "round-robin, as they arrived", "speedup"))
    table.add("skrull", 1.40, metric(summary, "skrull", "speedup"))
    return table


def tables(run):
    return [make(run) for make in (headline, case_study)]

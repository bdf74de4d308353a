"""WLB-LLM (arXiv 2503.17924)."""
from .figure import Table, mean_of
from .runner import metric, speedup

PAPER = "WLB-LLM"
CHUNKS = (1, 2, 4)  # model chunks a stage: not printed; 2 is inferred from the paper's results
USED = 2
CHUNK_NOTE = ("Model chunks a stage are not printed; 2 was chosen with these results in view, so all speed-ups here are "
              "fitted in that one number. In brackets: 1, 2 and 4 chunks.")
# Section 6: model, window in K, TP, CP, PP, DP; the global batch is PP * DP sequences.
LAYOUTS = [("wlb-550m", 64, 2, 2, 4, 2), ("wlb-550m", 128, 2, 4, 4, 1), ("llama2-7b", 64, 4, 2, 4, 1),
           ("llama2-7b", 128, 8, 2, 4, 1), ("wlb-30b", 64, 8, 2, 4, 1), ("wlb-30b", 128, 8, 4, 4, 1),
           ("wlb-70b", 64, 16, 4, 4, 1), ("wlb-70b", 128, 16, 4, 4, 1)]
SYSTEMS = ["plain-4d", "fixed-4d", "wlb-llm"]


def summaries(run, chunks, window=None):
    for model, own_window, tensor, context, pipeline, data in LAYOUTS:
        if window in (None, own_window):
            yield run.summary("wlb-fig13", SYSTEMS, model=model, parallel__tensor=tensor, parallel__context=context,
                              parallel__pipeline=pipeline, parallel__data=data, parallel__virtual_pipeline=chunks,
                              batch__context_window=f"{own_window}K", batch__sequences_per_step=pipeline * data,
                              batch__steps=100)


def figure_12(run):
    table = Table(PAPER, "Fig. 12, means over models and windows", CHUNK_NOTE)
    rows = [("WLB-LLM over Plain-4D", 1.23, "wlb-llm", "plain-4d", None),
            ("WLB-LLM over Fixed-4D", 1.19, "wlb-llm", "fixed-4d", None),
            ("Fixed-4D over Plain-4D", 1.03, "fixed-4d", "plain-4d", None),
            ("WLB-LLM over Plain-4D, 64K", 1.15, "wlb-llm", "plain-4d", 64),
            ("WLB-LLM over Plain-4D, 128K", 1.30, "wlb-llm", "plain-4d", 128)]
    for what, published, label, against, window in rows:
        by_chunks = {c: mean_of(speedup(s, label, against) for s in summaries(run, c, window)) for c in CHUNKS}
        table.add(what, published, by_chunks[USED], "fitted", headline=window is None and label == "wlb-llm",
                  band=tuple(by_chunks.values()))
    return table


def figure_13(run):
    table = Table(PAPER, "Fig. 13, what each part gains: 7B-128K over Plain-4D", CHUNK_NOTE)
    by_chunks = {c: run.summary("wlb-fig13", parallel__virtual_pipeline=c) for c in CHUNKS}
    rows = [("+ per-document sharding", 1.02), ("+ adaptive sharding", 1.05),
            ("+ var-length packing, outlier delay", 1.28), ("all (wlb-llm)", 1.33)]
    for label, published in rows:
        found = {c: metric(s, label, "speedup") for c, s in by_chunks.items()}
        table.add(label, published, found[USED], "fitted", headline=label.startswith("all"), band=tuple(found.values()))
    return table


def figure_14(run):
    table = Table(PAPER, "Fig. 14, 7B over windows (only the longest is printed)", CHUNK_NOTE)
    found = {c: metric(run.summary("wlb-fig13", ["plain-4d", "wlb-llm"], parallel__virtual_pipeline=c,
                                   batch__context_window="160K", batch__steps=100), "wlb-llm", "speedup")
             for c in CHUNKS}
    table.add("WLB-LLM over Plain-4D, 160K", 1.40, found[USED], "fitted", band=tuple(found.values()))
    return table


def figure_1(run):
    table = Table(PAPER, "Fig. 1 and 4, 8,192 GPUs, 128K window: attention of the slowest GPU over the mean")
    table.add("Plain-4D", 1.44, metric(run.summary("wlb-8k-gpus"), "plain-4d", "gpu_attention_imbalance"))
    return table


def table_2(run):
    table = Table(PAPER, "Table 2, imbalance of 4 micro-batches of 128K",
                  "The lengths of `wlb-128k` were fitted to this table, so it agrees by construction where the fit did.")
    summary = run.summary("wlb-table2")
    queue = "cause not shown: our long documents lie at nearly regular distances, so one queue fills evenly"
    for label, published, cause in [
            ("plain-4d", 1.44, ""), ("fixed-greedy, 1 batch", 1.41, ""), ("fixed-greedy, 2 batches", 1.22, ""),
            ("fixed-greedy, 4 batches", 1.11, ""), ("fixed-greedy, 8 batches", 1.08, ""), ("wlb, 1 queue", 1.24, queue),
            ("wlb, 2 queues", 1.05, ""), ("wlb, 3 queues", 1.05, "")]:
        table.add(label, published, metric(summary, label, "imbalance_degree"), "by construction", cause=cause)
    table.add("token delay, 2 queues, iterations", 0.5, metric(summary, "wlb, 2 queues", "token_delay_mean"),
              "predicted", cause="cause not shown: the lengths were fitted to the imbalances only")
    return table


def figure_15(run):
    table = Table(PAPER, "Fig. 15, sharding alone: 7B, CP 4, no pipeline")
    rows = [{"name": "plain", "shard": shard, "label": shard} for shard in ("per-sequence", "per-document", "adaptive", "optimal")]
    for window, published in (("64K", 1.01), ("128K", 1.07)):
        summary = run.summary("wlb-fig13", rows, parallel__tensor=8, parallel__context=4, parallel__pipeline=1,
                              parallel__virtual_pipeline=1, batch__context_window=window, batch__steps=100)
        table.add(f"per-document over per-sequence, {window}", published, speedup(summary, "per-document", "per-sequence"))
        if window == "128K":
            table.add("adaptive over per-sequence", 1.075, speedup(summary, "adaptive", "per-sequence"))
            table.add("adaptive over per-document", 1.034, speedup(summary, "adaptive", "per-document"))
            table.add("adaptive over optimal (\"close to optimal\")", 1.0, speedup(summary, "adaptive", "optimal"))
    return table


def tables(run):
    return [make(run) for make in (figure_12, figure_13, figure_14, figure_1, table_2, figure_15)]

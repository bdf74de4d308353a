"""ChunkFlow (arXiv 2503.02356)."""
from .figure import Table
from .runner import metric, speedup

PAPER = "ChunkFlow"
GIB = 2.0**30


def table_5(run):
    table = Table(PAPER, "Table 5, peak memory, Qwen2.5-7B, TP 4, K = 1",
                  "`recompute_ahead` was chosen with this table in view.")
    for study, figures in (("chunkflow-memory-32k", (41.6, 47.5, 59.3)), ("chunkflow-memory-256k", (45.6, 50.8, 63.8))):
        summary = run.summary(study)
        for size, published in zip(("2K", "4K", "8K"), figures):
            table.add(f"chunks of {size}, context {study[17:].upper()}", published,
                      metric(summary, f"chunkflow ({size},1)", "peak_memory_bytes") / GIB, "fitted", unit="GiB")
    return table


def table_6(run):
    table = Table(PAPER, "Table 6, Qwen2.5-7B, 256K context: chunk size and K",
                  "The paper names no GPU but \"its cloud instance\".")
    summary = run.summary("chunkflow-7b-256k")
    for label, against, published in (("chunkflow (8K,4)", "chunkflow (2K,16)", 29.810 / 23.774),
                                      ("chunkflow (8K,4)", "chunkflow (32K,1)", 28.942 / 23.774)):
        table.add(f"{label} over {against}", published, speedup(summary, label, against))
    table.add("seconds an iteration, (8K,4)", 23.774, metric(summary, "chunkflow (8K,4)", "step_seconds"), unit="s",
              cause="cause not shown: on 16 H100s the documents of the paper's table of quantiles take this long, so its "
                    "instance is slower, or its batches hold more long documents")
    return table


def headline(run):
    table = Table(PAPER, "Fig. 8, over Megatron-LM (bars without numbers; \"up to\" is printed)")
    # Context, model, TP, PP, recompute of Megatron-LM, chunk size, K.
    best, where = 0, ""
    for context, model, tensor, pipeline, recompute, chunk, keep in (
            ("32K", "qwen2.5-7b", 4, 1, "selective", "32K", 1), ("32K", "qwen2.5-14b", 4, 4, "selective", "8K", 8),
            ("32K", "qwen2.5-32b", 4, 4, "selective", "8K", 6), ("32K", "qwen2.5-72b", 8, 4, "selective", "8K", 16),
            ("256K", "qwen2.5-7b", 4, 4, "full", "8K", 16), ("256K", "qwen2.5-14b", 4, 4, "full", "8K", 8),
            ("256K", "qwen2.5-32b", 4, 4, "full", "8K", 6), ("256K", "qwen2.5-72b", 8, 4, "selective", "8K", 16)):
        rows = [{"name": "padded", "recompute": recompute, "label": "megatron"},
                {"name": "chunkflow", "chunk_size": chunk, "keep": keep, "label": "chunkflow"}]
        summary = run.summary("chunkflow-7b-256k", rows, model=model, parallel__tensor=tensor, parallel__pipeline=pipeline,
                              batch__steps=20, **({"trace": {"distribution": "chunkflow-eval", "seed": 1}}))
        found = speedup(summary, "chunkflow", "megatron")
        if found > best:
            best, where = found, f"{model}, {context}"
    table.add(f"up to (ours: {where})", 4.53, best, headline=True,
              cause="hangs on how many very short documents the lengths have, of which the paper's table says nothing below 1K")
    return table


def tables(run):
    return [make(run) for make in (table_5, table_6, headline)]

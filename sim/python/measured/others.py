"""Other measured runs on unequal documents, as their sources state them: what is simulated for each figure that they print.

Nothing is fitted to a figure. Where a source leaves the lengths open, a figure has three settings, of which the first is the
prediction and the others are what the prediction could be. Published figures stand in others.json, apart from the settings,
and are read after all predictions.
"""

import csv
import gzip
import json
import math
import random
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

from .runs import Run, RunsError, Step, predict

PUBLISHED = Path(__file__).with_name("others.json")
A100 = {"profile": "a100-sxm", "gpus_per_node": 8, "network": {"nic_GBps": 6.25}}  # four NICs of 100 Gbit/s a node


@dataclass
class Figure:
    source: str
    what: str
    unit: str
    settings: list  # functions (program, folder) -> value
    over: str = ""  # `what` of the figure of this source that its ratio is over


def seconds_of(program, folder, study, steps, shard="per-sequence"):
    return mean(predict(program, Run("run", study, steps, shard=shard), folder))


# --- FlexSP (PKU-DAIR/Hetu-Galvatron, branch flexsp): GPT on 64 A100 40 GB, 512 documents of Wikipedia a step

RANKS = 64
# Layers, hidden, MiB of activations a token (train_dist.py), GiB of parameters by longest document in thousands of tokens,
# whose positions are learned, and what is recomputed: train_dist.py recomputes the FFN of 12 layers (8 layers' work), of all,
# and of all with four fifths of the attentions.
FLEXSP = {
    "7B": (32, 4096, 4.480, {192: 7.117, 384: 7.850}, {"layers": 8}),
    "13B": (40, 5120, 4.220, {192: 13.116, 384: 14.032}, {"modules": ["mlp"]}),
    "30B": (60, 6656, 3.417, {192: 31.525, 384: 32.715}, {"layers": 56}),
}


def flexsp_study(model, longest):
    """The study and the tokens that a rank holds by the source's own count: 28 GiB less the states."""
    layers, hidden, activation, parameters, recompute = FLEXSP[model]
    room = int((28 * 1024 - parameters[longest] * 16 * 1024 / RANKS) / activation)
    shape = {"name": f"gpt-{model}", "layers": layers, "hidden": hidden, "heads": 64, "ffn": 4 * hidden, "vocab": 50304}
    return room, {
        "model": dict(shape, gated_ffn=False),
        "cluster": A100,
        "framework": {"preset": "fsdp", "gradient_bytes": 2},
        "parallel": {"context": RANKS, "zero": 3, "recompute": recompute, "context_comm": "ulysses"},
    }


def flexsp_batches(lengths, longest):
    """As dataloader.py makes them: the first 4,000 documents that are short enough, padded to 128, in order."""
    padded = [-(-n // (2 * RANKS)) * 2 * RANKS for n in lengths]
    kept = [n for n in padded if n <= longest * 1000 - 2 * RANKS][:4000]
    return [kept[i : i + 512] for i in range(0, len(kept) - 511, 512)]


def best_fit(documents, room):
    bins = []
    for n in sorted(documents, reverse=True):
        fitting = [b for b in bins if sum(b) + n <= room]
        if fitting:
            max(fitting, key=sum).append(n)
        else:
            bins.append([n])
    return bins


def consecutive(documents, parts):
    """Longest first, cut into so many parts that the largest is as small as can be (chunk_globalbatch)."""
    documents = sorted(documents, reverse=True)

    def cut(room):
        found = [[]]
        for n in documents:
            if sum(found[-1]) + n > room:
                found.append([])
            found[-1].append(n)
        return found

    low, high = max(documents), sum(documents)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(cut(middle)) <= parts else (middle + 1, high)
    return cut(low)


def one_degree(model, longest, lengths, program, folder):
    """One group of 64 ranks: documents packed best fit decreasing into micro-batches of 0.9 of what it holds."""
    room, study = flexsp_study(model, longest)
    steps = [Step([best_fit(b, max(0.9 * room * RANKS, max(b)))]) for b in flexsp_batches(lengths, longest)]
    return seconds_of(program, folder, study, steps)


def many_degrees(model, longest, lengths, program, folder):
    """Each micro-batch with degrees of its own (policy flexsp), and the number of micro-batches that is fastest."""
    room, study = flexsp_study(model, longest)
    times = []
    for batch in flexsp_batches(lengths, longest):
        least = -(-sum(batch) // (room * RANKS))
        cuts = [consecutive(batch, parts) for parts in range(least, least + 4)]
        fitting = [cut for cut in cuts if max(map(sum, cut)) < room * RANKS]
        times.append(min(sum(micro_batch(program, folder, study, room, part) for part in cut) for cut in fitting))
    return mean(times)


def micro_batch(program, folder, study, room, documents):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lengths.txt").write_text("".join(f"{n}\n" for n in documents))
    row = {"name": "flexsp", "tokens_per_rank": room}
    batch = {"documents_per_step": len(documents), "steps": 1}
    whole = dict(study, trace={"file": "lengths.txt"}, batch=batch, policies=[row])
    return study_seconds(program, folder, whole)


def study_seconds(program, folder, study):
    file, out = folder / "study.json", folder / "out"
    file.write_text(json.dumps(study))
    command = [program, "study", str(file), "--ignore-memory", "--quiet", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunsError(f"{file}: {done.stderr.strip().splitlines()[-1]}")
    with open(out / "steps.csv", encoding="utf-8", newline="") as rows:
        return mean([float(row["step_seconds"]) for row in csv.DictReader(rows)])


def flexsp(lengths):
    figures = []
    for model in FLEXSP:
        for longest in (384, 192):
            fixed = f"{model}, {longest}K, DeepSpeed"
            figures += [
                Figure("FlexSP", fixed, "s", [partial(one_degree, model, longest, lengths)]),
                Figure("FlexSP", f"{model}, {longest}K, FlexSP", "s", [partial(many_degrees, model, longest, lengths)], fixed),
            ]
    return figures


# --- DCP (chenyu-jiang/dcp): GPT 8B on 64 A100, TP 4, CP 16, one window of LongAlign-10k a step

DCP = {
    "model": {"name": "gpt-8b", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 50688,
              "gated_ffn": False, "tied_embeddings": True},
    "cluster": A100,
    "parallel": {"tensor": 4, "context": 16, "context_comm": "ulysses-ring", "context_inner": 2},
    "framework": {"preset": "megatron", "tp_overlap": False, "overlap_param_gather": False, "gradient_bytes": 4,
                  "loss": "unfused", "attention_kernel": "flash-attention-2", "scatter_gradients": False},
}


def windows_of(window, least, most, count=20):
    """Documents evenly spread in ln(tokens), in the order of arrival, as many as the window holds; each padded to 2 CP."""
    draw, windows = random.Random(0), [[]]
    while len(windows) <= count:
        n = 32 * round(math.exp(draw.uniform(math.log(least), math.log(most))) / 32)
        if sum(windows[-1]) + n > window:
            windows.append([])
        windows[-1].append(n)
    return windows[:count]


def megatron_cp(window, least, most, program, folder):
    """Gradients are reduce-scattered behind the backward: half of what an all-reduce there adds."""
    steps = [Step([[documents]]) for documents in windows_of(window, least, most)]
    local = dict(DCP, framework=dict(DCP["framework"], reduce_gradients=False))
    return mean([seconds_of(program, folder, study, steps, "per-document") for study in (DCP, local)])


def dcp():
    """LongAlign-10k has documents of 8K to 64K: evenly spread in ln(tokens) as the prediction, or all short or long."""
    figures = []
    for window in (16 << 10, 32 << 10, 64 << 10, 128 << 10):
        most = min(window, 64 << 10)
        spans = ((8 << 10, most), (8 << 10, 10 << 10), (0.8 * most, most))
        settings = [partial(megatron_cp, window, *span) for span in spans]
        figures.append(Figure("DCP", f"LongAlign, {window >> 10}K, Megatron-LM", "s", settings))
    return figures


# --- IBM's padding-free and multipack (foundation-model-stack/fms-acceleration): Mistral 7B, FSDP, A100 80 GB, OrcaMath

MISTRAL = {"name": "mistral-7b", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 32000}
ORCA_TOKENS = 401  # time x tokens/s of a GPU x 8 / 20,000 documents, as huggingface/transformers#31629 prints them


def lognormal(count, tokens, spread):
    draw = random.Random(1)
    return [max(8, round(draw.lognormvariate(math.log(tokens) - spread**2 / 2, spread))) for _ in range(count)]


def orca(gpus, size, how, spread, program, folder):
    """Documents a second: `size` of them a GPU and micro-batch, two micro-batches a step."""
    study = {
        "model": MISTRAL,
        "cluster": {"profile": "a100-sxm"},
        "framework": {"preset": "fsdp", "gradient_bytes": 2, "optimizer_bytes": 4},
        "parallel": {"data": gpus, "zero": 3 if gpus > 1 else 0, "recompute": "full"},
    }
    at_once, count = gpus * size, 20
    documents, steps = lognormal(2 * at_once * count, ORCA_TOKENS, spread), []
    for first in range(0, len(documents), 2 * at_once):
        halves = (documents[first : first + at_once], documents[first + at_once : first + 2 * at_once])
        steps.append(Step([list(lane) for lane in zip(*(shared_out(half, gpus, how) for half in halves))]))
    return 2 * at_once / seconds_of(program, folder, study, steps)


def shared_out(documents, gpus, how):
    size = len(documents) // gpus
    if how != "multipack":
        lanes = [documents[i : i + size] for i in range(0, len(documents), size)]
        return [[max(lane)] * size for lane in lanes] if how == "padded" else lanes
    lanes = [[] for _ in range(gpus)]
    for n in sorted(documents, reverse=True):
        min(lanes, key=sum).append(n)
    return lanes


def padding_free():
    """Only the mean of the lengths is known: lognormal, 0.4 wide, or 0.3 and 0.5."""
    sizes = [("padded", "padding-free", g, n) for g, n in ((1, 4), (1, 8), (2, 2), (2, 4))]
    sizes += [("padding-free", "multipack", g, n // g) for n in (16, 32, 64, 128) for g in (2, 4, 8)]
    figures = []
    for base, how, gpus, size in sizes:
        at = f"{gpus} GPU{'s' * (gpus > 1)}, {size} documents"
        for each in (base, how):
            settings = [partial(orca, gpus, size, each, spread) for spread in (0.4, 0.3, 0.5)]
            figures.append(Figure("fms-acceleration", f"{at}, {each}", "documents/s", settings, f"{at}, {base}" * (each == how)))
    return figures


# --- torchtune: Llama 3.2 3B on one A100, packs of 4,096, two a step

LLAMA = {"name": "llama3.2-3b", "layers": 28, "hidden": 3072, "heads": 24, "kv_heads": 8, "head_dim": 128, "ffn": 8192,
         "vocab": 128256, "tied_embeddings": True}


def packs(recompute, tokens, program, folder):
    study = {
        "model": LLAMA,
        "cluster": {"profile": "a100-sxm"},
        "framework": {"preset": "fsdp", "gradient_bytes": 2, "optimizer_bytes": 4},
        "parallel": {"recompute": recompute},
    }
    documents = [tokens] * (8192 // tokens)
    return sum(documents) / seconds_of(program, folder, study, [Step([[documents]])])


def torchtune():
    """Alpaca's documents are short; how short hardly matters in a pack."""
    return [
        Figure("torchtune", "packed", "tokens/s", [partial(packs, "none", n) for n in (200, 100, 400)]),
        Figure("torchtune", "packed, all layers recomputed", "tokens/s", [partial(packs, "full", n) for n in (200, 100, 400)]),
    ]


# --- TRL's batching (huggingface/trl#6092): Qwen3 1.7B on one H100, drawn lengths that it states

QWEN = {"name": "qwen3-1.7b", "layers": 28, "hidden": 2048, "heads": 16, "kv_heads": 8, "head_dim": 128, "ffn": 6144,
        "vocab": 151936, "tied_embeddings": True}


def rollouts(count):
    """Eight answers a prompt: a tenth of 4,096 tokens, the others lognormal around 700; prompts around 256, at most 1,024."""
    draw, found = random.Random(1), []
    while len(found) < count:
        prompt = round(min(1024, draw.lognormvariate(math.log(256), 0.5)))
        for _ in range(8):
            long = draw.random() < 0.1
            found.append(prompt + (4096 if long else round(min(4096, max(16, draw.lognormvariate(math.log(700), 0.9))))))
    return found


def trl_rate(size, padded, budget, program, folder):
    """Tokens that are no padding a second; four micro-batches a step."""
    study = {
        "model": QWEN,
        "cluster": {"profile": "h100-sxm"},
        "framework": {"preset": "fsdp"},
        "parallel": {"recompute": "full"},
    }
    left, steps, tokens = iter(rollouts(4096)), [], 0
    waiting = next(left)
    for _ in range(20):
        lane = []
        for _ in range(4):
            documents = []
            while len(documents) < size if size else not documents or sum(documents) + waiting <= budget:
                documents.append(waiting)
                waiting = next(left)
            tokens += sum(documents)
            lane.append([max(documents)] * len(documents) if padded else documents)
        steps.append(Step([lane]))
    return tokens / len(steps) / seconds_of(program, folder, study, steps)


def trl():
    figures = []
    for size in (4, 8):
        base = f"padded, {size} documents"
        figures.append(Figure("TRL", base, "tokens/s", [partial(trl_rate, size, True, 0)]))
        figures.append(Figure("TRL", f"padding-free, {size} documents", "tokens/s", [partial(trl_rate, size, False, 0)], base))
    for budget in (4096, 8192, 16384):
        what = f"padding-free, {budget:,} tokens"
        figures.append(Figure("TRL", what, "tokens/s", [partial(trl_rate, 0, False, budget)], "padded, 4 documents"))
    return figures


# --- All of them


def all_figures(data):
    """Figures of all sources. FlexSP's only where `data`, the folder of public length data, has its lengths."""
    file = Path(data) / "lengths/flexsp_wikipedia.txt.gz" if data else None
    figures = []
    if file and file.exists():
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            figures += flexsp([int(line) for _, line in zip(range(6000), lines)])
    return figures + dcp() + padding_free() + torchtune() + trl()


def predict_figures(program, figures, folder):
    """Of each figure the values of its settings, in their order."""
    return [[setting(program, Path(folder)) for setting in figure.settings] for figure in figures]


def table(figures, values, published):
    """Rows of Markdown: published beside predicted, and both ratios where a figure is over another."""
    ours = {(f.source, f.what): v[0] for f, v in zip(figures, values)}
    lines = ["| source | run | published | ours | open | error % | ratio published | ours |"]
    lines.append("| --- | --- | ---: | ---: | --- | ---: | ---: | ---: |")
    for figure, found in zip(figures, values):
        printed = published.get(figure.source, {})
        value = printed.get(figure.what)
        error = f"{100 * (found[0] / value - 1):+.0f}" if value else ""
        band = f"{short(min(found))} to {short(max(found))}" if len(found) > 1 else ""
        ratios = ["", ""]
        if figure.over:
            invert = -1 if figure.unit == "s" else 1
            ratios[1] = f"{(found[0] / ours[figure.source, figure.over]) ** invert:.2f}"
            if value:
                ratios[0] = f"{(value / printed[figure.over]) ** invert:.2f}"
        lines.append(
            f"| {figure.source} | {figure.what}, {figure.unit} | {short(value) if value else ''} | {short(found[0])} | {band} "
            f"| {error} | {ratios[0]} | {ratios[1]} |"
        )
    return "\n".join(lines)


def short(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

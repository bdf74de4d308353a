"""Other measured runs on unequal documents, as their sources state them: what is simulated for each figure that they print.

Nothing is fitted to a figure. Where a source leaves the lengths open, a figure has three tries: the prediction, and what it
could be. Published figures are in others.json, apart from the settings,
and are read after all predictions.
"""

import gzip
import json
import math
import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

from .runs import Run, RunsError, Step, predict, simulate, step_seconds

PUBLISHED = Path(__file__).with_name("others.json")
# four NICs of 100 Gbit/s per node
A100 = {"profile": "a100-sxm", "gpus_per_node": 8, "network": {"nic_GBps": 6.25}}


@dataclass
class Figure:
    source: str
    setting: str
    method: str
    unit: str
    tries: list  # functions (program, folder) -> value: the prediction first, then other possible values
    over: str = ""  # for a ratio: the method of this setting that it is over


def seconds_of(program, folder, study, steps, shard="per-sequence"):
    return mean(predict(program, Run("run", study, steps, shard=shard), folder))


# --- FlexSP (PKU-DAIR/Hetu-Galvatron, branch flexsp): GPT on 64 A100 40 GB, 512 documents of Wikipedia per step

RANKS = 64
# By longest document in thousands of tokens, whose positions are learned: layers, hidden, MiB of activations
# per token (train_dist.py), GiB of parameters, and what is recomputed. train_dist.py recomputes the FFN of 12
# layers (8 layers' work), of all, and of all with four fifths of the attentions.
FLEXSP = {
    "7B": (32, 4096, 4.480, {192: 7.117, 384: 7.850}, {"layers": 8}),
    "13B": (40, 5120, 4.220, {192: 13.116, 384: 14.032}, {"modules": ["mlp"]}),
    "30B": (60, 6656, 3.417, {192: 31.525, 384: 32.715}, {"layers": 56}),
}


def flexsp_study(model, longest):
    """The study, and the tokens that a rank holds by the source's own count: 28 GiB less the states."""
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
    """Batches as dataloader.py makes them: the first 4,000 documents that are short enough, padded to 128, in order."""
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
    """Cuts documents, longest first, into so many parts that the largest is as small as possible
    (chunk_globalbatch)."""
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
    """Packs for one group of 64 ranks: documents, best fit decreasing, in micro-batches of 0.9 of its capacity."""
    room, study = flexsp_study(model, longest)
    steps = [Step([best_fit(b, max(0.9 * room * RANKS, max(b)))]) for b in flexsp_batches(lengths, longest)]
    return seconds_of(program, folder, study, steps)


def degree_of_batch(model, longest, lengths, program, folder):
    """The fastest degree for each batch among those that hold its longest document; 32 is excluded, as in the
    source."""
    room, study = flexsp_study(model, longest)
    batches = flexsp_batches(lengths, longest)
    times = []
    for degree in (1, 2, 4, 8, 16, 64):
        groups, fast = RANKS // degree, math.inf
        layout = dict(study["parallel"], context=degree, data=groups)
        fitting = [b for b in batches if max(b) <= room * degree]
        steps = [Step(in_groups(best_fit(b, max(0.9 * room * degree, max(b))), groups)) for b in fitting]
        found = iter(predict(program, Run("run", dict(study, parallel=layout), steps), folder) if steps else ())
        times.append([next(found) if max(b) <= room * degree else fast for b in batches])
    return mean(map(min, zip(*times)))


def in_groups(bins, groups):
    """Takes so many bins at a time, and spreads documents of the last micro-batch until every group has some."""
    full = len(bins) // groups * groups
    rest = [[] for _ in range(groups)]
    for n in sorted((n for b in bins[full:] for n in b), reverse=True):
        min(rest, key=sum).append(n)
    lanes = [bins[lane:full:groups] + [rest[lane]] * bool(rest[lane]) for lane in range(groups)]
    return lanes


def many_degrees(model, longest, lengths, program, folder):
    """Gives each micro-batch degrees of its own (policy flexsp), and returns the fastest number of micro-batches."""
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
    file = folder / "study.json"
    file.write_text(json.dumps(dict(study, trace={"file": "lengths.txt"}, batch=batch, policies=[row])))
    return mean(step_seconds(simulate(program, file, file)[0]))


def flexsp(lengths):
    figures = []
    for model in FLEXSP:
        for longest in (384, 192):
            for method, how in (("DeepSpeed", one_degree), ("BatchAda", degree_of_batch), ("FlexSP", many_degrees)):
                tries, over = [partial(how, model, longest, lengths)], "DeepSpeed" * (how is not one_degree)
                figures.append(Figure("FlexSP", f"{model}, {longest}K", method, "s", tries, over))
    return figures


# --- DCP (chenyu-jiang/dcp): GPT 8B on 64 A100, TP 4, CP 16, one window of LongAlign-10k per step

DCP = {
    "model": {"name": "gpt-8b", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 50688,
              "gated_ffn": False, "tied_embeddings": True},
    "cluster": A100,
    "parallel": {"tensor": 4, "context": 16, "context_comm": "ulysses-ring", "context_inner": 2},
    "framework": {"preset": "megatron", "tp_overlap": False, "overlap_param_gather": False, "gradient_bytes": 4,
                  "loss": "unfused", "attention_kernel": "flash-attention-2", "overlap_grad_reduce": False},
}


def windows_of(window, least, most, count=20):
    """Documents evenly spread in ln(tokens), in the order of arrival, as many as the window holds, each padded to 2
    CP."""
    draw, windows = random.Random(0), [[]]
    while len(windows) <= count:
        n = 32 * round(math.exp(draw.uniform(math.log(least), math.log(most))) / 32)
        if sum(windows[-1]) + n > window:
            windows.append([])
        windows[-1].append(n)
    return windows[:count]


def megatron_cp(window, least, most, program, folder):
    steps = [Step([[documents]]) for documents in windows_of(window, least, most)]
    return seconds_of(program, folder, DCP, steps, "per-document")


def dcp():
    """Documents of LongAlign-10k, which have 8K to 64K tokens: evenly spread in ln(tokens) for the prediction, or all
    short or long."""
    figures = []
    for window in (16 << 10, 32 << 10, 64 << 10, 128 << 10):
        most = min(window, 64 << 10)
        spans = ((8 << 10, most), (8 << 10, 10 << 10), (0.8 * most, most))
        tries = [partial(megatron_cp, window, *span) for span in spans]
        figures.append(Figure("DCP", f"8B, LongAlign, {window >> 10}K", "Megatron-LM", "s", tries))
    return figures


# --- IBM's padding-free and multipack (foundation-model-stack/fms-acceleration): Mistral 7B, FSDP, A100 80 GB, OrcaMath

MISTRAL = {"name": "mistral-7b", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 32000}
# Lengths follow from the source's columns, which have tokens and documents per second. A document has 289
# tokens in one table and 277 in the other. The longest of 2, 4 and 8 documents is 1.28, 1.54 and 1.81 times
# the mean, as for a lognormal of this spread.
ORCA_SPREAD = 0.5


def lognormal(count, tokens, spread):
    draw = random.Random(1)
    return [max(8, round(draw.lognormvariate(math.log(tokens) - spread**2 / 2, spread))) for _ in range(count)]


def orca(tokens, gpus, size, how, program, folder):
    """Documents per second: `size` of them per GPU and micro-batch, two micro-batches per step."""
    study = {
        "model": MISTRAL,
        "cluster": {"profile": "a100-sxm"},
        "framework": {"preset": "fsdp", "gradient_bytes": 2, "optimizer_bytes": 4},
        "parallel": {"data": gpus, "zero": 3 if gpus > 1 else 0, "recompute": "full"},
    }
    at_once, count = gpus * size, 20
    documents, steps = lognormal(2 * at_once * count, tokens, ORCA_SPREAD), []
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
    sizes = [(289, "padded", "padding-free", g, n) for g, n in ((1, 4), (1, 8), (2, 2), (2, 4))]
    sizes += [(277, "padding-free", "multipack", g, n // g) for n in (16, 32, 64, 128) for g in (2, 4, 8)]
    figures = []
    for tokens, base, how, gpus, size in sizes:
        at = f"{gpus} GPU{'s' * (gpus > 1)}, {size} documents{' of 289' * (tokens == 289)}"
        for each in (base, how):
            tries = [partial(orca, tokens, gpus, size, each)]
            figures.append(Figure("fms-acceleration", at, each, "documents/s", tries, base * (each == how)))
    return figures


# --- torchtune: Llama 3.2 3B on one A100, packs of 4,096, two per step

LLAMA = {"name": "llama3.2-3b", "layers": 28, "hidden": 3072, "heads": 24, "kv_heads": 8, "head_dim": 128, "ffn": 8192,
         "vocab": 128256, "tied_embeddings": True}


def packs(tokens, program, folder):
    study = {
        "model": LLAMA,
        "cluster": {"profile": "a100-sxm"},
        "framework": {"preset": "fsdp", "gradient_bytes": 2, "optimizer_bytes": 4},
        "parallel": {},
    }
    documents = [tokens] * (8192 // tokens)
    return sum(documents) / seconds_of(program, folder, study, [Step([[documents]])])


def torchtune():
    """Documents of Alpaca, which are short; in a pack it hardly matters how short."""
    return [Figure("torchtune", "3B, packs of 4,096", "packed", "tokens/s", [partial(packs, n) for n in (200, 100, 400)])]


# --- TRL's batching (huggingface/trl#6092): Qwen3 1.7B on one H100, drawn lengths that it states

QWEN = {"name": "qwen3-1.7b", "layers": 28, "hidden": 2048, "heads": 16, "kv_heads": 8, "head_dim": 128, "ffn": 6144,
        "vocab": 151936, "tied_embeddings": True}


def rollouts(count):
    """Eight answers per prompt: a tenth of 4,096 tokens, the others lognormal around 700; prompts around 256, at most 1,024."""
    draw, found = random.Random(1), []
    while len(found) < count:
        prompt = round(min(1024, draw.lognormvariate(math.log(256), 0.5)))
        for _ in range(8):
            long = draw.random() < 0.1
            found.append(prompt + (4096 if long else round(min(4096, max(16, draw.lognormvariate(math.log(700), 0.9))))))
    return found


def trl_rate(size, padded, budget, program, folder):
    """Tokens per second without padding; four micro-batches per step."""
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
        for method, padded in (("padded", True), ("padding-free", False)):
            tries, over = [partial(trl_rate, size, padded, 0)], "padded" * (not padded)
            figures.append(Figure("TRL", f"1.7B, {size} documents", method, "tokens/s", tries, over))
    for budget in (4096, 8192, 16384):
        tries = [partial(trl_rate, 0, False, budget)]
        figures.append(Figure("TRL", "1.7B, 4 documents", f"{budget:,} tokens", "tokens/s", tries, "padded"))
    return figures


# --- All sources


def all_figures(data):
    """Figures of all sources. FlexSP's are included only if `data`, the folder of public length data, has its
    lengths."""
    file = Path(data) / "lengths/flexsp_wikipedia.txt.gz" if data else None
    figures = []
    if file and file.exists():
        try:
            with gzip.open(file, "rt", encoding="utf-8") as lines:
                figures += flexsp([int(line) for _, line in zip(range(6000), lines)])
        except (OSError, EOFError, ValueError) as error:
            raise RunsError(f"{file}: expected a length per line: {error}") from error
    return figures + dcp() + padding_free() + torchtune() + trl()


def predict_figures(program, figures, folder):
    """The values of each figure's tries, in order."""
    return [[at(program, Path(folder)) for at in figure.tries] for figure in figures]


def table(figures, values, published):
    """Rows of Markdown: published and predicted values, each method with the one that it is compared with."""
    ours = {(f.source, f.setting, f.method): found for f, found in zip(figures, values)}
    bases = {(f.source, f.setting, f.over) for f in figures}
    lines = ["| source | run | published | ours | error % | ratio | ours |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for figure in figures:
        if (figure.source, figure.setting, figure.method) in bases:
            continue  # its rows are those that are compared with it
        methods = [m for m in (figure.over, figure.method) if m]
        printed = [published[figure.source][figure.setting][m] for m in methods]
        found = [ours[figure.source, figure.setting, m] for m in methods]
        cells = [figure.source, f"{figure.setting}: {' → '.join(methods)}, {figure.unit}", " → ".join(map(short, printed))]
        cells.append(" → ".join(short(tries[0]) + open_of(tries) for tries in found))
        cells.append(", ".join(f"{100 * (tries[0] / value - 1):+.0f}" for tries, value in zip(found, printed)))
        ratios = [(printed[1] / printed[0], found[1][0] / found[0][0]) if figure.over else ()]
        cells += [f"{ratio ** (-1 if figure.unit == 's' else 1):.2f}" for ratio in ratios[0]] or ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def open_of(tries):
    return f" ({short(min(tries))} to {short(max(tries))})" if len(tries) > 1 else ""


def short(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

"""HBP (arXiv 2503.07680): pack lengths, packers and batching."""

from .figure import Experiment, ratio
from .hbp_setting import FittedTable as Table
from .hbp_setting import (
    DOCUMENTS,
    GPUS,
    ISF,
    PAPER,
    TOKENS,
    K,
    component_rows,
    documents_up_to,
    iterations,
    iterations_of_packs,
    layers,
    packed_at,
)
from .runner import metric, row, seconds_per_token, speedup


RATES = (50, 25, 18, 12.5)  # GB/s of a GPU's NIC: not printed


def seconds_by_nic(run, length, degree, checkpointed):
    """Seconds of an iteration of ISF's packs by the NICs' rate."""
    return [
        metric(
            packed_at(
                run, length, degree, [ISF], layers(checkpointed), steps=60, cluster__network__nic_GBps=rate
            ),
            "isf",
            "step_seconds",
        )
        for rate in RATES
    ]


def one_length(run):
    table = Table(
        PAPER,
        "One pack length, ISF",
        "At 4K a lane runs 4 packs one after another in an iteration of 512K tokens.",
    )
    for length, degree, abr, cr, dbr in (
        ("4K", 1, 0.343, 0.0, 0.003),
        ("32K", 4, 0.456, 1.0, 0.001),
        ("128K", 8, 0.506, 1.0, 0.003),
    ):
        summary = packed_at(run, length, degree, [ISF])
        table.add(
            f"{length}, SP {degree}: abr",
            abr,
            metric(summary, "isf", "abr"),
            cause='see "What the balance ratios at 32K and 4K hang on"',
        )
        table.add(f"{length}, SP {degree}: cr", cr, metric(summary, "isf", "cr"), small=0.001)
        table.add(f"{length}, SP {degree}: dbr", dbr, metric(summary, "isf", "dbr"), small=0.02)
    return table


def degrees(run):
    table = Table(
        PAPER,
        "32K packs by Ulysses degree, seconds an iteration and GPU days over SP 8's",
        "SP 1 is out of memory in the paper with all layers checkpointed.",
    )
    rows = {d: packed_at(run, "32K", d, [ISF], layers(c)) for d, c in ((2, 28), (4, 23), (8, 8), (16, 0))}
    smooth = {
        d: run.summary(
            "hbp-8b",
            [ISF],
            trace={"uniform": 800},
            parallel__context=d,
            parallel__data=GPUS // d,
            parallel__recompute=layers(c),
            batch={"context_window": 32 * K, "sequences_per_step": TOKENS // (32 * K), "steps": 5},
        )
        for d, c in ((2, 28), (4, 23), (8, 8), (16, 0))
    }
    cause = 'see "What short packs and SP 16 hang on"'
    for degree, seconds, days in ((2, 3.01, 3.73), (4, 2.95, 3.37), (8, 2.82, 3.04), (16, 3.60, 3.93)):
        ours = metric(rows[degree], "isf", "step_seconds")
        table.add(
            f"SP {degree}: iteration",
            seconds,
            ours,
            unit="s",
            cause=cause,
            band=(
                ours,
                metric(smooth[degree], "isf", "step_seconds"),
                *(seconds_by_nic(run, "32K", degree, {8: 8, 16: 0}[degree]) if degree >= 8 else ()),
            ),
        )
        if degree != 8:
            table.add(
                f"SP {degree}: days over SP 8's",
                days / 3.04,
                ratio(seconds_per_token(rows[degree], "isf"), seconds_per_token(rows[8], "isf")),
                cause='see "What short packs and SP 16 hang on"',
            )
    return table


def best_per_length(run):
    table = Table(PAPER, "Best per pack length at equal tokens, seconds an iteration")
    for length, degree, checkpointed, seconds in (
        ("8K", 2, 8, 2.69),
        ("16K", 1, 28, 2.65),
        ("32K", 8, 8, 2.83),
        ("64K", 4, 28, 3.01),
        ("128K", 8, 28, 3.05),
    ):
        tokens = int(length[:-1]) * K
        summary = packed_at(run, length, degree, [ISF], layers(checkpointed))
        smooth = run.summary(
            "hbp-8b",
            [ISF],
            trace={"uniform": 800},
            parallel__context=degree,
            parallel__data=GPUS // degree,
            parallel__recompute=layers(checkpointed),
            batch={
                "context_window": tokens,
                "sequences_per_step": max(TOKENS // tokens, GPUS // degree),
                "steps": 5,
            },
        )
        table.add(
            f"{length}, SP {degree}, {checkpointed} layers",
            seconds,
            metric(summary, "isf", "step_seconds"),
            unit="s",
            band=(
                metric(summary, "isf", "step_seconds"),
                metric(smooth, "isf", "step_seconds"),
                *(seconds_by_nic(run, length, degree, checkpointed) if tokens <= 32 * K else ()),
            ),
            cause='short packs: see "What short packs and SP 16 hang on"; 128K: lanes of unlike packs wait '
            "for each other, and the band's low end has documents of 800 tokens each, where none "
            "waits",
        )
    return table


PACKERS = (
    ("random", 0.53, None),
    ("isf", 0.506, 5.22),
    ("ffs", 0.508, 5.24),
    ("ffd", 0.515, 5.48),
    ("bfs", 0.508, 5.24),
    ("spfhp", 0.512, 5.40),
)
PACKERS_32K = (
    ("random", 0.620, 4.44),
    ("isf", 0.616, 4.00),
    ("ffs", 0.618, 4.02),
    ("ffd", 0.693, 4.51),
    ("bfs", 0.618, 4.11),
    ("spfhp", 0.695, 4.24),
)
PACKERS_4K = (
    ("random", 0.648, 3.64),
    ("isf", 0.64, 3.28),
    ("ffs", 0.638, 3.29),
    ("ffd", 0.71, 3.45),
    ("bfs", 0.64, 3.33),
    ("spfhp", 0.71, 3.47),
)


def packers(run, length, published):
    table = Table(
        PAPER,
        f"Packers at {length}: attention balance ratio, and GPU days over ISF's",
        "SP 8. From the later version." if length == "128K" else f"SP {4 if length == '32K' else 1}. From the first version's Table 3.",
    )
    degree = {"4K": 1, "32K": 4, "128K": 8}[length]
    rows = [{"name": name, "shard": "per-sequence"} for name, _, _ in published]
    if length == "4K":
        own = [n for n in run.lengths("openhermes-longcite", DOCUMENTS) if n <= 4 * K]
        summary = run.summary(
            "hbp-8b",
            rows,
            trace=run.trace_of(own),
            parallel__context=1,
            parallel__data=GPUS,
            batch={"context_window": 4 * K, "sequences_per_step": GPUS, "steps": 150},
        )
    else:
        summary = packed_at(run, length, degree, rows, steps=200)
    isf_days = dict((name, days) for name, _, days in published)["isf"]
    for name, abr, days in published:
        table.add(
            f"{name}: abr",
            abr,
            metric(summary, name, "abr"),
            cause='see "What the balance ratios at 32K and 4K hang on"',
        )
        if days and name != "isf":
            table.add(
                f"{name}: days over ISF's",
                days / isf_days,
                ratio(seconds_per_token(summary, name), seconds_per_token(summary, "isf")),
            )
    return table


def packers_128k(run):
    return packers(run, "128K", PACKERS)


def packers_32k(run):
    return packers(run, "32K", PACKERS_32K)


def packers_4k(run):
    return packers(run, "4K", PACKERS_4K)


def lanes_experiment(run):
    table = Experiment(
        PAPER,
        "What the balance ratios at 32K and 4K hang on, ISF",
        ["", "abr, 32K", "abr, 4K"],
        note="The paper: 0.616 (32K) and 0.64 (4K, OpenHermes) in its first version, 0.456 and 0.343 in a later one. The first "
        "version's Table 3 prints SP 4 for 32K, as the later one does, so lanes do not explain the two: only lengths can, "
        "which neither prints. Ours at SP 4 is below both: the fitted body is too narrow for packs without long documents "
        "(see the joint fit).",
    )
    for degree in (1, 2, 4, 8):
        summary = packed_at(run, "32K", degree, [ISF], steps=100)
        table.rows.append(
            [f"32K with SP {degree}, {GPUS // degree} lanes", metric(summary, "isf", "abr"), "-"]
        )
    own = [n for n in run.lengths("openhermes-longcite", DOCUMENTS) if n <= 4 * K]
    for power in (1, 2, 3):
        wider = [min(4 * K, max(16, round(420 * (n / 420) ** power))) for n in own]
        summary = run.summary(
            "hbp-8b",
            [ISF],
            trace=run.trace_of(wider),
            parallel__context=1,
            parallel__data=GPUS,
            batch={"context_window": 4 * K, "sequences_per_step": GPUS, "steps": 100},
        )
        table.rows.append(
            [f"4K, lengths with {power} times the spread (of ln tokens)", "-", metric(summary, "isf", "abr")]
        )
    return table


def nic_experiment(run):
    table = Experiment(
        PAPER,
        "What short packs and SP 16 hang on: seconds an iteration by the NICs' rate, GB/s a GPU",
        ["", "paper", *map(str, RATES)],
        note="The paper's network is not printed; 50 is assumed. Packs with few checkpoints and few tokens a "
             "GPU show it, since ZeRO-3 gathers the model for each, and Ulysses of 16 crosses nodes. At 18 "
             "all six rows are within 12 %; at 50, where the slowdowns were fitted to steps without packing, packs of 8K and 32K "
             "are 15 to 29 % too fast.",
    )
    for length, degree, checkpointed, published in (
        ("8K", 2, 8, 2.69),
        ("16K", 1, 28, 2.65),
        ("32K", 8, 8, 2.83),
        ("32K", 16, 0, 3.60),
    ):
        seconds = seconds_by_nic(run, length, degree, checkpointed)
        table.rows.append(
            [f"packs of {length}, SP {degree}, {checkpointed} layers", f"{published:.2f}", *seconds]
        )
    for degree, checkpointed, published in ((8, 29, 10.2), (16, 23, 10.5)):
        found = [
            run.summary(
                "hbp-8b",
                [{"name": "plain", "shard": "per-sequence"}],
                trace={"uniform": 128 * K},
                parallel__context=degree,
                parallel__data=GPUS // degree,
                parallel__recompute=layers(checkpointed),
                cluster__network__nic_GBps=rate,
                batch={"context_window": 128 * K, "sequences_per_step": 4, "steps": 1},
            )
            for rate in RATES
        ]
        seconds = [metric(summary, "plain", "step_seconds") for summary in found]
        table.rows.append(
            [f"sequences of 128K, SP {degree}, {checkpointed} layers", f"{published:.1f}", *seconds]
        )
    return table


def batching(run):
    table = Table(
        PAPER,
        "Batching, 8B: GPU days over packing's",
        "Random and sorted batching pad; at 4K a batch has 3 samples a rank (2.4K tokens), else one, as the "
        'printed Ave-T says. Packing is ISF. LongAlign\'s "sorted" is the last sorted row.',
    )
    for length, degrees_tried, random, by_length, packing in (
        ("4K", (1,), 8.0, 3.3, 3.1),
        ("32K", (4, 2, 8), 16.7, 10.3, 4.4),
        ("128K", (8,), 38.0, 33.3, 5.2),
    ):
        found = [batching_at(run, length, degree) for degree in degrees_tried]
        several = [batching_at(run, length, 4, samples) for samples in (2, 4)] if length == "32K" else []
        for what, label, days in (("random", "padded", random), ("sorted", "sorted", by_length)):
            table.add(
                f"{length}: {what} over packing",
                days / packing,
                found[0][label],
                band=tuple(f[label] for f in found + (several if label == "sorted" else [])) if len(found) > 1 else None,
                cause="the SP degree is not printed for batching: the band is SP 4, 2 and 8 with one sample a lane and, sorted, SP 4 "
                "with 2 and 4 samples (LongAlign's dynamic local batch of the later version). One sample a batch pays "
                "ZeRO-3's gathers alone, once an iteration, so that fewer lanes pay more often",
            )
    names = ("longalign-packing", "isf")
    summary = packed_at(run, "128K", 8, [{"name": name, "shard": "per-sequence"} for name in names])
    ours = ratio(*(seconds_per_token(summary, name) for name in names))
    for where, days in (("one table", 5.4), ("another", 7.4)):
        table.add(
            f"128K: LongAlign's packing over ISF, {days} days in {where}",
            days / 5.22,
            ours,
            cause="the paper prints both",
        )
    return table


def batching_at(run, length, degree, samples=1):
    """Seconds a token of random and sorted batches over ISF's packs."""
    lanes, tokens = GPUS // degree, int(length[:-1]) * K
    samples = 3 if length == "4K" else samples
    drawn = documents_up_to(run, tokens)
    trace = run.trace_of(drawn)
    layout = {"parallel__context": degree, "parallel__data": lanes}
    padded = run.summary(
        "hbp-8b",
        [{"name": "padded", "shard": "per-sequence"}, {"name": "sorted", "shard": "per-sequence"}],
        trace=trace,
        batch={"documents_per_step": lanes * samples, "micro_batch_size": samples, "steps": 400 // samples},
        **layout,
    )
    isf = run.summary(
        "hbp-8b",
        [ISF],
        trace=trace,
        **layout,
        batch=iterations_of_packs(drawn, tokens, lanes, 60),
    )
    return {
        **{
            label: ratio(seconds_per_token(padded, label), seconds_per_token(isf, "isf"))
            for label in ("padded", "sorted")
        },
        "of batches": {name: metric(padded, "padded", name) for name in ("abr", "pr", "ave_t")},
    }


def balance_ratios(run):
    table = Table(
        PAPER,
        "Table 2: padding, balance of tokens and tokens a lane, of batches and packs",
        "At 128K, SP 8. Batches of one document a lane pad none of it in ours: what the paper's random batches were padded to is not "
        "printed (0.72), so `none` is compared by ABR and Ave-T alone.",
    )
    one = batching_at(run, "128K", 8)["of batches"]
    table.add("none, 128K: abr", 0.63, one["abr"])
    table.add("none, 128K: ave_t, K tokens", 0.9, per_k(one["ave_t"]), kind="ave_t")
    at_32k, at_4k = (batching_at(run, length, degree)["of batches"] for length, degree in (("32K", 4), ("4K", 1)))
    table.add("none, 32K, first version: abr", 0.744, at_32k["abr"])
    table.add("none, 32K: ave_t, K tokens", 0.8, per_k(at_32k["ave_t"]), kind="ave_t")
    table.add("none, 4K: ave_t, K tokens", 2.4, per_k(at_4k["ave_t"]), kind="ave_t")
    packs = packed_at(run, "128K", 8, [{"name": name, "shard": "per-sequence"} for name in ("random", "isf")])
    table.add("random packing, 128K: pr", 0.03, metric(packs, "random", "pr"), small=0.01)
    table.add("ISF, 128K: pr", 0.01, metric(packs, "isf", "pr"), small=0.01)
    table.add("ISF, 128K: dbr", 0.003, metric(packs, "isf", "dbr"), small=0.02)
    return table


def per_k(tokens):
    return None if tokens is None else tokens / K


def mixtures(run):
    table = Table(
        PAPER,
        "OpenHermes (4K) + LongCite: ISF, + hierarchical, + balance",
        "The lengths of `openhermes-longcite` were fitted to the ratios of this row.",
    )
    summary = run.summary(
        "hbp-8b",
        component_rows(),
        trace={"distribution": "openhermes-longcite", "documents": DOCUMENTS},
        batch=iterations(run, 60, "openhermes-longcite"),
    )
    for label, abr, days in (
        ("isf 128K, CP 8", 0.513, 2.95),
        ("+ hierarchical", 0.269, 2.33),
        ("+ balance (hbp, groups as printed)", 0.004, 2.04),
    ):
        table.add(f"{label}: abr", abr, metric(summary, label, "abr"), "by construction", small=0.02)
        if days != 2.95:
            table.add(
                f"{label}: speed-up",
                2.95 / days,
                metric(summary, label, "speedup"),
                cause='see "What HBP\'s gain hangs on"',
            )
    return table


STEPS_OF_FLEXSP = 60


def against_flexsp(run):
    rows = [{**ISF, "label": "isf"}, {"name": "flexsp", "shard": "per-sequence"}]
    return run.summary("hbp-8b", rows, batch=iterations(run, STEPS_OF_FLEXSP))


def with_packing(summary, seconds):
    """FlexSP's speed-up over ISF where packing a batch takes so long: a step hides as much as it takes itself."""
    visible = max(0, seconds - metric(summary, "flexsp", "step_seconds"))
    total = metric(summary, "flexsp", "total_seconds") + STEPS_OF_FLEXSP * visible
    return ratio(seconds_per_token(summary, "isf"), total / metric(summary, "flexsp", "total_tokens"))


def flexsp(run):
    table = Table(
        PAPER,
        "FlexSP, SP [1, 2, 4, 8], 8B",
        "abr and dbr are of the devices, as the paper's Table 1 defines them. Packing time enters the step where it exceeds one: ours "
        "does not. Its padding of 0.04 has no counterpart in ours, which pads nothing.",
    )
    summary = against_flexsp(run)
    ours = with_packing(summary, row(summary, "flexsp")["measured"]["pack_ms"] / 1000)
    table.add("speed-up over ISF", 5.22 / 4.35, ours, cause='see "What FlexSP\'s data time takes of its gain"')
    for name, published in (("cr", 0.171), ("dbr", 0.064), ("abr", 0.36)):
        table.add(name, published, metric(summary, "flexsp", name), small=0.02)
    return table


def data_time(run):
    visible = (0, 0.25, 1, 4.41)
    table = Experiment(
        PAPER,
        "What FlexSP's data time takes of its gain: speed-up over ISF by the seconds of grouping a batch that stay visible",
        [f"{seconds} s" for seconds in visible],
        note="The paper: 1.20, with 0.25 to 4.41 s of grouping a batch left visible.",
    )
    summary = against_flexsp(run)
    step = metric(summary, "flexsp", "step_seconds")
    table.rows.append([with_packing(summary, step + seconds if seconds else 0) for seconds in visible])
    return table


TABLES = (
    one_length,
    balance_ratios,
    best_per_length,
    degrees,
    packers_128k,
    packers_32k,
    packers_4k,
    lanes_experiment,
    nic_experiment,
    batching,
    mixtures,
    flexsp,
    data_time,
)

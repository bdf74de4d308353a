"""The settings of the atlas: jobs (a model on a layout with its batches), traces, and policies with the options
tried."""

from dataclasses import dataclass, field

from papers.runner import ROOT

RECORDED = ROOT / "traces/recorded"


@dataclass(frozen=True)
class Job:
    """A job's changes to the keys of the shipped study `base`."""

    name: str
    base: str
    keys: dict = field(default_factory=dict)
    chunks: int = 1  # model chunks per stage in the base study


# There are enough steps for a policy that delays documents to reach its steady state, and few enough to take minutes in all.
JOBS = (
    Job("7B pre-training, 64 GPUs, TP 8, CP 2, PP 4", "7b-128k", {"batch.steps": 20}, chunks=2),
    Job("70B pre-training, 512 GPUs, TP 16, CP 4, PP 4, DP 2", "70b-128k", {"batch.steps": 10}, chunks=2),
    Job(
        "DeepSeek-V2 pre-training, 256 GPUs, PP 16, DP 16, EP 8",
        "deepseek-v2",
        {"batch.steps": 4, "batch.loader": "carry"},
    ),
    Job(
        "8B fine-tuning, 32 GPUs, CP 8, DP 4, ZeRO-3",
        "hbp-8b",
        {"batch": {"context_window": "128K", "sequences_per_step": 4, "steps": 20}, "parallel.context_comm": "all-gather"},
    ),
    Job(
        "0.5B fine-tuning, 8 GPUs, CP 8, ZeRO-2",
        "skrull-0.5b",
        {"batch": {"context_window": "128K", "sequences_per_step": 4, "steps": 20}},
    ),
)

TRACES = {
    "web, books, code (mixed)": {"file": str(RECORDED / "mixed.txt.zst"), "repeat": True},
    "code (linux-source)": {"file": str(RECORDED / "linux-source.txt.zst"), "repeat": True},
    "pre-training (wlb-128k)": {"distribution": "wlb-128k", "seed": 0},
    "conversations (lmsys-chat-1m)": {"distribution": "lmsys-chat-1m", "seed": 0},
    "instructions, bimodal (chatqa2-long-sft)": {"distribution": "chatqa2-long-sft", "seed": 0},
    "instructions and citations (tulu3-longcite)": {"distribution": "tulu3-longcite", "seed": 0},
}

BASELINE = {"name": "plain", "shard": "per-sequence", "label": "plain"}

# Every policy that a training program could run: no solver, which takes minutes per batch, and no plan from a file. Where a policy
# has several rows, the fastest represents it. equipoise cuts documents where the schedule runs slices. It has two
# entries: its own bound on delay, and one that hardly binds, to compare with policies that have none. Packers without a sharding rule of their own take the adaptive one, so that
# policies differ in what they pack.
POLICIES = (
    ("plain, adaptive", [{"name": "plain"}]),
    ("fixed-greedy", [{"name": "fixed-greedy", "pack_window": w} for w in (1, 8)]),
    ("wlb", [{"name": "wlb", "queues": q} for q in (0, 1, 2)]),
    ("chunkflow", [{"name": "chunkflow", "chunk_size": c, "keep": k} for c in ("8K", "32K") for k in (1, 4)]),
    ("sequence-slices", [{"name": "sequence-slices", "slices": s} for s in (2, 8)]),
    ("equipoise", [{"name": "equipoise", **schedule} for schedule in ({}, {"schedule": "seq1f1b"})]),
    ("equipoise, max_delay 8", [{"name": "equipoise", "max_delay": 8, **s} for s in ({}, {"schedule": "seq1f1b"})]),
    ("random", [{"name": "random"}]),
    ("longalign-packing", [{"name": "longalign-packing"}]),
    ("sorted", [{"name": "sorted", "tokens_per_micro_batch": "128K"}, {"name": "sorted"}]),
    ("ffd", [{"name": "ffd"}]),
    ("ffs", [{"name": "ffs"}]),
    ("bfs", [{"name": "bfs"}]),
    ("bfd", [{"name": "bfd"}]),
    ("spfhp", [{"name": "spfhp"}]),
    ("isf", [{"name": "isf"}]),
    ("hbp", [{"name": "hbp"}]),
    ("gds", [{"name": "gds"}]),
    ("skrull", [{"name": "skrull"}]),
    ("round-robin", [{"name": "round-robin"}]),
    ("lpt", [{"name": "lpt"}]),
    ("karmarkar-karp", [{"name": "karmarkar-karp"}]),
    ("multipack", [{"name": "multipack"}]),
    ("dp-balanced", [{"name": "dp-balanced"}]),
    ("hybrid-cp", [{"name": "hybrid-cp"}]),
    ("dynamic-cp", [{"name": "dynamic-cp"}]),
    ("flexsp", [{"name": "flexsp"}]),
)


def rows():
    """The entries of a study, the baseline first, and the policy of each label."""
    entries, policy_of = [BASELINE], {"plain": "plain"}
    for policy, options in POLICIES:
        for option in options:
            given = ", ".join(f"{k} {v}" for k, v in option.items() if any(o.get(k) != v for o in options))
            label = f"{policy}, {given}" if given else policy
            entries.append({"shard": "adaptive", **option, "label": label})
            policy_of[label] = policy
    return entries, policy_of

"""The commands whose cost users bear, as before_after.py measures them: studies, packing, contention, timelines."""
import dataclasses
import pathlib
import re
from typing import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
STUDIES = ROOT / "traces/studies"
FOLDER = "{folder}"  # in arguments: an empty folder, whose timelines are weighed afterwards
LENGTHS = "{lengths}"  # in arguments: a trace of so many documents
DOCUMENTS = 1_000_000

FAT_TREE = ["--contention", "--max-memory-GB", "64", "--set", "cluster.network.topology=fat-tree", "--set",
            "cluster.network.oversubscription=4"]
ONE_STEP = ["--ignore-memory", "--set", "batch.steps=1"]
ONE_REPLICA = ["--set", "parallel.data=1", "--set", "parallel.context=4", "--set", "batch.sequences_per_step=32"]
FOUR_STEPS = ["--set", "batch.steps=4"]
EVERY_LANE_AND_STAGE = ["--timeline-lanes", "all", "--timeline-stages", "all"]


@dataclasses.dataclass(frozen=True)
class Quantity:
    name: str
    unit: str  # "s", "ms" or "MB"
    of: Callable  # from the costs of the work's commands
    more_is_better: bool = False


@dataclasses.dataclass(frozen=True)
class Work:
    key: str
    name: str
    commands: list  # each a list of ways to say it: the first that the program does not refuse is run
    quantities: list
    most_seconds: float = 60  # for one command


def study(name, *options):
    return ["study", str(STUDIES / f"{name}.json"), "--quiet", *options]


def contended(*options):
    """What is estimated to need more memory than there is runs all the same."""
    return study("405b-8k-gpus", "--jobs", "1", "--fidelity", "op", *FAT_TREE, *ONE_STEP, *options)


def timeline(name, *options):
    """As run.sh does, all steps, whatever the size of the files."""
    return study(name, "--fidelity", "op", "--out", FOLDER, "--max-output-GB", "100", *options)


def packing(trace, documents, policy, *options):
    """Packs of 4K; hbp's groups on 32 GPUs; windows of 128K for wlb, which packs within a batch. Packers see all
    documents at once in any case; with as many steps as batches (hbp: one a group) packing_ms is what it says."""
    at_once = ["--sequences-per-step", "131072", "--documents-per-step"]
    sizes = {
        "hbp": ["--groups", "16K:1,128K:8", "--lanes", "4", "--context", "8", *at_once, str((documents + 1) // 2)],
        "wlb": ["--queues", "2", "--sequences-per-step", "64"],
    }.get(policy, ["--pack-length", "4K", "--lanes", "8", *at_once, str(documents)])
    return ["pack", trace, "--policy", policy, "--oversize", "split", *sizes, *options]


def packing_ms(costs):
    """All steps' packing, as the program measures it."""

    def after(what):
        return float(re.search(what + r"\W*?([\d.,]+)", costs[0].text).group(1).replace(",", ""))

    steps, batches, mean_of_batches = after(r"\nsteps\s+"), after("tokens in "), after(r"pack ms \(measured\)\s+")
    return mean_of_batches * batches if abs(steps / batches - 1) < 0.02 else float("nan")


CPU = Quantity("CPU", "s", lambda costs: costs[0].cpu)
PEAK = Quantity("peak memory", "MB", lambda costs: costs[0].peak_MB)
FILES = Quantity("timelines", "MB", lambda costs: costs[0].written_MB)
PACKING = [
    Quantity("packing alone", "ms", packing_ms),
    Quantity("whole process, CPU", "s", lambda costs: costs[0].cpu),
    PEAK,
]
SECOND_THREAD = [
    Quantity("one thread over two, elapsed", "x", lambda costs: costs[0].elapsed / costs[1].elapsed,
             more_is_better=True),
    Quantity("two threads, elapsed", "s", lambda costs: costs[1].elapsed),
    Quantity("two threads over one, CPU", "x", lambda costs: costs[1].cpu / costs[0].cpu),
]
TEN_STARTS = [
    Quantity("CPU", "ms", lambda costs: 100 * sum(one.cpu for one in costs)),
    Quantity("elapsed", "ms", lambda costs: 100 * sum(one.elapsed for one in costs)),
]


def per_step(steps):
    """All that a study does around its steps included."""
    return Quantity("CPU a policy and step", "ms", lambda costs: 1000 * costs[0].cpu / steps)


def long_study(policy, count):
    """One policy on the recorded trace, again and again."""
    return study("first-study", "--jobs", "1", "--set", "trace.repeat=true", "--set", f"batch.steps={count}", "--set",
                 f'policies=["{policy}"]', "--set", f"baseline={policy}")


def study_work(key, name, file, steps, *options):
    """`steps`: of all its policies."""
    return Work(key, name, [[study(file, "--jobs", "1", *options)]], [CPU, per_step(steps), PEAK])


def pack_work(policy):
    sizes = {"hbp": "groups of 16K and 128K", "wlb": "windows of 128K"}.get(policy, "4K")
    command = packing(LENGTHS, DOCUMENTS, policy)
    return Work(f"pack-{policy}", f"`pack`, 1 M documents, {policy}, {sizes}", [[command]], PACKING)


WORKS = [
    study_work("stage", "`study` 405b-8k-gpus, 100 steps of 4 policies", "405b-8k-gpus", 400),
    study_work("op", "the same, `--fidelity op`", "405b-8k-gpus", 400, "--fidelity", "op"),
    study_work("131k-stage", "`study` 405b-131k-gpus, 4 steps of 3 policies", "405b-131k-gpus", 12, *FOUR_STEPS),
    study_work("131k-op", "the same, `--fidelity op`", "405b-131k-gpus", 12, *FOUR_STEPS, "--fidelity", "op"),
    Work("long", "`study` first-study, 10,000 steps of `wlb-llm`", [[long_study("wlb-llm", 10_000)]],
         [CPU, per_step(10_000), PEAK]),
    Work("131k-threads", "`study` 405b-131k-gpus, second thread",
         [[study("405b-131k-gpus", "--jobs", jobs, *FOUR_STEPS)] for jobs in ("1", "2")], SECOND_THREAD),
    *[pack_work(policy) for policy in ("isf", "ffd", "bfd", "multipack", "hbp", "wlb")],
    Work("pack-json", "`pack`, 1 M documents, ffd, 4K, the plan as JSON",
         [[packing(LENGTHS, DOCUMENTS, "ffd", "--format", "json")]], [CPU, PEAK]),
    Work("contention-512", "`study --contention`, a step of 4 policies, 512 GPUs", [[contended(*ONE_REPLICA)]],
         [CPU, PEAK]),
    Work("contention-8k", "the same, 8,192 GPUs", [[contended()]], [CPU, PEAK]),
    Work("timeline", "`study --fidelity op --out`, 405b-8k-gpus, timelines as by default", [[timeline("405b-8k-gpus")]],
         [CPU, FILES, PEAK]),
    Work("timeline-all", "the same, `--timeline-lanes all --timeline-stages all`",
         # Some programs write one lane and stage by default, others all, and do not know the options.
         [[timeline("405b-8k-gpus", *EVERY_LANE_AND_STAGE), timeline("405b-8k-gpus")]], [CPU, FILES, PEAK]),
    Work("131k-timeline", "the same, 405b-131k-gpus, timelines as by default",
         [[timeline("405b-131k-gpus", *FOUR_STEPS)]], [CPU, FILES, PEAK], most_seconds=120),
    Work("start", "the program's start", [[["--version"]] for _ in range(10)], TEN_STARTS),
]

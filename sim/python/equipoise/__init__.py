"""Which packing and sharding policy trains long contexts fastest, and that policy as a batch sampler.

    import equipoise
    result = equipoise.study("traces/studies/7b-128k.json")   # simulated: every policy on the same documents
    print(result)                                             # the table that `equipoise study` prints
    result = equipoise.study(equipoise.init("qwen3-8b", 32))  # a job without a study file, on the fastest layout found that fits
    result.frame()                                            # the same as a pandas frame, one row per policy
    plan = equipoise.pack(lengths, "wlb", queues=2)           # only the plan of a policy
    equipoise.explain("wlb")                                  # what it is, and each of its options
    sampler = equipoise.BatchSampler(lengths, "wlb", lanes=8, lane=replica)   # for a PyTorch DataLoader
    best = equipoise.tune("traces/studies/7b-128k.json").best               # the fastest layout and policy, as a study

Times are simulated unless a name says that they are measured. What is wrong with an input is a ValueError
whose one line says where, what was found and what is allowed.
"""

from ._core import __version__, policy_names
from . import packed, plot
from .importing import Imported, import_job
from .own_policy import policy
from .plan import Plan, pack
from .program import Checked, Tuned, check, explain, fit, init, predict, tune, validate, verify
from .record import record
from .sampler import BatchSampler
from .study import Result, VerificationError, study
from .sweep import Sweep, sweep
from .trace import draw_trace, read_trace, write_trace

__all__ = [
    "BatchSampler",
    "Checked",
    "Imported",
    "Plan",
    "Result",
    "Sweep",
    "Tuned",
    "VerificationError",
    "__version__",
    "check",
    "draw_trace",
    "explain",
    "fit",
    "import_job",
    "init",
    "pack",
    "packed",
    "plot",
    "policy",
    "policy_names",
    "predict",
    "read_trace",
    "record",
    "study",
    "sweep",
    "tune",
    "validate",
    "verify",
    "write_trace",
]

"""What studies from several frameworks share: batches, adapters, and a layout's keys."""

import fnmatch
import json
from pathlib import Path
from typing import Any, Dict, List, Optional

from .job import Job, refuse

STEPS = 10  # in a study that is made from a job

# Names of linear layers in Hugging Face's classes, PEFT, NeMo 1 and Megatron, by their names in a study.
_ADAPTED = json.loads((Path(__file__).parent / "tables" / "linear_layers.json").read_text(encoding="utf-8"))


def adapters(job: Job, rank: Optional[int], targets: Any, targets_key: str) -> Dict[str, Any]:
    """The study's `lora`; without named targets, all linear layers have adapters."""
    words = targets.split(",") if isinstance(targets, str) else targets or []
    words = [str(word).strip().rsplit(".", 1)[-1] for word in words]
    known = {name for name, theirs in _ADAPTED.items() if any(fnmatch.filter(theirs, word) for word in words)}
    if any(not any(fnmatch.filter(theirs, word) for theirs in _ADAPTED.values()) for word in words):
        job.forget(targets_key)
    if {"q_proj", "v_proj"} & set(words) and not {"q_proj", "k_proj", "v_proj"} <= set(words):
        job.assume("adapters next to all of linear_qkv: the job has them next to some of Q, K and V")
    lora: Dict[str, Any] = {"dim": rank or 8}
    if known and known != set(_ADAPTED):
        lora["target_modules"] = [name for name in _ADAPTED if name in known]
    return lora


def windows_per_step(job: Job, key: str, batch: int, each: int) -> int:
    """The batch keys for a global batch of micro-batches over all replicas. `each` is the number of sequences in one
    micro-batch of every replica."""
    if batch % each:
        refuse(job.name_of(key), f"a multiple of the {each} sequences of one micro-batch of every replica", batch)
    return batch


def uniform(job: Job, length: int, why: str) -> Dict[str, Any]:
    job.assume(f"documents of {length} tokens each: {why} (trace: see equipoise trace)")
    return {"uniform": length}


def kept(parallel: Dict[str, Any], **more: Any) -> Dict[str, Any]:
    """A layout with the keys of `more` that have an effect: degrees above 1, and values other than None."""
    return {**parallel, **{key: value for key, value in more.items() if value is not None and value != 1 and value is not False}}


def names(value: Any) -> List[str]:
    return [value] if isinstance(value, str) else list(value or [])

"""What studies from several frameworks share: batches, adapters, and a layout's keys."""

import fnmatch
from typing import Any, Dict, List, Optional

from .job import Job, refuse

STEPS = 10  # in a study that is made from a job

# Names of linear layers in Hugging Face's classes, NeMo 1 and Megatron, by their names in a study.
_ADAPTED = {
    "linear_qkv": "q_proj k_proj v_proj qkv_proj query_key_value attention_qkv linear_qkv linear_q linear_k linear_v q_a_proj q_b_proj"
                  " kv_a_proj_with_mqa kv_b_proj wqkv c_attn",
    "linear_proj": "o_proj attention_dense linear_proj dense wo",
    "linear_fc1": "gate_proj up_proj gate_up_proj mlp_fc1 linear_fc1 w1 w3",
    "linear_fc2": "down_proj mlp_fc2 linear_fc2 w2",
}

_HALVES = {"attention": ("linear_qkv", "linear_proj"), "mlp": ("linear_fc1", "linear_fc2")}


def adapters(job: Job, rank: Optional[int], targets: Any, targets_key: str) -> Dict[str, Any]:
    """The study's `lora`; without named targets, all linear layers have adapters."""
    words = targets.split(",") if isinstance(targets, str) else targets or []
    words = [str(word).strip().rsplit(".", 1)[-1] for word in words]
    every = {"all", "all-linear", "all_linear", "all_lora_modules", "*"} & set(words)
    known = {name for name, theirs in _ADAPTED.items() if any(fnmatch.filter(theirs.split(), word) for word in words)}
    known |= {name for word, both in _HALVES.items() if word in words for name in both}
    if not every and any(not any(fnmatch.filter(theirs.split(), word) for theirs in _ADAPTED.values()) and word not in _HALVES for word in words):
        job.forget(targets_key)
    if not every and {"q_proj", "v_proj"} & set(words) and not {"q_proj", "k_proj", "v_proj"} <= set(words):
        job.assume("adapters next to all of linear_qkv: the job has them next to some of Q, K and V")
    if every:
        known = set(_ADAPTED)
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

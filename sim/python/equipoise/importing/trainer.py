"""Trainers of Hugging Face's kind: TRL, axolotl, LLaMA-Factory, NeMo AutoModel, scripts of DeepSpeed, verl's SFT.

Data parallelism with DeepSpeed or FSDP, a batch per device, samples that are padded or packed. What each calls its settings, and its
defaults, is in its table.
"""

import re
from pathlib import Path
from typing import Any, Dict, Optional

from .job import Imported, Job, Table, refuse
from .models import has_experts, layers_of, model_of
from .parts import STEPS, adapters, kept, names, uniform
from .texts import settings_of
from .torchtitan import SCHEDULES

_STRATEGIES = {"full_shard": 3, "hybrid_shard": 3, "shard_grad_op": 2, "hybrid_shard_zero2": 2, "no_shard": 0, "1": 3, "2": 2, "3": 0, "4": 3}


def trainer(job: Job) -> Imported:
    defaults = job.table.defaults
    model = model_of(job)
    parallel, preset = _layout(job, defaults, has_experts(model))
    window, packing = _window(job, defaults), _packing(job, defaults)
    if (recompute := _recompute(job, defaults, layers_of(model))) is not None:
        parallel["recompute"] = recompute
    study = {
        "model": model, "framework": _framework(job, preset), "schedule": _schedule(job, parallel), "parallel": parallel,
        "batch": _batch(job, defaults, parallel, window, packing is None),
        "trace": uniform(job, window, "which lengths your data have is not in the file"),
        "precision": _precision(job), "lora": _lora(job), "frozen": _frozen(job, model),
        "policies": [{**(packing or _padded(job)), **({"shard": "per-sequence"} if parallel.get("context", 1) > 1 else {})}],
    }
    if job.get("stage") not in (None, "sft", "pt"):
        job.forget("stage")
    return job.finish(study)


def _recompute(job: Job, defaults: Dict[str, Any], layers: Optional[int]) -> Any:
    asked, checkpoints = job.get("recompute"), job.count("checkpoints", least=0)
    if isinstance(asked, str) and asked.lower() not in ("true", "false", "offload", "unsloth"):
        job.forget("recompute")
    if isinstance(asked, str) and "offload" in asked.lower():
        job.assume("kept activations on the GPU: the job offloads them")
    if checkpoints:
        return "full" if layers is None or checkpoints >= layers else {"layers": checkpoints}
    on = asked in ("offload", "unsloth") or job.is_set("recompute", bool(defaults.get("recompute")))
    if on and asked is None and not job.has("no_recompute"):
        job.assume(f"full recompute: the file does not say it, and it is {job.table.framework}'s default")
    return "full" if on and not job.is_set("no_recompute") else None


def _framework(job: Job, preset: str) -> Any:
    return {"preset": preset, "loss": "chunked"} if job.is_set("chunked_loss") else preset


def _schedule(job: Job, parallel: Dict[str, Any]) -> Optional[str]:
    name = job.get("schedule")
    if name is None or parallel["pipeline"] == 1:
        return None
    known = {theirs.lower(): ours for theirs, ours in SCHEDULES.items()}
    if str(name).lower() not in known:
        job.forget("schedule")
        return None
    if known[str(name).lower()] == "interleaved-1f1b":
        parallel["virtual_pipeline"] = 2
        job.assume("two stages a rank: how many an interleaved schedule has is not in the file")
    return known[str(name).lower()]


def _default(job: Job, defaults: Dict[str, Any], meaning: str) -> int:
    value = job.count(meaning, least=1) if str(job.get(meaning)) != "auto" else None
    if value is None:
        value = defaults[meaning]
        job.assume(f"{job.name_of(meaning) if job.has(meaning) else meaning} {value}: the file does not say it, and it is {job.table.framework}'s default")
    return value


def _window(job: Job, defaults: Dict[str, Any]) -> int:
    """Tokens of a sample, or of a pack if the job states its length."""
    pack = job.get("packing")
    return pack if isinstance(pack, int) and pack > 1 else _default(job, defaults, "window")


def _said(job: Job, meaning: str) -> Optional[int]:
    """A positive number; None if the file has none, or "auto"."""
    value = job.get(meaning)
    return None if value is None or str(value) == "auto" or str(value).startswith(("-", "$")) else job.count(meaning, least=1)


def _world(job: Job) -> Optional[int]:
    all_gpus, each, nodes = _said(job, "world_size"), _said(job, "gpus_per_node"), _said(job, "nodes")
    return all_gpus or (each * (nodes or 1) if each else 8 * nodes if nodes and nodes > 1 else None)


def _layout(job: Job, defaults: Dict[str, Any], sparse: bool) -> Any:
    """The study's `parallel`, and the preset."""
    tensor, pipeline, expert = (_said(job, degree) or 1 for degree in ("tensor", "pipeline", "expert"))
    expert = expert if sparse else 1
    ulysses, ring = _said(job, "ulysses") or 1, _said(job, "context") or 1
    context = max(ulysses, ring)
    replicate, shard, data = _said(job, "replicate"), _said(job, "shard"), _said(job, "data")
    of_replica = tensor * pipeline * context
    given = data or ((replicate or 1) * shard if shard else None)
    world = _world(job) or (given * of_replica if given else None)
    batch, micro = _said(job, "global_batch"), _said(job, "micro_batch") or 1
    data = job.replicas(world, of_replica, -(-expert // of_replica), batch // micro if batch else None)
    sharded, preset = _sharding(job, defaults)
    if replicate and replicate > 1 and sharded:
        job.assume(f"parameters sharded over all replicas: the job has {replicate} groups of them")
    parallel = kept({"tensor": tensor, "context": context, "pipeline": pipeline, "data": data}, expert=expert)
    if context > 1:
        kind = str(job.get("context_kind", "")).lower()
        parallel["context_comm"] = "ulysses" if ulysses > 1 or kind in ("ulysses", "deepspeed") else defaults.get("context_comm", "ring")
    if data * context > 1:
        parallel["zero"] = sharded
    return _offloaded(job, parallel), preset


def _offloaded(job: Job, parallel: Dict[str, Any]) -> Dict[str, Any]:
    """Adds the optimizer states that DeepSpeed keeps on the host."""
    if str(job.get("offload_optimizer", "none")) in ("cpu", "True"):
        parallel["optimizer_offload"] = 1.0
    if str(job.get("offload_param", "none")) not in ("none", "None", "False"):
        job.forget("offload_param")
    return parallel


def _sharding(job: Job, defaults: Dict[str, Any]) -> Any:
    """ZeRO's stage, and the preset: DeepSpeed's, or that of PyTorch's own data parallelism."""
    deepspeed, stage = job.get("deepspeed"), _stage(job)
    kind = str(job.get("distributed_type", defaults.get("distributed_type", ""))).lower()
    if isinstance(deepspeed, str) and stage is None:
        stage = _stage_of_file(job, deepspeed)
    if stage is not None and (deepspeed is not None or job.has("zero_stage")) or "deepspeed" in kind:
        return stage or 0, "deepspeed"
    fsdp = names(job.get("fsdp"))
    words = {word for one in fsdp for word in str(one).lower().split()}
    strategy = str(job.get("fsdp_strategy", "")).lower()
    if not (words or strategy or job.has("fsdp_version") or job.has("reshard") or "fsdp" in kind or (_said(job, "shard") or 1) > 1):
        return 0, "fsdp"
    for word in [strategy, *sorted(words)]:
        if word in _STRATEGIES:
            if "hybrid" in word:
                job.assume("parameters sharded over all replicas: the job shards them in each node")
            return _STRATEGIES[word], "fsdp"
    return 3 if job.is_set("reshard", True) else 2, "fsdp"


def _stage(job: Job) -> Optional[int]:
    stage = job.get("zero_stage")
    return None if stage is None else job.count("zero_stage", least=0)


def _stage_of_file(job: Job, name: str) -> Optional[int]:
    """The stage in a DeepSpeed configuration, which is next to the job or in a folder above it."""
    here = Path(job.path).resolve().parent
    table = Table("deepspeed")
    for folder in (here, *list(here.parents)[:4]):
        try:
            text = (folder / name).read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        for key, value in settings_of(name, text).items():
            meaning = table.meaning(key)
            if meaning in ("zero_stage", "offload_optimizer", "offload_param", "bf16", "fp16"):
                job.names.setdefault(meaning, []).append(key)
                job.settings.setdefault(key, value)
                job.asked.add(key)
        return _stage(job) or 0
    found = re.search(r"(?:z|zero|stage)[-_]?([0-3])", name.lower())
    if found is None:
        return refuse(job.name_of("deepspeed"), "a configuration of DeepSpeed that is there", name)
    job.assume(f"ZeRO stage {found[1]}: by the name of {name}, which is not there")
    return int(found[1])


def _batch(job: Job, defaults: Dict[str, Any], parallel: Dict[str, Any], window: int, padded: bool) -> Dict[str, Any]:
    data, batch = parallel["data"], _said(job, "global_batch")
    micro, accumulation = _said(job, "micro_batch"), _said(job, "accumulation")
    if parallel["pipeline"] > 1 and (of_pipeline := _said(job, "pipeline_micro_batch")):
        batch, micro = batch or (micro or of_pipeline) * data * (accumulation or 1), of_pipeline
    if micro is None:
        micro = batch // (data * (accumulation or 1)) if batch and batch >= data * (accumulation or 1) else _default(job, defaults, "micro_batch")
    each = micro * data
    if batch is None:
        batch = _default(job, defaults, "global_batch") if "global_batch" in defaults and not accumulation else each * (accumulation or 1)
    if batch % each:
        refuse(job.name_of("global_batch"), f"a multiple of the {each} samples of one micro-batch of every replica", batch)
    sizes = {"context_window": window, "micro_batch_size": micro, "steps": STEPS}
    return {**sizes, "documents_per_step": batch, "micro_batches": batch // micro} if padded else {**sizes, "sequences_per_step": batch}


def _packing(job: Job, defaults: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """The policy that packs as the job does; None if every document is a sample of its own."""
    asked = job.get("packing")
    packs = job.is_set("packing") or (isinstance(asked, int) and asked > 1)
    if asked is None and job.get("stage") == "pt":
        packs = True
    strategy = str(job.get("packing_strategy", defaults.get("packing_strategy", "ffd")))
    apart = job.is_set("documents_apart", not defaults.get("packs_attend", False))
    if not packs:
        return None
    known: Dict[str, str] = defaults.get("strategies", {})
    if strategy not in known and strategy not in known.values():
        job.forget("packing_strategy")
    if not apart:
        job.assume("attention inside documents: the job attends across those of a pack")
    if job.get("stage") == "pt":
        return {"name": "plain"}
    return {"name": "longalign-packing" if job.is_set("packing_in_order") else known.get(strategy, defaults["packing_strategy"])}


def _padded(job: Job) -> Dict[str, Any]:
    policy: Dict[str, Any] = {"name": "sorted" if job.is_set("by_length") else "padded"}
    if job.is_set("padding_free"):
        policy["padding"] = False
    return policy


def _precision(job: Job) -> str:
    words = [str(job.get(one, "")).lower() for one in ("dtype", "mixed_precision")]
    if job.is_set("fp8") or "fp8" in words:
        return "fp8"
    says_bf16 = str(job.get("bf16", "")).lower() in ("true", "auto", "full", "1") or any("bf16" in one or "bfloat16" in one for one in words)
    says_fp16 = str(job.get("fp16", "")).lower() in ("true", "1") or any(one in ("fp16", "float16", "half") for one in words)
    if not says_bf16 and (says_fp16 or not job.table.defaults.get("bf16")):
        job.assume("bf16, the job has fp16" if says_fp16 else "bf16: the job does not say it")
    return "bf16"


def _lora(job: Job) -> Optional[Dict[str, Any]]:
    adapter, rank = str(job.get("adapter", "")).lower(), _said(job, "lora_rank")
    asked = adapter in ("lora", "qlora") or job.is_set("use_lora") or (adapter == "" and job.get("use_lora") is None and (rank or 0) > 0)
    if adapter not in ("", "none", "full", "lora", "qlora", "freeze"):
        job.forget("adapter")
    targets, every = job.get("lora_targets"), job.is_set("lora_every_linear")
    if adapter == "qlora" or any(job.is_set(one) for one in ("in_4bit", "in_8bit")) or _said(job, "quantization_bits"):
        job.assume("frozen weights in bf16: the job holds them in fewer bits, which is not simulated")
    return adapters(job, rank, None if every else targets, "lora_targets") if asked else None


def _frozen(job: Job, model: Any) -> Optional[Any]:
    """Freezes all but the last layers, as LLaMA-Factory's `freeze` does."""
    trained, layers = job.count("trained_layers"), layers_of(model)
    if str(job.get("adapter", "")).lower() != "freeze":
        return None
    if not layers or not 0 < (trained or 2) < layers:
        job.forget("trained_layers")
        return None
    return ["embedding", "head", {"layers": layers - (trained or 2)}]

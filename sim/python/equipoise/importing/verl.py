"""Imports verl: the update of the actor, which its PPO trainer runs on FSDP or Megatron."""

from typing import Any, Dict

from .job import Imported, Job
from .megatron import recomputed
from .models import has_experts, model_of
from .parts import STEPS, adapters, kept, uniform


def verl(job: Job) -> Imported:
    by_megatron = job.get("strategy") == "megatron" or (job.get("strategy") is None and (job.has("tensor") or job.get("config_name") == "ppo_megatron_trainer"))
    model = model_of(job)
    parallel = _megatron(job, model) if by_megatron else _fsdp(job)
    job.assume("the actor's update alone: rollout, reference and critic are other parts of a step")
    budget, samples = job.count("tokens_per_gpu", least=1), job.count("mini_batch", least=1) or 256
    length = (job.count("prompt", 512, least=0) or 0) + (job.count("response", 512, least=0) or 0)
    samples *= job.degree("samples_of_prompt")
    batch = {"documents_per_step": samples, "steps": STEPS}
    if job.is_set("dynamic", budget is not None):
        tokens = (budget or 16384) * parallel["context"]
        length = min(length, tokens) if job.has("prompt") or job.has("response") else tokens
        batch["context_window"] = tokens
        policy: Dict[str, Any] = {"name": "karmarkar-karp", "tokens_per_micro_batch": tokens}
    else:
        micro = job.degree("micro_batch")
        lanes = parallel["data"]
        batch.update(context_window=length, micro_batch_size=micro, micro_batches=max(lanes, -(-samples // (micro * lanes)) * lanes))
        policy = {"name": "padded", **({"padding": False} if job.is_set("remove_padding") else {})}
    if parallel["context"] > 1:
        policy["shard"] = "per-document" if by_megatron else "per-sequence"
    rank = job.count("lora_rank", 0) or job.count("megatron_lora_rank", 0)
    targets = job.get("lora_targets")
    study = {
        "model": model, "framework": "megatron" if by_megatron else "fsdp", "parallel": parallel, "batch": batch, "precision": "bf16",
        "trace": uniform(job, length, "how long prompts and responses become is not in the file"),
        "lora": adapters(job, rank, targets, "lora_targets") if rank else None, "policies": [policy],
    }
    return job.finish(study)


def _world(job: Job) -> Any:
    each, nodes = job.count("gpus_per_node"), job.count("nodes", 1)
    return each * nodes if each and nodes else None


def _fsdp(job: Job) -> Dict[str, Any]:
    context = job.degree("ulysses")
    data = job.replicas(_world(job), context)
    parallel: Dict[str, Any] = {"context": context, "data": data}
    if context > 1:
        parallel["context_comm"] = "ulysses"
    if data * context > 1:
        shards = job.count("fsdp_size", -1)
        parallel["zero"] = 0 if shards == 1 else 3 if job.is_set("reshard", True) else 2
        if shards not in (-1, 1, data * context):
            job.assume(f"parameters sharded over all replicas: the job shards them in groups of {shards}")
    if job.is_set("gradient_checkpointing", True):
        parallel["recompute"] = "full"
    return parallel


def _megatron(job: Job, model: Any) -> Dict[str, Any]:
    tensor, context, pipeline = job.degree("tensor"), job.degree("context"), job.degree("pipeline")
    expert, expert_tensor, virtual = job.degree("expert"), job.count("expert_tensor", least=1), job.degree("virtual")
    expert = expert if has_experts(model) else 1
    of_replica = tensor * context * pipeline
    data = job.replicas(_world(job), of_replica, -(-expert * (expert_tensor or tensor) // (tensor * context)))
    parallel = kept({"tensor": tensor, "context": context, "pipeline": pipeline, "data": data}, expert=expert, virtual_pipeline=virtual)
    if expert_tensor and expert_tensor != tensor and expert > 1:
        parallel["expert_tensor"] = expert_tensor
    if context > 1:
        parallel["context_comm"] = "ring"
    parallel["zero"] = 1 if job.is_set("use_distributed_optimizer", True) else 0
    if (recompute := recomputed(job, pipeline * virtual, model)) is not None:
        parallel["recompute"] = recompute
    return parallel

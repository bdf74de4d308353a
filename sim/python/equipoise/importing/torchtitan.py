"""torchtitan: its TOML, up to v0.2.2, the last version that reads one."""

from typing import Any, Dict, Optional

from .job import Imported, Job, of_tables, refuse
from .models import has_experts, has_latent_attention, layers_of, model_of
from .parts import STEPS, uniform, windows_per_step

SCHEDULES = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved-1f1b", "DualPipeV": "dualpipe",
              "InterleavedZeroBubble": "zb-h1", "ZBVZeroBubble": "zb-h1"}
_AT = "parallelism."


def torchtitan(job: Job) -> Imported:
    model = _model(job)
    tensor, context = job.degree(_AT + "tensor_parallel_degree"), job.degree(_AT + "context_parallel_degree")
    pipeline = job.degree(_AT + "pipeline_parallel_degree")
    parallel: Dict[str, Any] = {"tensor": tensor, "context": context, "pipeline": pipeline, "data": _replicas(job, tensor * context * pipeline)}
    parallel.update(_sharding(job, parallel))
    _virtual(job, parallel, layers_of(model))
    if (recompute := _recompute(job, model)) is not None:
        parallel["recompute"] = recompute
    batch = _batch(job, parallel)
    policy: Dict[str, Any] = {"name": "plain", **({"shard": "per-sequence"} if context > 1 else {})}
    converters = job.get("model.converters", [])
    fp8 = any("float8" in one for one in ([converters] if isinstance(converters, str) else converters))
    if job.get("training.mixed_precision_param", "bfloat16") != "bfloat16":
        job.assume("bf16: the job multiplies in fp32, which is not simulated")
    study = {
        "model": model, "framework": _framework(job), "parallel": parallel, "batch": batch, "policies": [policy],
        "trace": uniform(job, batch["context_window"], "torchtitan's masks and data set are not in the file"),
        "precision": "fp8" if fp8 else "bf16", "schedule": _schedule(job, pipeline),
    }
    return job.finish(study)


def _model(job: Job) -> Any:
    kind, flavor = job.get("model.name"), job.get("model.flavor")
    if job.options.model:
        return model_of(job)
    if kind is None or flavor is None:
        kind, flavor = kind or "llama3", flavor or "8B"
        job.assume(f"model {kind} {flavor}: the file does not say which (--model)")
    flavors, models = of_tables("torchtitan")["flavors"], of_tables("names")["models"]
    model = flavors.get(f"{kind} {flavor}")
    if model is None:
        refuse("model.flavor", "one of " + ", ".join(flavors) + " (or --model)", f"{kind} {flavor}")
    return models.get(model, model)


def _replicas(job: Job, of_replica: int) -> int:
    replicas, shards = job.degree(_AT + "data_parallel_replicate_degree"), job.count(_AT + "data_parallel_shard_degree", -1)
    data, gpus = replicas * shards, job.options.gpus
    if shards <= 0:
        batch = job.count("training.global_batch_size", -1)
        return job.replicas(None, of_replica, 1, batch // job.degree("training.local_batch_size", 8) if batch > 0 else None)
    if gpus is not None and data * of_replica != gpus:
        raise ValueError(f"gpus: expected {data * of_replica}, as the file's degrees give, found {gpus}")
    return data


def _sharding(job: Job, parallel: Dict[str, Any]) -> Dict[str, Any]:
    replicas, shards = job.degree(_AT + "data_parallel_replicate_degree"), job.count(_AT + "data_parallel_shard_degree", -1)
    context, data, tensor = parallel["context"], parallel["data"], parallel["tensor"]
    keys: Dict[str, Any] = {}
    if replicas > 1 and shards != 1:
        job.assume(f"parameters sharded over all replicas: the job has {replicas} groups of them")
    reshard = job.get(_AT + "fsdp_reshard_after_forward", "default")
    if data * context > 1:
        never = reshard == "never" or (reshard == "default" and parallel["pipeline"] > 1)
        sharded = shards != 1 and data > 1
        keys["zero"] = 0 if not sharded and context == 1 else 2 if never else 3
    rotate = job.get(_AT + "context_parallel_rotate_method", "allgather")
    job.get(_AT + "context_parallel_load_balancer")
    if context > 1:
        keys["context_comm"] = "all-gather" if rotate == "allgather" else "ring"
    expert, expert_tensor = job.degree(_AT + "expert_parallel_degree"), job.degree(_AT + "expert_tensor_parallel_degree", tensor)
    if expert > 1:
        keys["expert"] = expert
        if expert_tensor != tensor:
            keys["expert_tensor"] = expert_tensor
    return keys


def _recompute(job: Job, model: Any) -> Any:
    mode, option = job.get("activation_checkpoint.mode", "selective"), str(job.get("activation_checkpoint.selective_ac_option", "2"))
    if mode not in ("full", "selective", "none"):
        job.forget("activation_checkpoint.mode")
    if mode == "full":
        return "full"
    if mode != "selective":
        return None
    if option != "op" and not (option.isdigit() and int(option)):
        refuse("activation_checkpoint.selective_ac_option", "op or a number of layers", option)
    layers = layers_of(model)
    if option == "op" and (has_experts(model) or has_latent_attention(model)):
        job.assume("norms and the experts' activation recomputed: by operator, as the job has it, is not simulated for such a model")
        return {"modules": ["layernorm", "moe_act"]}
    if option == "op":
        return {"modules": ["per_op"]}
    if layers is None:
        job.assume(f"full recompute: how many layers every {option} are is in the model's config.json")
        return "full"
    return {"layers": layers // int(option)}


def _batch(job: Job, parallel: Dict[str, Any]) -> Dict[str, Any]:
    window, local = job.degree("training.seq_len", 2048), job.degree("training.local_batch_size", 8)
    batch = job.count("training.global_batch_size", -1)
    micro = job.degree(_AT + "pipeline_parallel_microbatch_size") if parallel["pipeline"] > 1 else local
    if batch < 1:
        batch = local * parallel["data"]
    return {"context_window": window, "micro_batch_size": micro, "steps": STEPS,
            "sequences_per_step": windows_per_step(job, "training.global_batch_size", batch, micro * parallel["data"])}


def _virtual(job: Job, parallel: Dict[str, Any], layers: Optional[int]) -> None:
    schedule, pipeline = job.get(_AT + "pipeline_parallel_schedule", "1F1B"), parallel["pipeline"]
    of_stage = job.count(_AT + "pipeline_parallel_layers_per_stage", least=1)
    less = sum(job.count(f"{_AT}pipeline_parallel_{end}_stage_less_layers", 1) for end in ("first", "last"))
    if pipeline == 1 or not layers:
        return
    # Schedules with several stages per rank have two if no number is given.
    several = schedule in ("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
    virtual = -(-(layers + less) // (pipeline * of_stage)) if of_stage else 2 if schedule == "Interleaved1F1B" else 1
    if virtual > 1 and (several or of_stage) and SCHEDULES.get(schedule) not in ("zb-h1", "dualpipe"):
        parallel["virtual_pipeline"] = virtual
    if less == 2:
        parallel["count_embedding_and_head"] = True


def _schedule(job: Job, pipeline: int) -> Optional[str]:
    schedule = job.get(_AT + "pipeline_parallel_schedule", "1F1B")
    if pipeline == 1:
        return None
    if schedule not in SCHEDULES:
        job.forget(_AT + "pipeline_parallel_schedule")
        return None
    if SCHEDULES[schedule] == "zb-h1":
        job.assume(f"schedule zb-h1 for {schedule}, whose two stages a rank the simulator does not have with it")
    return SCHEDULES[schedule]


def _framework(job: Job) -> Dict[str, Any]:
    framework: Dict[str, Any] = {"preset": "torchtitan"}
    if job.is_set("quantize.linear.float8.enable_fsdp_float8_all_gather"):
        framework["fp8_param_gather"] = True
    if job.is_set(_AT + "enable_async_tensor_parallel"):
        framework["tp_overlap"] = True
    if job.get(_AT + "expert_parallel_comm_backend", "standard") == "deepep":
        framework["expert_dispatcher"] = "deepep"
    return framework

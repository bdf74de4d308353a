"""Imports Megatron-LM and frameworks with its settings: recipes of Megatron-Bridge, configurations of NeMo."""

import re
from typing import Any, Dict, List, Optional, Set

from .job import Imported, Job, refuse
from .models import has_experts, has_latent_attention, known_model, layers_of, model_of
from .parts import STEPS, adapters, names, uniform, windows_per_step

_CP_FORMS = {"p2p": "ring", "all_gather": "all-gather", "allgather": "all-gather", "a2a": "ulysses", "a2a+p2p": "ulysses-ring"}
_FSDP = {"optim": 1, "optim_grads": 2, "optim_grads_params": 3, "no_shard": 0}
_SHAPE = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "group_query_attention", "kv_channels", "swiglu",
          "untie_embeddings_and_output_weights", "share_embeddings_and_output_weights", "vocab_size", "padded_vocab_size", "num_experts", "moe_router_topk",
          "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_layer_freq", "multi_latent_attention", "kv_lora_rank", "q_lora_rank",
          "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")


def megatron(job: Job) -> Imported:
    """The signature of all makers: a job becomes a study."""
    model = _model(job)
    parallel, framework, data = _layout(job, model)
    window = job.count("seq_length", least=1) or job.count("max_seq_length", least=1) or _window_of_recipe(job)
    micro, batch = job.degree("micro_batch_size"), job.count("global_batch_size", least=1)
    if batch is None:
        batch = micro * data
        job.assume(f"a global batch of {batch}, micro-batch x data parallelism, as in Megatron-LM")
    study = {
        "model": model, "framework": framework, "parallel": parallel,
        "trace": uniform(job, window, "which lengths your data have is not in the file; equipoise trace info says it of an .idx file"),
        "mtp_layers": job.count("mtp_num_layers") or None, "lora": _lora(job), "precision": _precision(job),
        "batch": {"context_window": window, "sequences_per_step": windows_per_step(job, "global_batch_size", batch, micro * data),
                  "micro_batch_size": micro, "steps": STEPS},
        "policies": [_policy(job, window, parallel["context"])],
    }
    return job.finish(study)


def _window_of_recipe(job: Job) -> int:
    window = job.table.defaults.get("seq_length")
    if window is None:
        return job.needed("seq_length")
    job.assume(f"a sequence of {window} tokens: the recipe's own is not in the file")
    return window


def _policy(job: Job, window: int, context: int) -> Dict[str, Any]:
    policy: Dict[str, Any] = {"name": "plain"}
    if job.is_set("hybrid_context_parallel"):
        policy = {"name": "hybrid-cp", "tokens_per_rank": job.count("max_seqlen_per_dp_cp_rank", window // context)}
    elif job.get("packed_sequence_size", 0) not in (0, -1) or job.is_set("packed_sequence"):
        policy = {"name": "ffs"}  # their default is first_fit_shuffle
    each_alone = job.is_set("dataloader_inter_document_masking") or policy["name"] in ("ffd", "ffs")
    if context > 1:
        policy["shard"] = "per-document" if each_alone else "per-sequence"
    return policy


def _precision(job: Job) -> str:
    fp8 = job.get("fp8_format") or job.get("fp8")
    for name in ("bf16", "fp16", "fp8_recipe"):
        job.get(name)
    mixed = str(job.get("mixed_precision") or job.get("precision") or "")
    if fp8 not in (None, False, "False", "none") or "fp8" in mixed:
        return "fp8"
    if not job.is_set("bf16") and "bf16" not in mixed:
        job.assume("bf16" + (", the job has fp16" if job.is_set("fp16") or "16" in mixed else ", the job does not say it"))
    return "bf16"


def _lora(job: Job) -> Optional[Dict[str, Any]]:
    scheme, rank = str(job.get("peft_scheme", "")), job.count("peft_dim", least=1)
    if scheme not in ("", "lora", "none", "None", "null"):
        job.forget("peft_scheme")
    if rank is None and scheme != "lora" and "_peft_" not in str(job.get("recipe", "")):
        return None
    return adapters(job, rank or 32, job.get("peft_targets", job.table.defaults.get("peft_targets")), "peft_targets")


def _model(job: Job) -> Any:
    if job.options.model or not job.has("num_layers") or not job.has("hidden_size"):
        return _named_model(job)
    heads, hidden = job.needed("num_attention_heads"), job.needed("hidden_size")
    activation = str(job.get("activation", ""))
    gated = any([job.is_set(name) for name in ("swiglu", "geglu", "quick_geglu")]) or any(part in activation for part in ("swiglu", "geglu", "reglu"))
    groups = job.count("num_query_groups")
    grouped = job.is_set("group_query_attention") or (groups is not None and not job.settings.get("_log_head"))
    ffn = job.count("ffn_hidden_size")
    layers = job.needed("num_layers")
    model: Dict[str, Any] = {
        "layers": layers, "hidden": hidden, "heads": heads,
        "kv_heads": groups if grouped and groups else heads,
        # Megatron's default is 4 h; a gated FFN has two thirds of it, in multiples of 64.
        "ffn": ffn or (int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden),
        "gated_ffn": gated,
        "tied_embeddings": job.is_set("share_embeddings_and_output_weights", not job.is_set("untie_embeddings_and_output_weights")),
        "vocab": job.count("vocab_size") or job.count("padded_vocab_size"),
    }
    job.get("padded_vocab_size")
    if model["vocab"] is None:
        model["vocab"] = 128256
        job.assume("model.vocab 128256: the tokenizer's own is not in the file")
    head_dim = job.count("kv_channels")
    if head_dim and head_dim != hidden // heads:
        model["head_dim"] = head_dim
    if experts := job.count("num_experts"):
        model["experts"] = {
            "count": experts, "active": job.count("moe_router_topk", 2),
            "ffn": job.count("moe_ffn_hidden_size") or model["ffn"],
            "dense_layers": _dense_layers(job, layers),
        }
        if shared := job.count("moe_shared_expert_intermediate_size"):
            model["experts"]["shared_ffn"] = shared
    if job.is_set("multi_latent_attention"):
        model["mla"] = {"kv_lora": job.count("kv_lora_rank", 32), "nope_dim": job.count("qk_head_dim", 128),
                        "rope_dim": job.count("qk_pos_emb_head_dim", 64), "v_dim": job.count("v_head_dim", 128)}
        if rank := job.count("q_lora_rank"):
            model["mla"]["q_lora"] = rank
        model.pop("head_dim", None)
        model.pop("kv_heads")
    return model


def _named_model(job: Job) -> Any:
    """The model that --model, a path or a recipe's name states: "llama3_8b_pretrain_config"."""
    recipe = str(job.get("recipe", "")).split(".")[-1]
    model = known_model(re.sub(r"(_(pretrain|sft|peft|finetune|lora|packed|squad|full))*(_(config|recipe))?$", "", recipe)) if recipe else None
    if job.options.model:
        for name in _SHAPE:
            job.get(name)
    if model is None or job.options.model:
        return model_of(job, "model" if job.has("model") or not recipe else "recipe")
    job.get("model")
    return model


def _dense_layers(job: Job, layers: int) -> int:
    """How many of the first layers have no experts, from "[0]*3+[1]*58", "([0]*1+[1]*26)", a list or a number."""
    text = str(job.get("moe_layer_freq", 1)).replace(" ", "")
    if text == "1":
        return 0
    rule: List[int] = []
    for part in text.strip("()").split("+"):
        found = re.fullmatch(r"\(?\[([01,]+)\]\)?(?:\*(\d+))?", part)
        if not found:
            job.forget("moe_layer_freq")
            return 0
        rule += [int(one) for one in found[1].split(",")] * min(int(found[2] or 1), layers + 1)
    first = rule.index(1) if 1 in rule else 0
    if rule != [0] * first + [1] * (layers - first):
        job.forget("moe_layer_freq")
    return first


def _recomputable(model: Any) -> Set[str]:
    """Which modules the model's layers have."""
    experts = {"moe", "moe_act", "shared_experts"} if has_experts(model) else set()
    return {"core_attn", "layernorm", "mlp"} | experts | ({"mla_up_proj"} if has_latent_attention(model) else set())


def recomputed(job: Job, stages: int, model: Any) -> Any:
    """The recompute key. `stages` are virtual ones, each of which recomputes so many of its own layers."""
    layers = layers_of(model)
    granularity, method = job.get("recompute_granularity"), job.get("recompute_method")
    count, modules = job.count("recompute_num_layers"), names(job.get("recompute_modules"))
    if job.is_set("recompute_activations"):
        granularity = granularity or "selective"
    if granularity == "full":
        whole = (count or 1) * stages
        return {"layers": whole} if method == "block" and whole < (layers or whole + 1) else "full"
    if granularity != "selective":
        return None
    if not set(modules) <= (known := _recomputable(model)):
        job.forget("recompute_modules")
        modules = [one for one in modules if one in known]
    return {"modules": modules} if modules and modules != ["core_attn"] else "selective"


def _virtual(job: Job, layers: Optional[int], pipeline: int) -> int:
    chunk = job.count("num_layers_per_virtual_pipeline_stage")
    virtual = job.count("num_virtual_stages_per_pipeline_rank") or job.count("virtual_pipeline_model_parallel_size")
    return virtual or (layers // pipeline // chunk if chunk and layers else 1)


def _context(job: Job, parallel: Dict[str, Any]) -> Dict[str, Any]:
    comm = job.get("cp_comm_type", "p2p")
    comm = comm[0] if isinstance(comm, list) else comm
    sizes = job.get("hierarchical_context_parallel_sizes")
    if parallel["context"] == 1:
        return {}
    if comm not in _CP_FORMS:
        refuse(job.name_of("cp_comm_type"), ", ".join(_CP_FORMS), comm)
    keys: Dict[str, Any] = {"context_comm": _CP_FORMS[comm]}
    if comm == "a2a+p2p" and sizes:
        keys["context_inner"] = int(re.findall(r"\d+", str(sizes))[0])
    return keys


def _as_usual(job: Job, name: str) -> bool:
    """A flag whose default comes from recipes: those of fine-tuning overlap nothing."""
    usual = job.table.defaults.get(name)
    if job.has(name) or usual is None:
        return job.is_set(name)
    tuned = re.search("_(sft|peft)", str(job.get("recipe", ""))) is not None or job.has("peft_dim")
    usual = usual and not (tuned and name.startswith("overlap"))
    job.assume(f"{name} {str(usual).lower()}, as recipes of {job.table.framework} have it")
    return bool(usual)


def _zero(job: Job) -> int:
    strategy, shards_optimizer = job.get("data_parallel_sharding_strategy", "no_shard"), _as_usual(job, "use_distributed_optimizer")
    optimizer = str(job.get("optimizer_name", ""))
    if job.is_set("use_megatron_fsdp") or job.is_set("use_custom_fsdp"):
        if strategy not in _FSDP:
            refuse(job.name_of("data_parallel_sharding_strategy"), ", ".join(_FSDP), strategy)
        return _FSDP[strategy]
    if job.is_set("use_torch_fsdp2"):
        return 3
    return 1 if shards_optimizer or "distributed" in optimizer else 0


def _layout(job: Job, model: Any) -> Any:
    """The study's `parallel` and `framework`, and the number of replicas."""
    tensor, pipeline = job.degree("tensor_model_parallel_size"), job.degree("pipeline_model_parallel_size")
    context, expert = job.degree("context_parallel_size"), job.degree("expert_model_parallel_size")
    expert_tensor = job.count("expert_tensor_parallel_size", least=1) or tensor
    sparse = has_experts(model)
    least = -(-expert * expert_tensor // (tensor * context)) if sparse else 1
    world, layers = job.count("world_size"), layers_of(model)
    if world is None and job.has("devices"):
        each = job.count("devices", 0)
        world = each * (job.count("num_nodes") or 1) if each > 0 else None
    batch, micro = job.count("global_batch_size", least=1), job.degree("micro_batch_size")
    virtual = _virtual(job, layers, pipeline)
    together = micro * (pipeline if virtual > 1 else 1)  # interleaved stages need a multiple of them
    data = job.replicas(world, tensor * pipeline * context, least, batch // together if batch else None)
    for name in ("data_parallel_size", "num_nodes", "sequence_parallel"):
        job.get(name)
    parallel: Dict[str, Any] = {"tensor": tensor, "context": context, "pipeline": pipeline, "data": data}
    if virtual > 1 and (batch or micro * data) // (micro * data) % pipeline:
        job.assume("one stage a rank: interleaved stages are simulated with a multiple of the stages as micro-batches")
    elif virtual > 1 and pipeline > 1:
        parallel["virtual_pipeline"] = virtual
    if tensor > 1 and not job.is_set("sequence_parallel"):
        job.assume("sequence parallelism: the simulator has it on with TP, the job does not set it")
    parallel.update(_context(job, parallel))
    if sparse and expert > 1:
        parallel["expert"] = expert
    if sparse and expert > 1 and expert_tensor != tensor:
        parallel["expert_tensor"] = expert_tensor
    parallel["zero"] = _zero(job)
    recompute = recomputed(job, pipeline * virtual, model)
    if recompute is not None:
        parallel["recompute"] = recompute
    if job.is_set("use_tp_pp_dp_mapping"):
        parallel["order"] = "tp-cp-ep-pp-dp"
    if job.is_set("account_for_embedding_in_pipeline_split") and job.is_set("account_for_loss_in_pipeline_split"):
        parallel["count_embedding_and_head"] = True
    if stages := _stage_layers(job, pipeline, layers):
        parallel["stage_layers"] = stages
        parallel.pop("virtual_pipeline", None)
        if len(stages) > pipeline:
            parallel["virtual_pipeline"] = len(stages) // pipeline
    return parallel, _framework(job, model, expert if sparse else 1), data


def _stage_layers(job: Job, pipeline: int, layers: Optional[int]) -> Optional[List[int]]:
    """Layers of each virtual stage, from a layout ("Et*5|t*6|t*5mL") or from the numbers of the first and the last
    stage."""
    text, first, last = job.get("pipeline_model_parallel_layout"), job.count("decoder_first_pipeline_num_layers"), job.count("decoder_last_pipeline_num_layers")
    if isinstance(text, str) and pipeline > 1:
        stages = [sum(int(more or 1) for more in re.findall(r"t(?:\*(\d+))?", stage)) for stage in text.split("|")]
        if re.fullmatch(r"[EtmL*\d|]+", text) and len(stages) % pipeline == 0 and layers in (None, sum(stages)):
            return stages
        job.forget("pipeline_model_parallel_layout")
    if layers and pipeline > 1 and (first or last):
        others = pipeline - bool(first) - bool(last)
        rest = layers - (first or 0) - (last or 0)
        if others > 0 and rest % others == 0:
            return [*([first] if first else []), *[rest // others] * others, *([last] if last else [])]
        for name in ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"):
            job.forget(name)
    return None


def _graphs(job: Job, sparse: bool) -> Optional[str]:
    """`framework.graphs`: what runs from CUDA graphs; none if nothing does."""
    scope = set(re.findall(r"\w+", str(job.get("cuda_graph_scope", "full"))))
    captured = job.is_set("enable_cuda_graph") or job.is_set("external_cuda_graph") or job.get("cuda_graph_impl", "none") != "none"
    if not captured:
        return None
    if "full_iteration" in scope:
        return "full"
    if "full" in scope or {"attn", "moe" if sparse else "mlp"} <= scope:
        return "layer"
    if "attn" in scope:
        return "attention"
    job.assume(f"no CUDA graphs: {job.name_of('cuda_graph_scope')} {' '.join(sorted(scope))} is not simulated")
    return None


def _framework(job: Job, model: Any, expert: int) -> Dict[str, Any]:
    sparse = has_experts(model)
    graphs = _graphs(job, sparse)
    # Megatron launches layers with experts or adapters from PyTorch, unless CUDA graphs hold them whole.
    eager = (sparse or _lora(job) is not None) and graphs not in ("layer", "full")
    if eager:
        job.assume("preset megatron-eager, since no CUDA graphs of whole layers are set")
    dispatcher, backend = job.get("moe_token_dispatcher_type", "alltoall"), job.get("moe_flex_dispatcher_backend", "deepep")
    framework = {"preset": "megatron-eager" if eager else "megatron",
                 "overlap_grad_reduce": _as_usual(job, "overlap_grad_reduce"),
                 "overlap_param_gather": _as_usual(job, "overlap_param_gather"),
                 "tp_overlap": job.is_set("tp_comm_overlap")}
    if expert > 1 and dispatcher == "flex" and backend == "deepep":
        framework["expert_dispatcher"] = "deepep"
    elif expert > 1 and dispatcher != "alltoall":
        job.assume(f"experts' exchanges as alltoall: {dispatcher} is not simulated")
    if job.is_set("overlap_moe_expert_parallel_comm"):
        framework["expert_overlap"] = "dualpipe"
    elif job.is_set("moe_shared_expert_overlap"):
        framework["expert_overlap"] = "shared-expert"
    if graphs:
        framework["graphs"] = graphs
    framework["gradient_bytes"] = 2 if job.is_set("grad_reduce_in_bf16") else 4
    return framework

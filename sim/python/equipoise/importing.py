"""A job that runs becomes a study: a framework's arguments, its log's header or its configuration.

    job = equipoise.import_job("train.sh", gpus=64)   # Megatron-LM's arguments, or the head of its log
    job = equipoise.import_job("llama3_8b.toml")      # torchtitan
    job.study                                         # a dict, for `equipoise.study`
    job.unknown                                       # every setting that was not understood
    job.assumed                                       # what the file does not say and the study takes for granted

Each setting is a row of a table: what it becomes in a study, or why it changes no time (where data lie, what is logged,
how the optimizer is tuned). A setting without a row is unknown, and named: it may change the job.
"""

import fnmatch
import json
import os
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple, Union

from ._values import integer, path_of, refuse

Settings = Dict[str, Any]


@dataclass
class Imported:
    """A study made of a framework's file. `print` shows what was not understood and what was assumed."""

    framework: str
    study: Dict[str, Any]
    unknown: List[str] = field(default_factory=list)
    assumed: List[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"a job of {self.framework}: {self.study['name']}"]
        lines += [f"not understood: {name}" for name in self.unknown]
        lines += [f"assumed: {what}" for what in self.assumed]
        return "\n".join(lines)


def import_job(path: Union[str, os.PathLike], *, framework: Optional[str] = None, gpus: Optional[int] = None) -> Imported:
    """Reads a file of Megatron-LM (a script with its arguments, or its log, whose head lists them) or of torchtitan
    (TOML). `framework`: "megatron" or "torchtitan", found by the contents by default. `gpus`: how many the job has, where
    the file does not say. Raises ValueError for a file of neither."""
    name = path_of("path", path)
    if framework is not None and framework not in _READERS:
        refuse("framework", " or ".join(f'"{one}"' for one in _READERS), framework)
    if gpus is not None:
        integer("gpus", gpus, 1)
    with open(name, encoding="utf-8", errors="replace") as file:
        text = file.read()
    for reader, (reads, make) in _READERS.items():
        if framework in (None, reader):
            settings = reads(text, name)
            if settings:
                return make(settings, os.path.splitext(os.path.basename(name))[0], gpus)
    known = "Megatron-LM's arguments (--tensor-model-parallel-size ...) or torchtitan's TOML ([parallelism] ...)"
    raise ValueError(f"{name}: expected {known}, found none")


class _Job:
    """Settings of one file, of which each is asked for once; what nobody asked for is unknown."""

    def __init__(self, settings: Settings, harmless: Iterable[str]):
        self.settings, self.harmless = settings, set(harmless)
        self.patterns = [name for name in self.harmless if "*" in name]
        self.asked: Set[str] = set()
        self.assumed: List[str] = []

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        value = self.settings.get(name)
        return default if value is None else value

    def count(self, name: str, default: Optional[int] = None, least: int = -1) -> Optional[int]:
        value = self.get(name)
        if value is None:
            return default
        try:
            count = int(value)
        except (TypeError, ValueError):
            refuse(name, "an integer", value)
        if not least <= count < 1 << 31:
            refuse(name, f"an integer from {least} to 2^31 - 1", value)
        return count

    def degree(self, name: str, default: int = 1) -> int:
        return self.count(name, default, least=1)

    def needed(self, name: str) -> int:
        value = self.count(name)
        if value is None:
            raise ValueError(f"{name}: expected an integer, found nothing")
        return value

    def is_set(self, name: str) -> bool:
        return self.get(name) in (True, "True", "true", "1", 1)

    def assume(self, what: str) -> None:
        self.assumed.append(what)

    def unknown(self) -> List[str]:
        def off(value: Any) -> bool:
            return value in (None, False, "None", "False", "", [], "[]", 0, "0")

        return sorted(
            name for name, value in self.settings.items()
            if name not in self.asked | self.harmless and not off(value)
            and not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)
        )


def _replicas(job: _Job, gpus: Optional[int], said: Optional[int], of_replica: int, least: int = 1) -> int:
    """Data parallelism: GPUs over those of a replica. `least`: what the experts need."""
    world = gpus or said
    if world is None:
        job.assume(f"data parallelism {least}, {of_replica * least} GPUs: the file does not say how many there are (gpus=N)")
        return least
    if world % of_replica:
        raise ValueError(f"gpus: expected a multiple of the {of_replica} of a replica, found {world}")
    return world // of_replica


def _finish(job: _Job, framework: str, study: Dict[str, Any]) -> Imported:
    study = {key: value for key, value in study.items() if value not in (None, {})}
    job.assume("cluster.profile h100-sxm: the file does not say on which GPU it runs")
    return Imported(framework, study, job.unknown(), job.assumed)


# --- Megatron-LM ------------------------------------------------------------------------------------------------------

# Arguments that change no time that is simulated, by the reason.
_MEGATRON_FILE = Path(__file__).with_name("megatron_arguments.json")


def _megatron_harmless() -> Set[str]:
    reasons = json.loads(_MEGATRON_FILE.read_text(encoding="utf-8"))["change_no_time"]
    return {name for names in reasons.values() for name in names.split()}


def _megatron_settings(text: str, _name: str) -> Settings:
    """Arguments on a command line or in a script's lists, or those that a log's head prints."""
    listed = re.findall(r"^.*?\b([a-z][a-z0-9_]*) \.{2,} (.*?)\s*$", text, re.MULTILINE)
    if any(name == "tensor_model_parallel_size" for name, _ in listed):
        return {name: _value(value) for name, value in listed}
    if "--tensor-model-parallel-size" not in text and "--num-layers" not in text:
        return {}
    settings: Settings = {}
    for line in _shell_lines(text):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            refuse("arguments", f"a line of a shell ({error})", line)
        for at, word in enumerate(words):
            found = re.fullmatch(r"--([a-z][a-z0-9_-]*)(?:=(.*))?", word)
            if not found:
                continue
            values = [] if found[2] is None else [found[2]]
            for more in words[at + 1:] if not values else ():
                if re.match(r"-+[a-zA-Z]", more) or re.fullmatch(r"[|&;<>].*", more):
                    break
                values.append(more)
            typed = [_value(value) for value in values]
            settings[found[1].replace("-", "_")] = True if not typed else typed[0] if len(typed) == 1 else typed
    if str(settings.get("nnodes", "")).isdigit() and str(settings.get("nproc_per_node", "")).isdigit():
        settings["world_size"] = int(settings["nnodes"]) * int(settings["nproc_per_node"])
    return settings


def _shell_lines(text: str) -> List[str]:
    """A script's lines, continued ones joined, with the values of variables that it sets itself."""
    variables: Dict[str, str] = {}

    def filled(words: str) -> str:
        words = re.sub(r"\$\{\w+:[-=]([^{}]*)\}", r"\1", words)
        words = re.sub(r"\$\{?(\w+)\}?", lambda found: variables.get(found[1], found[0]), words)

        def product(found: "re.Match[str]") -> str:
            factors = found[1].split("*")
            return str(_product(factors)) if all(one.strip().isdigit() for one in factors) else found[0]

        return re.sub(r"\$\(\(([^()]*)\)\)", product, words)

    lines = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        assigned = re.fullmatch(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(?!\()(.*?)\s*", line)
        if line.lstrip().startswith("#"):
            continue
        if assigned and not re.search(r"\s--", assigned[2]):
            variables[assigned[1]] = filled(re.sub(r"\s+#.*$", "", assigned[2]).strip("\"'"))
            continue
        # Lists, quotes and assignments around arguments are no part of them.
        words = re.sub(r"[()\"'`]", " ", filled(line))
        lines.append(re.sub(r"^\s*(?:export\s+)?[A-Za-z_]\w*\+?=", " ", words))
    return lines


def _product(factors: List[str]) -> int:
    value = 1
    for factor in factors:
        value *= int(factor)
    return value


def _value(text: str) -> Any:
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def _megatron_model(job: _Job) -> Dict[str, Any]:
    heads, hidden = job.needed("num_attention_heads"), job.needed("hidden_size")
    gated = any([job.is_set(name) for name in ("swiglu", "geglu", "quick_geglu")])
    groups = job.count("num_query_groups")
    grouped = job.is_set("group_query_attention") or (groups is not None and "world_size" not in job.settings)
    model = {
        "layers": job.needed("num_layers"), "hidden": hidden, "heads": heads,
        "kv_heads": groups if grouped and groups else heads,
        # Megatron's default: 4 h, of which a gated FFN has two thirds in multiples of 64.
        "ffn": job.count("ffn_hidden_size") or (int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden),
        "gated_ffn": gated,
        "tied_embeddings": not job.is_set("untie_embeddings_and_output_weights"),
        "vocab": job.count("vocab_size") or job.count("padded_vocab_size"),
    }
    job.get("padded_vocab_size")
    if model["vocab"] is None:
        model["vocab"] = 128256
        job.assume("model.vocab 128256: the tokenizer's own is not in the file")
    head_dim = job.count("kv_channels")
    if head_dim and head_dim != hidden // heads:
        model["head_dim"] = head_dim
    if job.is_set("add_qkv_bias"):
        model["qkv_bias"] = True
    experts = job.count("num_experts")
    if experts:
        model["experts"] = {
            "count": experts, "active": job.count("moe_router_topk", 2),
            "ffn": job.count("moe_ffn_hidden_size") or model["ffn"],
            "dense_layers": _dense_layers(job, model["layers"]),
        }
        if shared := job.count("moe_shared_expert_intermediate_size"):
            model["experts"]["shared_ffn"] = shared
    if job.is_set("multi_latent_attention"):
        model["mla"] = {"kv_lora": job.needed("kv_lora_rank"), "nope_dim": job.needed("qk_head_dim"),
                        "rope_dim": job.needed("qk_pos_emb_head_dim"), "v_dim": job.needed("v_head_dim")}
        if rank := job.count("q_lora_rank"):
            model["mla"]["q_lora"] = rank
        model.pop("head_dim", None)
    return model


def _dense_layers(job: _Job, layers: int) -> int:
    """How many of the first layers have no experts: "[0]*3+[1]*58", "([0]*1+[1]*26)" or a number."""
    text = str(job.get("moe_layer_freq", 1)).replace(" ", "")
    if text == "1":
        return 0
    rule: List[int] = []
    for part in text.strip("()").split("+"):
        found = re.fullmatch(r"\(?\[([01,]+)\]\)?(?:\*(\d+))?", part)
        if not found:
            job.asked.discard("moe_layer_freq")  # then it is named
            return 0
        rule += [int(one) for one in found[1].split(",")] * min(int(found[2] or 1), layers + 1)
    first = rule.index(1) if 1 in rule else 0
    if rule != [0] * first + [1] * (layers - first):
        job.asked.discard("moe_layer_freq")
    return first


def _megatron_recompute(job: _Job, stages: int, layers: int) -> Any:
    """`stages`: virtual ones, each of which recomputes so many layers of its own."""
    granularity, method = job.get("recompute_granularity"), job.get("recompute_method")
    count, modules = job.count("recompute_num_layers"), job.get("recompute_modules")
    if job.is_set("recompute_activations"):
        granularity = granularity or "selective"
    if granularity == "full":
        return {"layers": min(layers, (count or 1) * stages)} if method == "block" else "full"
    if granularity != "selective":
        return None
    modules = [modules] if isinstance(modules, str) else modules
    return {"modules": modules} if modules and modules != ["core_attn"] else "selective"


_CP_FORMS = {"p2p": "ring", "all_gather": "all-gather", "a2a": "ulysses", "a2a+p2p": "ulysses-ring"}
_FSDP = {"optim": 1, "optim_grads": 2, "optim_grads_params": 3, "no_shard": 0}


def _megatron(settings: Settings, name: str, gpus: Optional[int]) -> Imported:
    job = _Job(settings, _megatron_harmless())
    model = _megatron_model(job)
    tensor, pipeline = job.degree("tensor_model_parallel_size"), job.degree("pipeline_model_parallel_size")
    context = job.degree("context_parallel_size")
    expert = job.degree("expert_model_parallel_size")
    expert_tensor = job.degree("expert_tensor_parallel_size", tensor)
    least = -(-expert * expert_tensor // (tensor * context))
    data = _replicas(job, gpus, job.count("world_size"), tensor * pipeline * context, least)
    job.get("data_parallel_size")
    chunk = job.count("num_layers_per_virtual_pipeline_stage")
    virtual = job.count("num_virtual_stages_per_pipeline_rank") or job.count("virtual_pipeline_model_parallel_size")
    if chunk and not virtual:
        virtual = model["layers"] // pipeline // chunk
    parallel: Dict[str, Any] = {"tensor": tensor, "context": context, "pipeline": pipeline, "data": data}
    if virtual and virtual > 1:
        parallel["virtual_pipeline"] = virtual
    job.get("sequence_parallel")
    if tensor > 1 and not job.is_set("sequence_parallel"):
        job.assume("sequence parallelism: the simulator has it on with TP, the job does not set it")
    comm = job.get("cp_comm_type", "p2p")
    comm = comm[0] if isinstance(comm, list) else comm
    if context > 1:
        if comm not in _CP_FORMS:
            refuse("cp_comm_type", ", ".join(_CP_FORMS), comm)
        parallel["context_comm"] = _CP_FORMS[comm]
        sizes = job.get("hierarchical_context_parallel_sizes")
        if comm == "a2a+p2p" and sizes:
            parallel["context_inner"] = int(sizes[0] if isinstance(sizes, list) else sizes)
    if "experts" in model and expert > 1:
        parallel["expert"] = expert
    if "experts" in model and expert_tensor != tensor:
        parallel["expert_tensor"] = expert_tensor
    dispatcher = job.get("moe_token_dispatcher_type", "alltoall")
    backend = job.get("moe_flex_dispatcher_backend", "deepep")
    strategy, shards_optimizer = job.get("data_parallel_sharding_strategy", "no_shard"), job.is_set("use_distributed_optimizer")
    if job.is_set("use_megatron_fsdp") or job.is_set("use_custom_fsdp"):
        if strategy not in _FSDP:
            refuse("data_parallel_sharding_strategy", ", ".join(_FSDP), strategy)
        parallel["zero"] = _FSDP[strategy]
    elif job.is_set("use_torch_fsdp2"):
        parallel["zero"] = 3
    else:
        parallel["zero"] = 1 if shards_optimizer else 0
    recompute = _megatron_recompute(job, pipeline * (virtual or 1), model["layers"])
    if recompute is not None:
        parallel["recompute"] = recompute
    if job.is_set("use_tp_pp_dp_mapping"):
        parallel["order"] = "tp-cp-ep-pp-dp"
    if job.is_set("account_for_embedding_in_pipeline_split") and job.is_set("account_for_loss_in_pipeline_split"):
        parallel["count_embedding_and_head"] = True
    framework = {"preset": "megatron",
                 "overlap_grad_reduce": job.is_set("overlap_grad_reduce"),
                 "overlap_param_gather": job.is_set("overlap_param_gather"),
                 "tp_overlap": job.is_set("tp_comm_overlap")}
    if expert > 1 and dispatcher == "flex" and backend == "deepep":
        framework["expert_dispatcher"] = "deepep"
    elif expert > 1 and dispatcher != "alltoall":
        job.assume(f"experts' exchanges as alltoall: {dispatcher} is not simulated")
    if job.is_set("overlap_moe_expert_parallel_comm"):
        framework["expert_overlap"] = "dualpipe"
    elif job.is_set("moe_shared_expert_overlap"):
        framework["expert_overlap"] = "shared-expert"
    framework["gradient_bytes"] = 2 if job.is_set("grad_reduce_in_bf16") else 4
    fp8 = job.get("fp8_format") or job.get("fp8")
    if not fp8 and not job.is_set("bf16"):
        job.assume("bf16" + (", the job has fp16" if job.is_set("fp16") else ", the job has fp32, which is not simulated"))
    job.get("fp16"), job.get("fp8_recipe"), job.get("bf16")
    window = job.needed("seq_length")
    micro, batch = job.count("micro_batch_size", 1), job.count("global_batch_size")
    if batch is None:
        batch = micro * data
        job.assume(f"a global batch of {batch}, micro-batch x data parallelism, as in Megatron-LM")
    policy: Dict[str, Any] = {"name": "plain"}
    if job.is_set("hybrid_context_parallel"):
        policy = {"name": "hybrid-cp", "tokens_per_rank": job.count("max_seqlen_per_dp_cp_rank", window // context)}
    if context > 1:
        policy["shard"] = "per-document" if job.is_set("dataloader_inter_document_masking") else "per-sequence"
    job.get("dataloader_inter_document_masking")
    job.assume("documents of one window each: which lengths your data have, equipoise trace info says of its .idx file")
    study = {
        "name": name, "trace": {"uniform": window}, "model": model, "cluster": {"profile": "h100-sxm"}, "framework": framework,
        "parallel": parallel, "mtp_layers": job.count("mtp_num_layers") or None,
        "batch": {"context_window": window, "sequences_per_step": batch, "micro_batch_size": micro, "steps": 10},
        "precision": "fp8" if fp8 else "bf16", "policies": [policy],
    }
    return _finish(job, "Megatron-LM", study)


# --- torchtitan -------------------------------------------------------------------------------------------------------

# Settings that change no time that is simulated, by the reason; * for any ending.
_TITAN_HARMLESS = {
    "how the job is watched, saved and restarted": "job.* profiling.* metrics.* checkpoint.* memory_estimation.*"
    " fault_tolerance.* debug.* comm.*",
    "how the optimizer and its schedule are tuned": "optimizer.* lr_scheduler.* training.max_norm training.seed"
    " training.deterministic",
    "how long the job runs, and validation between its steps": "training.steps validation.* training.gc_freq training.gc_debug",
    "where data and the tokenizer lie": "training.dataset training.dataset_path model.tokenizer_path model.hf_assets_path",
    "what is printed": "model.print_after_conversion",
    "kernels that are the preset's": "compile.* training.mixed_precision_reduce parallelism.enable_compiled_autograd"
    " parallelism.disable_loss_parallel activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns"
    " activation_checkpoint.early_stop quantize.linear.float8.* float8.*",
}
_TITAN_MODELS = {
    ("llama3", "8B"): "llama3.1-8b", ("llama3", "70B"): "llama3.1-70b", ("llama3", "405B"): "llama3.1-405b",
    ("qwen3", "0.6B"): "qwen3-0.6b", ("qwen3", "8B"): "qwen3-8b", ("deepseek_v3", "671B"): "deepseek-v3",
    ("llama4", "17bx16e"): "llama4-scout", ("llama4", "17bx128e"): "llama4-maverick",
}
_TITAN_SCHEDULES = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved-1f1b", "DualPipeV": "dualpipe",
                    "InterleavedZeroBubble": "zb-h1", "ZBVZeroBubble": "zb-h1"}


def _titan_settings(text: str, name: str) -> Settings:
    try:
        import tomllib
    except ImportError:  # Python below 3.11
        import tomli as tomllib
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if name.endswith(".toml"):
            raise ValueError(f"{name}: expected TOML, found none ({error})") from None
        return {}
    settings: Settings = {}

    def walk(prefix: str, table: Dict[str, Any]) -> None:
        for key, value in table.items():
            walk(f"{prefix}{key}.", value) if isinstance(value, dict) else settings.__setitem__(prefix + key, value)

    walk("", tables)
    return settings if any(key.startswith(("parallelism.", "training.")) for key in settings) else {}


_LAYERS = {"llama3.1-8b": 32, "llama3.1-70b": 80, "llama3.1-405b": 126, "qwen3-0.6b": 28, "qwen3-8b": 36, "deepseek-v3": 61,
           "llama4-scout": 48, "llama4-maverick": 48}


def _titan(settings: Settings, name: str, gpus: Optional[int]) -> Imported:
    job = _Job(settings, (name for names in _TITAN_HARMLESS.values() for name in names.split()))
    kind, flavor = job.get("model.name"), job.get("model.flavor")
    if kind is None or flavor is None:
        kind, flavor = kind or "llama3", flavor or "8B"
        job.assume(f"model {kind} {flavor}: the file does not say which")
    model = _TITAN_MODELS.get((kind, flavor))
    if model is None:
        known = ", ".join(" ".join(one) for one in _TITAN_MODELS)
        raise ValueError(f"model.flavor: expected one of {known}, found {kind} {flavor}")
    at = "parallelism."
    tensor, context = job.degree(at + "tensor_parallel_degree"), job.degree(at + "context_parallel_degree")
    pipeline = job.degree(at + "pipeline_parallel_degree")
    replicas, shards = job.degree(at + "data_parallel_replicate_degree"), job.count(at + "data_parallel_shard_degree", -1)
    of_replica = tensor * context * pipeline
    if shards > 0:
        data = replicas * shards
        if gpus is not None and data * of_replica != gpus:
            raise ValueError(f"gpus: expected {data * of_replica}, as the file's degrees give, found {gpus}")
    else:
        data = _replicas(job, gpus, None, of_replica)
    if replicas > 1 and shards != 1:
        job.assume(f"parameters sharded over all replicas: the job has {replicas} groups of them")
    reshard = job.get(at + "fsdp_reshard_after_forward", "default")
    sharded = shards != 1 and data > 1
    parallel: Dict[str, Any] = {"tensor": tensor, "context": context, "pipeline": pipeline, "data": data}
    if data * context > 1:
        never = reshard == "never" or (reshard == "default" and pipeline > 1)
        parallel["zero"] = 0 if not sharded and context == 1 else 2 if never else 3
    if context > 1:
        rotate = job.get(at + "context_parallel_rotate_method", "allgather")
        parallel["context_comm"] = "all-gather" if rotate == "allgather" else "ring"
    job.get(at + "context_parallel_rotate_method"), job.get(at + "context_parallel_load_balancer")
    if (expert := job.degree(at + "expert_parallel_degree")) > 1:
        parallel["expert"] = expert
    expert_tensor = job.degree(at + "expert_tensor_parallel_degree", tensor)
    if expert > 1 and expert_tensor != tensor:
        parallel["expert_tensor"] = expert_tensor
    mode, option = job.get("activation_checkpoint.mode", "selective"), job.get("activation_checkpoint.selective_ac_option", "2")
    if mode not in ("full", "selective", "none"):
        job.asked.discard("activation_checkpoint.mode")  # then it is named
    elif mode == "full":
        parallel["recompute"] = "full"
    elif mode == "selective":
        # By operator, or every n-th layer.
        if str(option) != "op" and not str(option).isdigit():
            refuse("activation_checkpoint.selective_ac_option", "op or a number of layers", option)
        every = None if str(option) == "op" else int(option)
        parallel["recompute"] = {"layers": _LAYERS[model] // every} if every else {"modules": ["per_op"]}
    window = job.count("training.seq_len", 2048)
    local = job.count("training.local_batch_size", 1)
    batch = job.count("training.global_batch_size", -1)
    micro = local
    if pipeline > 1:
        micro = job.count(at + "pipeline_parallel_microbatch_size", 1)
    if batch < 1:
        batch = local * data
    schedule = job.get(at + "pipeline_parallel_schedule", "1F1B")
    of_stage = job.count(at + "pipeline_parallel_layers_per_stage")
    less = sum(job.count(f"{at}pipeline_parallel_{end}_stage_less_layers", 1) for end in ("first", "last"))
    if pipeline > 1 and of_stage:
        virtual = -(-(_LAYERS[model] + less) // (pipeline * of_stage))
        if virtual > 1:
            parallel["virtual_pipeline"] = virtual
    converters = job.get("model.converters", [])
    fp8 = any("float8" in one for one in ([converters] if isinstance(converters, str) else converters))
    framework: Dict[str, Any] = {"preset": "torchtitan"}
    if job.is_set("quantize.linear.float8.enable_fsdp_float8_all_gather"):
        framework["fp8_param_gather"] = True
    if job.get("training.mixed_precision_param", "bfloat16") != "bfloat16":
        job.assume("bf16: the job multiplies in fp32, which is not simulated")
    if job.get(at + "expert_parallel_comm_backend", "standard") == "deepep":
        framework["expert_dispatcher"] = "deepep"
    policy: Dict[str, Any] = {"name": "plain"}
    if context > 1:
        policy["shard"] = "per-sequence"
    job.assume("documents of one window each: torchtitan's masks and data set are not in the file")
    study = {
        "name": name, "trace": {"uniform": window}, "model": model, "cluster": {"profile": "h100-sxm"}, "framework": framework,
        "parallel": parallel,
        "batch": {"context_window": window, "sequences_per_step": batch, "micro_batch_size": micro, "steps": 10},
        "precision": "fp8" if fp8 else "bf16", "policies": [policy],
    }
    if pipeline > 1 and schedule in _TITAN_SCHEDULES:
        study["schedule"] = _TITAN_SCHEDULES[schedule]
        if study["schedule"] == "zb-h1":
            job.assume(f"schedule zb-h1 for {schedule}, whose two stages a rank the simulator does not have with it")
    elif pipeline > 1:
        job.asked.discard(at + "pipeline_parallel_schedule")  # then it is named
    return _finish(job, "torchtitan", study)


_READERS: Dict[str, Tuple[Callable[[str, str], Settings], Callable[[Settings, str, Optional[int]], Imported]]] = {
    "megatron": (_megatron_settings, _megatron),
    "torchtitan": (_titan_settings, _titan),
}

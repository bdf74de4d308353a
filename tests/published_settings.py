"""What the launch scripts and recipes published with a table say of its runs, where the table is silent.

A row of published steps holds what its table prints. The same repositories publish what ran: which dispatcher, what
it overlaps, which modules recompute. Those are settings of whole benchmarks, never of a row, and are told to the
simulator in the columns of a row that would state them. Each entry: groups that begin so, columns, source, and what else
their rows have to say, column by column. A column that the row fills itself stays, but for `selective` where the recipe names the modules.
"""
SETTINGS = (
    ("dgxc_llama3.1-405b", {"tp_overlap_sms": "12", "context_comm": "ring"},
     "dgxc-benchmarking at v24.11.1, llama3.1/llama3.1_405b.yaml, ub_tp_comm_overlap_cfg: num_sm 24 of proj_fprop and 8 of "
     "fc2_fprop, here their mean by work; Megatron Core's cp_comm_type, which no recipe sets, is p2p"),
    ("dgxc_llama3.1-8b", {"context_comm": "ring"}, "the same"),
    ("dgxc_gpt3-175b", {"tp_overlap_sms": "21"},
     "the same, nemo_megatron/gpt3_175b_hydra.yaml: 24 of proj_fprop and 20 of fc2_fprop"),
    ("modelzoo_qwen3-235b-a22b", {"tp_overlap": "0", "routing": "forced balance", "gradient_bytes": "4", "permute_fusion": "1",
      "expert_router": "auxiliary-loss"},
     "Megatron-MoE-ModelZoo, model_configs/benchmarking/Qwen3-235B-A22B.yaml: no --tp-comm-overlap, and --bf16, with which "
     "Megatron-LM accumulates and reduces gradients in fp32; --moe-permute-fusion; "
     "examples/qwen3/run_235b.sh: every run forces the balance; where a row says that its router was free, --moe-router-"
     "load-balancing-type aux_loss"),
    ("dgxc_grok1-314b_bf16_v25.01", {"attention_impl": "flash-attention"},
     "dgxc-benchmarking, grok1/configure.sh: NVTE_FUSED_ATTN=0"),
    ("dgxc_grok1-314b_fp8_v25.01", {"attention_impl": "flash-attention"}, "the same"),
    ("dgxc_grok1-314b_bf16_v25.02", {"attention_impl": "flash-attention"}, "the same"),
    ("dgxc_grok1-314b_fp8_v25.02", {"attention_impl": "flash-attention"}, "the same"),
    ("deepseek_report_v3", {"gradient_bytes": "4", "permute_fusion": "1", "expert_router": "loss-free"},
     "arXiv 2412.19437, section 3.3.3: gradients accumulate in fp32; 2.1.2: balanced by biases; kernels of their own, "
     "taken as fused"),
    ("mbridge_llama3.1-8b_25.09", {"act_recompute": "none"},
     "Megatron-Bridge at v0.1.0rc4, scripts/performance/configs/llama3/llama3_8b_llm_pretrain.yaml: none"),
    ("mbridge_llama3.1-8b_25.11", {"act_recompute": "full", "recompute_layers": "5"},
     "Megatron-Bridge at v0.2.0, scripts/performance/configs/llama3/workload_base_configs.py: recompute_num_layers"),
    ("mbridge", {"permute_fusion": "1", "router_fusion": "1"},
     "Megatron-Bridge: moe_permute_fusion is on in its recipes, and moe_router_fusion in those of scripts/performance at v0.1.0rc4, "
     "v0.2.0, v0.3.0 and v0.4.0 and of perf_recipes"),
    ("mbridge", {"router_graphs": "1"},
     "Megatron-Bridge at v0.2.0 to v0.4.0, workload_base_configs.py, and perf_recipes: every cuda_graph_scope with attn and experts also "
     "has moe_router and moe_preprocess", {"graphs": "attention"}),
    ("mbridge_qwen3-30b-a3b_", {"router_graphs": "1"},
     "the same, qwen3: a cuda_graph_scope of moe_router and moe_preprocess alone, which a row's column does not say", {"graphs": "none"}),
    ("mbridge_kimi-k2_gb200", {"router_graphs": "1"}, "the same, kimi_k2 on GB200", {"graphs": "none"}),
    ("mbridge_gpt-oss", {"fused_expert_activation": "1"},
     "Megatron-Bridge, scripts/performance/utils/overrides.py: a graph of the whole step without a capacity needs the paged stash, which "
     "needs use_transformer_engine_op_fuser; the bias stays a kernel (Megatron-LM, TEGroupedMLP._apply_packed_bias)", {"graphs": "full"}),
    ("mbridge_gpt-oss", {"rope": "batch"},
     "Megatron-LM, apply_rotary_pos_emb of rope_utils.py: Transformer Engine's kernel takes no mscale, which GPT-OSS's YaRN has"),
    ("card_gpt-oss", {"expert_router": "unbalanced"},
     "Megatron-Bridge, models/gpt_oss/gpt_oss_bridge.py: moe_router_load_balancing_type none"),
    ("card_gpt-oss", {"rope": "document"},
     "Megatron-Bridge, recipes/gpt_oss: apply_rope_fusion is not set; packed documents", {"seq_len": "2048"}),
    ("card_gpt-oss", {"rope": "batch"}, "the same, whole sequences", {"seq_len": "4096"}),
    ("card_qwen3-30b", {"expert_router": "auxiliary-loss"},
     "Megatron-Bridge, models/qwen/qwen3_moe_bridge.py: moe_router_load_balancing_type aux_loss", {"routing": "natural"}),
    ("card_qwen3-30b", {"router_fusion": "1"},
     "Megatron-Bridge, recipes/qwen/h100/qwen3_moe.py: moe_router_fusion of the recipes on 16 GPUs", {"gpu": "H100 SXM 80GB"}),
    ("card_qwen3-30b_pretrain", {"router_graphs": "1"},
     "Megatron-Bridge, qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config: cuda_graph_scope of moe_router and moe_preprocess"),
    ("card_qwen3-30b_gb200", {"router_graphs": "1"}, "Megatron-Bridge, recipes/qwen/gb200"),
    ("card_qwen3-8b", {"rope": "document"}, "Megatron-Bridge, recipes/qwen/h100/qwen3.py: apply_rope_fusion is not set; packed documents",
     {"seq_len": "2048"}),
    ("card_qwen3-8b", {"rope": "batch"}, "the same, whole sequences", {"seq_len": "4096"}),
    ("card_moonlight", {"expert_router": "loss-free", "router_fusion": "1"},
     "Megatron-Bridge, models/deepseek/deepseek_v3_bridge.py: moe_router_enable_expert_bias; recipes/moonlight/h100/moonlight_16b.py: "
     "moe_router_fusion of the recipes on 4 and 16 GPUs, and on 8 with TP 1"),
    ("card_moonlight", {"rope": "document"}, "the same: apply_rope_fusion is not set; packed documents", {"seq_len": "2048"}),
    ("card_moonlight", {"rope": "batch"}, "the same, whole sequences", {"seq_len": "4096"}),
    ("card_deepseek-v3", {"router_fusion": "1"}, "Megatron-Bridge, perf_recipes/deepseek/common.py: moe_router_fusion"),
    ("skill_moonlight", {"expert_router": "loss-free", "rope": "batch"},
     "the same; moonlight_16b_pretrain_8gpu_h100_bf16_config: moe_router_fusion is off, and apply_rope_fusion is not set"),
    ("dgxc_deepseek-v3", {"permute_fusion": "1"},
     "NeMo, collections/llm/gpt/model/deepseek.py: moe_permute_fusion from Transformer Engine 2.1 on"),
    ("dgxc_deepseek-v3_bf16_v25.05",
     {"dispatcher": "alltoall", "overlap": "shared-expert", "routing": "tokendrop", "tp_overlap": "0"},
     "NeMo, scripts/performance/llm/pretrain_deepseek_v3.py: MegatronTokenDropCallback, which asks for alltoall; "
     "collections/llm/gpt/model/deepseek.py: moe_shared_expert_overlap; recipes/deepseek_v3.py: tp_comm_overlap off"),
    ("dgxc_deepseek-v3_bf16_v25.08", {"dispatcher": "deepep", "overlap": "none", "tp_overlap": "0"},
     "NeMo, the same script a release later: 'For H100 we use deepEP', no shared-expert overlap"),
    ("mbridge_deepseek-v3_25.09",
     {"dispatcher": "deepep", "overlap": "1f1b", "act_recompute": "mla_up_proj, mlp", "tp_overlap": "0"},
     "Megatron-Bridge, scripts/performance/configs/deepseek/deepseek_v3_llm_pretrain.py: H100 with enable_deepep, "
     "set_moe_a2a_1f1b_overrides and these modules"),
    ("titan_8b_h200", {"fp8_param_gather": "1"},
     "torchtitan, benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md: --float8.enable_fsdp_float8_all_gather"),
    ("titan_405b_3d", {"mbs": "4", "vp": "2"},
     "torchtitan at 9dec370, parallelisms/pipelining_utils.py: as many micro-batches as stages, of the local batch of 32, "
     "and two stages a rank where schedules interleave"),
    ("titan_405b_4d", {"mbs": "1"}, "the same, of a local batch of 8"),
    ("titan", {"act_recompute": "selective (per op)"},
     "torchtitan at 9dec370 and 820504e, llama3_8b.toml: selective_ac_option 'op', where a row says selective or nothing"),
    ("ultrascale", {"cp": "1", "act_recompute": "none", "nic_GBps": "28.4"},
     "huggingface/nanotron@67c5ebb6 (branch nouamane/bench2), examples/config_tiny_llama_bench.yaml and "
     "scaling_benchmarks.py: no context parallelism, layers not recomputed; Ultra-Scale Playbook, 'Interconnect bandwidth' (pp_comm_bandwidth): an all-reduce of 1 GiB over two of "
     "the cluster's nodes reaches 361.7 GB/s at the median of its jobs, which a NIC of 28.4 GB/s gives here"),
)


# Steps whose sources or rows say that they are not comparable: a reinforcement-learning trainer's, power-limited GPUs, runs of
# many minutes in verification cards.
DOUBTFUL = ("primerl_rl", "torchao_b200")


def doubtful(row):
    return row["group"].startswith(DOUBTFUL) or row["group"].endswith("_long")


def torchtitan_stages(row, model):
    """Layers of each virtual stage, as torchtitan at 9dec370 splits a model that names no split (generate_split_points in
    parallelisms/pipelining_utils.py): what is left over goes to the second stage and those behind it, one each."""
    stages = int(row["pp"]) * int(row["vp"] or 1)
    even, left = divmod(int(model["n_layers"]), stages)
    return [even + (0 < stage <= left) for stage in range(stages)]


# Models of arXiv 2504.14960, which prints no chunks of a stage, that its authors' own benchmarks of the time cut into one
# layer each: Megatron-MoE-ModelZoo at 78fd4d6 (3 April 2025), runtime_configs/benchmarking/runtime.conf, PP 4 and VPP 7 of
# 28 layers, 8 of 32. Mixtral 8x22B has VPP 1 there, and 7 from 30 July 2025 on; Llama-3 8x70B is not there.
ONE_LAYER_A_CHUNK = ("folding_qwen2-57b-a14b", "folding_mixtral-8x7b")


def with_stages(rows, models):
    """The rows, with the stages of those that torchtitan ran, and the chunks of those whose authors say them elsewhere."""
    shapes = {model["model_id"]: model for model in models}
    for row in rows:
        if (row.get("group") or "").startswith(ONE_LAYER_A_CHUNK) and not row.get("vp"):
            layers, stages = int(shapes[row["model_id"]]["n_layers"]), int(row["pp"])
            row["vp"] = str(layers // stages) if layers % stages == 0 else ""
        if (row.get("group") or "").startswith("titan") and int(row["pp"] or 1) > 1:
            row["stage_layers"] = ";".join(map(str, torchtitan_stages(row, shapes[row["model_id"]])))
    return rows


def with_settings(row):
    """The row with what its sources publish in addition to its table."""
    filled = dict(row)
    for prefix, columns, _, *said in SETTINGS:
        if not (row.get("group") or "").startswith(prefix):
            continue
        if any(row.get(column) != value for condition in said for column, value in condition.items()):
            continue
        for column, value in columns.items():
            if not row.get(column) or row[column] == "selective":
                filled[column] = value
    return filled

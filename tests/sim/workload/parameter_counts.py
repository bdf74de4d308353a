"""Writes or checks parameter_counts.json: configs as Hugging Face Transformers writes them, and the parameters of the
models that it makes of them (on the meta device, without weights).

Shapes are those of published models. A config leaves out what is as in its class, as config.json files do; a text_config
leaves out more. `equipoise` has to read the same number of parameters from each (test_hf_counts.cpp).

Without an argument it checks the file and exits 77 (skipped) where torch and transformers are missing. --write adds the
models that the file does not have, as the installed version writes them: versions differ in what a config says.
"""
import json
import pathlib
import sys

try:
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM
except ImportError:
    print("skipped: torch or transformers is not installed")
    sys.exit(77)

FILE = pathlib.Path(__file__).with_name("parameter_counts.json")


def sizes(hidden, layers, heads, kv, ffn, vocab, **more):
    return {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv,
            "intermediate_size": ffn, "vocab_size": vocab, **more}


GRANITE_LAYERS = ["mamba"] * 5 + (["attention"] + ["mamba"] * 9) * 3 + ["attention"] + ["mamba"] * 4


def nemotron(hidden, kv, ffn, pattern, **more):
    words = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    return {"hidden_size": hidden, "num_attention_heads": 32, "num_key_value_heads": kv, "head_dim": 128,
            "intermediate_size": ffn, "vocab_size": 131072, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128,
            "layers_block_type": [words[block] for block in pattern], **more}


MODELS = {
    "Llama 3.1 8B": ("llama", sizes(4096, 32, 32, 8, 14336, 128256)),
    "Llama 3.2 1B": ("llama", sizes(2048, 16, 32, 8, 8192, 128256, tie_word_embeddings=True)),
    "Mistral 7B": ("mistral", sizes(4096, 32, 32, 8, 14336, 32768, sliding_window=None)),
    "Mixtral 8x7B": ("mixtral", sizes(4096, 32, 32, 8, 14336, 32000)),
    "Ministral 8B": ("ministral", sizes(4096, 36, 32, 8, 12288, 131072, head_dim=128)),
    "Qwen2.5 0.5B": ("qwen2", sizes(896, 24, 14, 2, 4864, 151936, tie_word_embeddings=True)),
    "Qwen2.5 7B": ("qwen2", sizes(3584, 28, 28, 4, 18944, 152064)),
    "Qwen1.5 MoE A2.7B": ("qwen2_moe", sizes(2048, 24, 16, 16, 5632, 151936, moe_intermediate_size=1408, num_experts=60,
                                             num_experts_per_tok=4, shared_expert_intermediate_size=5632)),
    "Qwen3 0.6B": ("qwen3", sizes(1024, 28, 16, 8, 3072, 151936, tie_word_embeddings=True)),
    "Qwen3 8B": ("qwen3", sizes(4096, 36, 32, 8, 12288, 151936)),
    "Qwen3 30B A3B": ("qwen3_moe", sizes(2048, 48, 32, 4, 6144, 151936, head_dim=128, moe_intermediate_size=768,
                                         num_experts=128, num_experts_per_tok=8)),
    "DeepSeek-V2-Lite": ("deepseek_v2", sizes(2048, 27, 16, 16, 10944, 102400, q_lora_rank=None, kv_lora_rank=512,
                                              qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
                                              n_routed_experts=64, num_experts_per_tok=6, n_shared_experts=2,
                                              moe_intermediate_size=1408, first_k_dense_replace=1)),
    "Moonlight 16B A3B": ("deepseek_v3", sizes(2048, 27, 16, 16, 11264, 163840, q_lora_rank=None, kv_lora_rank=512,
                                               qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
                                               n_routed_experts=64, num_experts_per_tok=6, n_shared_experts=2,
                                               moe_intermediate_size=1408, first_k_dense_replace=1, n_group=1, topk_group=1)),
    "Llama 4 Scout": ("llama4_text", sizes(5120, 48, 40, 8, 8192, 202048, num_local_experts=16, interleave_moe_layer_step=1,
                                           intermediate_size_mlp=16384)),
    "Gemma 2B": ("gemma", sizes(2048, 18, 8, 1, 16384, 256000)),
    "Gemma 2 9B": ("gemma2", sizes(3584, 42, 16, 8, 14336, 256000)),
    "Gemma 3 1B": ("gemma3_text", sizes(1152, 26, 4, 1, 6912, 262144)),
    "Gemma 3 4B, text": ("gemma3_text", {"hidden_size": 2560, "num_hidden_layers": 34, "intermediate_size": 10240}),
    "Phi-3.5 mini": ("phi3", sizes(3072, 32, 32, 32, 8192, 32064)),
    "Phi-3.5 MoE": ("phimoe", sizes(4096, 32, 32, 8, 6400, 32064, attention_bias=True, lm_head_bias=True)),
    "OLMo 7B": ("olmo", sizes(4096, 32, 32, 32, 11008, 50304)),
    "OLMo 2 7B": ("olmo2", sizes(4096, 32, 32, 32, 11008, 100352)),
    "OLMo 3 7B": ("olmo3", sizes(4096, 32, 32, 32, 11008, 100278)),
    "OLMoE 1B 7B": ("olmoe", sizes(2048, 16, 16, 16, 1024, 50304)),
    "Granite 3.1 2B": ("granite", sizes(2048, 40, 32, 8, 8192, 49155, tie_word_embeddings=True)),
    "Granite 3.1 3B A800M": ("granitemoe", sizes(1536, 32, 24, 8, 512, 49155, num_local_experts=40, num_experts_per_tok=8,
                                                 tie_word_embeddings=True)),
    "Granite MoE, a shared expert": ("granitemoeshared", sizes(1536, 32, 24, 8, 512, 49155, num_local_experts=40,
                                                               num_experts_per_tok=8, shared_intermediate_size=1024,
                                                               tie_word_embeddings=True)),
    "Granite 4.0 micro": ("granitemoehybrid", sizes(2560, 40, 40, 8, 8192, 100352, num_local_experts=0, num_experts_per_tok=0,
                                                    shared_intermediate_size=8192, tie_word_embeddings=True,
                                                    layer_types=["attention"] * 40)),
    "StableLM 2 1.6B": ("stablelm", sizes(2048, 24, 32, 32, 5632, 100352, use_qkv_bias=True)),
    "SmolLM3 3B": ("smollm3", sizes(2048, 36, 16, 4, 11008, 128256)),
    "ERNIE 4.5 0.3B": ("ernie4_5", sizes(1024, 18, 16, 2, 3072, 103424)),
    "GLM-4 9B": ("glm", sizes(4096, 40, 32, 2, 13696, 151552)),
    "GLM-4 9B 0414": ("glm4", sizes(4096, 40, 32, 2, 13696, 151552, attention_bias=False)),
    "GLM-4.5 Air": ("glm4_moe", sizes(4096, 46, 96, 8, 10944, 151552, head_dim=128, attention_bias=True, n_routed_experts=128,
                                      n_shared_experts=1, moe_intermediate_size=1408, first_k_dense_replace=1)),
    "gpt-oss 20B": ("gpt_oss", sizes(2880, 24, 64, 8, 2880, 201088, num_local_experts=32)),
    "Hunyuan 7B": ("hunyuan_v1_dense", sizes(4096, 32, 32, 8, 14336, 128167, head_dim=128, tie_word_embeddings=True)),
    "Seed-OSS 36B": ("seed_oss", sizes(5120, 64, 80, 8, 27648, 155136)),
    "Helium 1 2B": ("helium", sizes(2048, 28, 16, 8, 8192, 64000)),
    "Arcee AFM 4.5B": ("arcee", sizes(2560, 36, 20, 4, 18432, 128004)),
    "BitNet b1.58 2B": ("bitnet", sizes(2560, 30, 20, 5, 6912, 128256, tie_word_embeddings=True)),
    "dots.llm1": ("dots1", sizes(4096, 62, 32, 32, 10944, 152064, head_dim=128, n_routed_experts=128, n_shared_experts=2,
                                 num_experts_per_tok=6, moe_intermediate_size=1408, first_k_dense_replace=1)),
    "GPT-2": ("gpt2", {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}),
    "SantaCoder": ("gpt_bigcode", {"n_embd": 2048, "n_layer": 24, "n_head": 16, "vocab_size": 49280, "n_positions": 2048}),
    "StarCoder2 3B": ("starcoder2", sizes(3072, 30, 24, 2, 12288, 49152)),
    "Minitron 4B": ("nemotron", sizes(3072, 32, 24, 8, 9216, 256000)),
    # Of Transformers 5, in the shape that the class has of itself.
    "ERNIE 4.5 21B A3B": ("ernie4_5_moe", {}),
    "gpt-oss 120B": ("gpt_oss", {}),
    "GLM-4.7 Flash": ("glm4_moe_lite", {}),
    "A.X K1": ("axk1", {}),
    "HY 3": ("hy_v3", {}),
    "Mellum": ("mellum", {}),
    "K-EXAONE, the class's own": ("exaone_moe", {}),
    "Aria, text": ("aria_text", {}),
    "MiniCPM3 4B": ("minicpm3", {}),
    "Youtu-LLM 2B": ("youtu", {}),
    "VaultGemma, the class's own": ("vaultgemma", {}),
    "Apertus, the class's own": ("apertus", {}),
    "nanochat": ("nanochat", {}),
    "Jais 2 8B": ("jais2", {}),
    "Persimmon 8B": ("persimmon", {}),
    "Granite, sliding windows": ("granite_swa", {}),
    # A gate scales attention's output.
    "AFMoE, the class's own": ("afmoe", {}),
    "Beam 1.0 501B A23B": ("beam", {}),
    # An indexer chooses the keys of a query.
    "DeepSeek V3.2": ("deepseek_v32", {}),
    "GLM-5": ("glm_moe_dsa", {}),
    "GLM-5.2": ("glm_moe_dsa", {"index_topk_freq": 4, "index_skip_topk_offset": 3, "vocab_size": 154880}),
    # Attention and FFN side by side.
    "Command R": ("cohere", {}),
    "Command R7B": ("cohere2", sizes(4096, 32, 32, 8, 14336, 256000, head_dim=128)),
    "Cohere 2 with experts, the class's own": ("cohere2_moe", {}),
    "GPT-NeoX 20B": ("gpt_neox", {}),
    "Pythia 6.9B": ("gpt_neox", sizes(4096, 32, 32, None, 16384, 50432)),
    "GPT-J 6B": ("gptj", {}),
    "CodeGen 6B": ("codegen", {"n_embd": 4096, "n_layer": 33, "n_head": 16, "vocab_size": 51200}),
    "Phi-2": ("phi", sizes(2560, 32, 32, 32, 10240, 51200)),
    "Falcon 7B": ("falcon", {}),
    "Falcon 40B": ("falcon", {"hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128, "num_kv_heads": 8,
                              "vocab_size": 65024, "new_decoder_architecture": True}),
    "StableLM 2 12B": ("stablelm", sizes(5120, 40, 32, 8, 13824, 100352, use_parallel_residual=True, qk_layernorm=True)),
    "Apertus 1.5, the class's own": ("apertus1p5_text", {}),
    # Layers of linear recurrences or convolutions, and of sliding windows.
    "Lara mini": ("lara_mini", {}),
    "LFM3, the class's own": ("lfm3", {}),
    # Layers of linear recurrences.
    "Qwen3-Next 80B A3B": ("qwen3_next", sizes(2048, 48, 16, 2, 5120, 151936, head_dim=256, moe_intermediate_size=512,
                                               shared_expert_intermediate_size=512, num_experts=512, num_experts_per_tok=10,
                                               linear_num_value_heads=32)),
    "Qwen3.5 35B A3B, text": ("qwen3_5_moe_text", {"hidden_size": 2048, "num_hidden_layers": 40, "vocab_size": 248320,
                                                   "num_attention_heads": 16, "num_key_value_heads": 2, "num_experts": 256,
                                                   "num_experts_per_tok": 8, "moe_intermediate_size": 512,
                                                   "shared_expert_intermediate_size": 512}),
    "Qwen3.5 27B, text": ("qwen3_5_text", sizes(5120, 64, 24, 4, 17408, 248320, linear_num_value_heads=48)),
    "OLMo Hybrid 7B": ("olmo_hybrid", {}),
    "Kimi-Linear 48B A3B": ("kimi_linear", {}),
    "Granite 4.0 H tiny": ("granitemoehybrid", sizes(1536, 40, 12, 4, 512, 100352, shared_intermediate_size=1024,
                                                     num_local_experts=64, num_experts_per_tok=6, mamba_n_heads=48,
                                                     mamba_d_head=64, mamba_d_state=128, mamba_n_groups=1,
                                                     tie_word_embeddings=True, layer_types=GRANITE_LAYERS)),
    "Granite 4.0 H micro": ("granitemoehybrid", sizes(2048, 40, 32, 8, 8192, 100352, shared_intermediate_size=8192,
                                                      num_local_experts=0, num_experts_per_tok=0, mamba_n_heads=64,
                                                      mamba_d_head=64, mamba_d_state=128, mamba_n_groups=1,
                                                      tie_word_embeddings=True, layer_types=GRANITE_LAYERS)),
    "Bamba 9B": ("bamba", sizes(4096, 32, 32, 8, 14336, 128256, attn_layer_indices=[9, 18, 27], mamba_n_heads=128,
                                mamba_d_head=64, mamba_d_state=128, mamba_n_groups=1)),
    # Attention and Mamba-2 side by side.
    "Falcon-H1 0.5B": ("falcon_h1", sizes(1024, 36, 8, 2, 2048, 32784, head_dim=64, mamba_d_ssm=1536, mamba_n_heads=24,
                                          mamba_d_head=64, mamba_d_state=128, mamba_n_groups=1, tie_word_embeddings=False)),
    "Falcon-H1 34B": ("falcon_h1", sizes(5120, 72, 20, 4, 21504, 261120, head_dim=128, mamba_d_ssm=4096, mamba_n_heads=32,
                                         mamba_d_head=128, mamba_d_state=256, mamba_n_groups=2)),
    "Falcon-H1, the class's own": ("falcon_h1", {}),
    # Short convolutions.
    "LFM2 1.2B": ("lfm2", sizes(2048, 16, 32, 8, 12288, 65536, full_attn_idxs=[2, 5, 8, 10, 12, 14])),
    "LFM2 350M": ("lfm2", sizes(1024, 16, 16, 8, 6656, 65536, full_attn_idxs=[2, 5, 8, 10, 12, 14])),
    "LFM2 8B A1B": ("lfm2_moe", sizes(2048, 24, 32, 8, 7168, 65536, moe_intermediate_size=1792, num_experts=32,
                                      num_experts_per_tok=4, num_dense_layers=2, conv_L_cache=3,
                                      layer_types=["full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv"
                                                   for i in range(24)])),
    "MiniMax-Text-01": ("minimax", sizes(6144, 80, 64, 8, 9216, 200064, head_dim=128, num_local_experts=32,
                                         num_experts_per_tok=2,
                                         layer_types=(["linear_attention"] * 7 + ["full_attention"]) * 10)),
    "Nemotron-H 8B": ("nemotron_h", nemotron(4096, 8, 21504, "M-M-M-M*-" + "M-M-M-M-M*-" * 3 + "M-M-M-M-M-", mamba_num_heads=128)),
    "Nemotron 3 Nano 30B A3B": ("nemotron_h", nemotron(2688, 2, 1856, "MEMEM*E" * 5 + "MEMEMEM*E" + "MEMEMEME",
                                                       mamba_num_heads=64, n_routed_experts=128, num_experts_per_tok=6,
                                                       moe_intermediate_size=1856,
                                                       moe_shared_expert_intermediate_size=3712)),
}


def made(model_type, shape):
    """A config as Transformers writes it, and the parameters of its model."""
    config = CONFIG_MAPPING[model_type](**shape)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    written = json.loads(config.to_json_string(use_diff=bool(shape)))
    if set(shape) == {"hidden_size", "num_hidden_layers", "intermediate_size"}:  # a part of a model: what its class has not
        written = {"model_type": model_type, **shape}
    return written, sum(parameter.numel() for parameter in model.parameters())


def main():
    file = json.loads(FILE.read_text())["models"]
    known = {row["model"]: row["parameters"] for row in file}
    adds = "--write" in sys.argv
    rows = []
    for name, (model_type, shape) in MODELS.items():
        if model_type not in CONFIG_MAPPING or (adds and name in known):
            continue
        config, parameters = made(model_type, shape)
        rows.append({"model": name, "config": config, "parameters": parameters})
        print(f"{name}: {parameters:,}", flush=True)
    if adds:
        models = ",\n".join(json.dumps(row) for row in file + rows)  # a model a line
        FILE.write_text(f'{{"models": [\n{models}\n]}}\n')
        return 0
    unlike = [f"{row['model']}: {row['parameters']:,}, the file has {known.get(row['model'])}" for row in rows
              if row["parameters"] != known.get(row["model"])]
    print("\n".join(unlike))
    return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())

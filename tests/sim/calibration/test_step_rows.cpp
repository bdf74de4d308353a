// Rows of measured steps as studies: what they state counts, the preset fills the rest, bad rows are
// excluded.
#include <doctest/doctest.h>

#include "policies/base/error.h"
#include "sim/calibration/step_rows.h"
#include "tests/scratch_folder.h"

using namespace equipoise;

namespace {

const std::string kHeader = "row_id,group,gpu,model_id,seq_len,tp,cp,pp,dp,mbs,gbs_seqs,step_time_s";
const std::string kRow = "a,bench_bf16_v1,H100 SXM 80GB,tiny,2048,2,1,1,4,1,16,1.5";
const std::string kModels =
    "model_id,n_layers,hidden,n_heads,n_kv_heads,ffn_hidden,gated_mlp,vocab\ntiny,4,1024,8,,4096,1,32000\n";

StepRows read(const std::string& rows, const std::string& preset = "megatron",
              const std::string& models = kModels) {
  const test::Scratch folder;
  StepTables tables;
  tables.rows = folder.write("rows.csv", rows);
  if (!models.empty()) tables.models = folder.write("models.csv", models);
  tables.preset = preset;
  return read_step_rows(tables, 1);
}

// The only row of a table with more columns.
StepRow with(const std::string& columns, const std::string& values, const std::string& preset = "megatron") {
  StepRows rows = read(kHeader + "," + columns + "\n" + kRow + "," + values + "\n", preset);
  REQUIRE(rows.rows.size() == 1);
  return std::move(rows.rows[0]);
}

std::string reason(const std::string& row) {
  const StepRows rows = read(kHeader + ",precision,act_recompute\n" + row + "\n");
  REQUIRE(rows.excluded.size() == 1);
  return rows.excluded[0].why;
}

}  // namespace

TEST_CASE("A row needs only the documented columns, and becomes the study that it describes") {
  const StepRows rows = read(kHeader + "\n" + kRow + "\n");
  REQUIRE(rows.rows.size() == 1);
  const StepRow& row = rows.rows[0];
  CHECK(row.id == "a");
  CHECK(row.benchmark == "bench");
  CHECK(row.precision == "bf16");
  CHECK(row.recompute == "none");
  CHECK(row.published == 1.5);
  CHECK(row.study.model.layers == 4);
  CHECK(row.study.model.kv_heads == 8);
  CHECK(row.study.model.gated_ffn);
  CHECK(row.study.layout.tensor == 2);
  CHECK(row.study.layout.data == 4);
  CHECK(row.study.layout.virtual_pipeline == 1);
  CHECK(row.study.layout.zero == 1);
  CHECK(row.study.trace.uniform == 2048);
  CHECK(row.study.batch.sequences_per_step == 16);
  CHECK(row.study.framework.preset.name == "megatron");
  CHECK(row.inputs.profile.name() == "h100-sxm");
  CHECK(row.seconds({1, 1, 1}) < row.seconds({2, 1, 1}));
  const FrameworkOptions& own = row.study.framework.preset.options;
  CHECK(row.seconds_as_preset() ==
        row.seconds({own.gemm_slowdown, own.attention_slowdown, own.elementwise_slowdown}));
}

TEST_CASE("Built-in model names need no table of models; a row without an id is named by its line") {
  const StepRows rows = read(
      "gpu,model_id,seq_len,tp,cp,pp,dp,mbs,gbs_seqs,step_time_s\nH200 141GB,wlb-550m,2048,1,1,1,1,1,1,1\n",
      "megatron", "");
  REQUIRE(rows.rows.size() == 1);
  CHECK(rows.rows[0].id == "line 2");
  CHECK(rows.rows[0].benchmark == "line 2");
  CHECK(rows.rows[0].inputs.profile.name() == "h200-sxm");
}

TEST_CASE("What a row states counts before the preset: attention, optimizer state, recompute, sharding") {
  const auto kernel = [](const StepRow& row) {
    return row.study.framework.on(row.inputs.profile).attention_kernel;
  };
  CHECK(kernel(with("attention_impl", "")).empty());
  CHECK(kernel(with("attention_impl", "flash-attention")) == "flash-attention-2");
  CHECK(kernel(with("attention_impl", "", "fsdp")) == "flash-attention-2");
  CHECK(kernel(with("attention_impl", "cudnn", "fsdp")).empty());
  const auto state = [](const StepRow& row) {
    return row.study.framework.on(row.inputs.profile).optimizer_bytes;
  };
  CHECK(state(with("optimizer_state_dtype", "")) == 12);
  CHECK(state(with("optimizer_state_dtype", "bf16")) == 8);  // fp32 master weight, two bf16 moments
  // A word that nobody defined is no empty field.
  const auto why = [](const std::string& column, const std::string& value) {
    const StepRows rows = read(kHeader + "," + column + "\n" + kRow + "," + value + "\n");
    REQUIRE(rows.excluded.size() == 1);
    return rows.excluded[0].why;
  };
  CHECK(why("attention_impl", "flash-attn-3") ==
        "attention_impl \"flash-attn-3\", expected cudnn or flash-attention or flash-attention-2 or "
        "flash-attention-3");
  CHECK(why("optimizer_state_dtype", "int8") == "optimizer_state_dtype \"int8\", expected bf16 or fp32");
  CHECK(why("n_gpus", "512") == "n_gpus 512, expected tp x cp x pp x dp = 8");
  CHECK(why("stage_layers", "2;x") == "stage_layers 2;x, expected layers of each virtual stage, as 6;5;5;0");
  CHECK(with("stage_layers", "4").study.layout.stage_layers == std::vector<int>{4});
  CHECK(with("nic_GBps", "28.4").study.cluster.network.nic_GBps == 28.4);
  CHECK(with("nic_GBps", "").study.cluster.network.nic_GBps == 0);  // the profile's
  CHECK(with("tp_overlap_sms", "12").study.framework.in_training.tp_overlap_sms == 12);
  CHECK(why("tp_overlap_sms", "1.7") == "tp_overlap_sms 1.7, expected an integer from 1");
  CHECK(with("context_comm", "ring").study.layout.context_comm == ContextComm::ring);
  CHECK(why("context_comm,notes", "torus,ring") == "context_comm \"torus\", expected all-gather or ring or ulysses");
  const Training lora = with("lora", "\"16:linear_qkv,linear_fc2\"").study.model.training;
  CHECK(lora.lora_dim == 16);
  CHECK(lora.adapted == with("lora", "\"16:linear_q_proj,linear_fc2\"").study.model.training.adapted);
  CHECK(lora.adapted != with("lora", "16:all").study.model.training.adapted);
  CHECK(why("lora", "16:linear_qv").starts_with("lora \"16:linear_qv\", expected RANK:MODULE,..."));
  CHECK(with("study_set", "\"{\"\"framework.gradient_bytes\"\": 4}\"").study.framework.in_training.gradient_bytes == 4);
  CHECK(with("act_recompute,recompute_layers", "full,3").study.layout.recompute_layers == 3);
  CHECK(why("act_recompute,recompute_layers", "none,3") ==
        "recompute_layers, expected with act_recompute full");
  CHECK(with("act_recompute", "full").recompute == "full");
  CHECK(with("act_recompute", "selective").study.layout.recompute == Recompute::selective);
  CHECK(with("act_recompute", "selective (per op)").study.layout.repeats(RecomputeModule::per_op));
  const auto titan = [&](const char* column, const char* value) {
    const StepRow row = with(column, value, "torchtitan");
    return row.study.framework.on(row.inputs.profile);
  };
  CHECK(titan("notes", "").linear_layers == LinearLayers::torch);
  CHECK(titan("notes", "FSDP; eager").linear_layers == LinearLayers::torch_eager);
  CHECK(titan("notes", "2D + AsyncTP").tp_overlap_forward);
  CHECK(!titan("notes", "vanilla TP").tp_overlap_forward);
  CHECK(titan("fp8_param_gather", "1").fp8_param_gather);
  CHECK(with("notes", "CP", "torchtitan").study.layout.context_comm == ContextComm::ring);
  CHECK(with("notes", "CP").study.layout.context_comm == ContextComm::all_gather);
  CHECK(with("notes", "SHARD_GRAD_OP", "fsdp").study.layout.zero == 2);
  CHECK(with("notes", "", "fsdp").study.layout.zero == 3);
  CHECK(with("vp,layers_run", "1,8").study.model.layers == 8);
  CHECK(with("precision", "fp8").study.layout.precision == Precision::fp8);
}

TEST_CASE("Where a row does not say what it recomputed, the cheapest that fits is taken") {
  // 16 sequences of 8192 tokens on one GPU: a token keeps about 41 KB in each of 16 layers, 86 GB in all, and
  // its input 2 KB, 4 GB in all, in addition to logits of 25 GB.
  const StepRows rows = read(kHeader + ",layers_run\na,b,H100,tiny,8192,1,1,1,1,16,16,1,16\n");
  REQUIRE(rows.rows.size() == 1);
  CHECK(rows.rows[0].recompute == "full");
}

TEST_CASE("A row that cannot be simulated is excluded with its reason") {
  CHECK(reason("a,b,H100,tiny,2048,2,1,1,4,1,16,,,") == "no step time");
  CHECK(reason("a,b,H100,tiny,2048,2,1,1,4,1,16,-1,,") == "a step time of -1");
  CHECK(reason("a,b,H100,tiny,,2,1,1,4,1,16,1,,") == "no seq_len");
  CHECK(reason("a,b,H100,tiny,2048,2,1,1,4,,16,1,,") == "no mbs");
  CHECK(reason("a,b,H100,tiny,2048,1.5,1,1,4,1,16,1,,") == "tp 1.5, expected an integer from 1");
  CHECK(reason("a,b,H100,small,2048,2,1,1,4,1,16,1,,") == "unknown model small");
  CHECK(reason("a,b,V100,tiny,2048,2,1,1,4,1,16,1,,") == "gpu V100 without a profile (--profile)");
  CHECK(reason("a,b,H100,tiny,2048,2,1,1,4,1,16,1,int4,") == "precision int4");
  CHECK(reason("a,b,H100,tiny,2048,2,1,1,4,1,16,1,,full on 28 layers") == "recompute full on 28 layers");
  CHECK(reason("a,b,H100,tiny,2048,3,1,1,4,1,16,1,,").find("parallel.tensor") != std::string::npos);
}

TEST_CASE("A table without a needed column is refused with the file and the column") {
  const auto refusal = [](const std::string& rows, const std::string& models) {
    try {
      (void)read(rows, "megatron", models);
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refusal("gpu,model_id\nH100,tiny\n", kModels).find("rows.csv: expected a column called seq_len") !=
        std::string::npos);
  CHECK(refusal(kHeader + "\n" + kRow + "\n", "model_id\ntiny\n")
            .find("models.csv: expected a column called n_layers") != std::string::npos);
}

TEST_CASE("A benchmark is a group without its version and precision") {
  CHECK(benchmark_of("dgxc_llama3.1-8b_bf16_v25.04.02") == "dgxc_llama3.1-8b");
  CHECK(benchmark_of("titan_8b_fsdp_bf16_8") == "titan_8b_fsdp");
  CHECK(benchmark_of("mpt_1b_bf16") == "mpt_1b");
  CHECK(benchmark_of("ours") == "ours");
}

namespace {

const std::string kExpertModels =
    "model_id,n_layers,hidden,n_heads,n_kv_heads,head_dim,ffn_hidden,dense_layers,moe_ffn_hidden,n_experts,"
    "experts_per_token,shared_ffn,vocab,mla,source\n"
    "sparse,4,1024,8,2,64,4096,1,512,16,2,768,32000,,a paper\n"
    "latent,4,1024,8,8,96,,0,512,16,2,0,32000,q_lora=256 kv_lora=128 qk_nope=64 qk_rope=32 v_head=64,a "
    "paper\n"
    "hybrid,4,1024,8,2,64,,0,512,16,2,0,32000,,hybrid: linear attention in most layers\n"
    "sliding,4,1024,8,2,64,,0,512,16,2,0,32000,,every other layer uses sliding-window attention of 128 "
    "tokens\n"
    "slides,4,1024,8,2,64,,0,512,16,2,0,32000,,sliding-window attention somewhere\n"
    "chunked,4,1024,8,2,64,,0,512,16,2,0,32000,,chunked attention of 2048\n";
const std::string kExpertHeader =
    "row_id,group,gpu,model_id,seq_len,tp,cp,pp,dp,ep,etp,fsdp_shard,mbs,gbs_seqs,step_time_s,act_recompute,"
    "dispatcher,overlap,routing";

// The rows that can be simulated, and why the others cannot.
StepRows read_experts(const std::string& rows) {
  return read(kExpertHeader + "\n" + rows + "\n", "megatron", kExpertModels);
}

}  // namespace

TEST_CASE("A row of a model with experts: sizes, expert parallelism, exchange and recompute as stated") {
  const StepRows rows = read_experts(
      "a,x_sparse_4k,H100,sparse,2048,2,1,1,4,8,1,,1,16,1.5,\"norm, act\",deepep,1f1b,forced balance\n"
      "b,y_v1,H100,latent,2048,1,1,1,4,4,,4,,16,1.5,,alltoall,none,dropless");
  REQUIRE(rows.rows.size() == 2);
  const Study& sparse = rows.rows[0].study;
  CHECK(rows.rows[0].benchmark == "x_sparse");  // up to the model's name
  CHECK(rows.rows[1].benchmark == "y");
  REQUIRE(sparse.model.moe);
  CHECK(sparse.model.moe->experts == 16);
  CHECK(sparse.model.moe->active == 2);
  CHECK(sparse.model.moe->expert_ffn == 512);
  CHECK(sparse.model.moe->shared_width() == 768);
  CHECK(sparse.model.moe->dense_layers == 1);
  CHECK(sparse.model.ffn == 4096);
  CHECK(sparse.model.head_dim == 64);
  CHECK(sparse.layout.expert == 8);
  CHECK(sparse.layout.expert_tensor == 1);
  CHECK(sparse.layout.recompute == Recompute::modules);
  CHECK(sparse.layout.recompute_modules ==
        (module_bit(RecomputeModule::layernorm) | module_bit(RecomputeModule::moe_act)));
  CHECK(rows.rows[0].recompute == "norm, act");
  const FrameworkOptions options = sparse.framework.on(rows.rows[0].inputs.profile);
  CHECK(options.expert_dispatcher == ExpertDispatcher::deepep);
  CHECK(options.expert_overlap == ExpertOverlap::dualpipe);
  const Study& latent = rows.rows[1].study;
  REQUIRE(latent.model.mla);
  CHECK(latent.model.mla->q_lora == 256);
  CHECK(latent.model.mla->kv_lora == 128);
  CHECK(latent.model.value_dim() == 64);
  CHECK(latent.model.ffn == 512);  // no layer has it
  CHECK(latent.layout.zero == 3);
  CHECK(latent.batch.micro_batch_size == 1);  // empty
  CHECK(latent.framework.on(rows.rows[1].inputs.profile).expert_overlap == ExpertOverlap::none);
}

TEST_CASE(
    "Windows that the models' table names in words slide; one chunk is no mask; a capacity is a factor") {
  const StepRows rows = read_experts(
      "a,g,H100,sliding,2048,1,1,1,4,4,1,,1,16,1.5,none,alltoall,none,\"tokendrop, capacity factor 1.25\"\n"
      "b,g,H100,chunked,2048,1,1,1,4,4,1,,1,16,1.5,none,alltoall,none,dropless");
  REQUIRE(rows.rows.size() == 2);
  const ModelShape& model = rows.rows[0].study.model;
  CHECK(model.sliding_window == 128);
  CHECK(model.is_sliding_layer(0));
  CHECK(!model.is_sliding_layer(1));
  const auto options = [&](std::size_t i) {
    return rows.rows[i].study.framework.on(rows.rows[i].inputs.profile);
  };
  CHECK(options(0).expert_capacity_factor == 1.25);
  CHECK(rows.rows[1].study.model.sliding_window == 0);
  CHECK(options(1).expert_capacity_factor == 0);
}

TEST_CASE("An open expert tensor parallelism is TP, or 1 where that does not fit a row of its group") {
  const std::string row = ",g,H100,sparse,2048,2,1,1,4,4,,,1,16,1.5,none,,,";
  CHECK(read_experts("a" + row).rows[0].study.layout.expert_tensor == 2);
  // One rank of data parallelism: ep 4 x etp 2 does not divide 2 x 1 x 2.
  const StepRows both = read_experts("a" + row + "\nb,g,H100,sparse,2048,2,1,1,2,4,,,1,16,1.5,none,,,");
  REQUIRE(both.rows.size() == 2);
  CHECK(both.rows[0].study.layout.expert_tensor == 1);
  CHECK(both.rows[1].study.layout.expert_tensor == 1);
}

TEST_CASE("What a row of a model with experts says and we cannot say is named") {
  const auto why = [](const std::string& row) {
    const StepRows rows = read_experts(row);
    REQUIRE(rows.excluded.size() == 1);
    return rows.excluded[0].why;
  };
  CHECK(why("a,g,H100,hybrid,2048,1,1,1,4,4,1,,1,16,1.5,none,,,") ==
        "model hybrid: linear attention is not modelled");
  CHECK(why("a,g,H100,slides,2048,1,1,1,4,4,1,,1,16,1.5,none,,,")
            .starts_with("model slides: sliding-window attention, expected"));
  CHECK(why("a,g,H100,chunked,4096,1,1,1,4,4,1,,1,16,1.5,none,,,") ==
        "model chunked: chunked attention is not modelled beyond one chunk of 2048 tokens");
  CHECK(why("a,g,H100,sparse,2048,1,1,1,4,4,1,,1,16,1.5,none,,,capacity factor much") ==
        "routing \"capacity factor much\", expected capacity factor NUMBER");
  CHECK(why("a,g,H100,sparse,2048,1,1,1,4,4,1,2,1,16,1.5,none,,,") == "fsdp_shard 2, expected dp = 4");
  CHECK(why("a,g,H100,sparse,2048,1,1,1,4,4,1,,1,16,1.5,none,pigeons,,") ==
        "dispatcher \"pigeons\", expected alltoall or custom all-to-all or deepep or hybridep");
  CHECK(why("a,g,H100,sparse,2048,1,1,1,4,4,1,,1,16,1.5,\"moe, brain\",,,") == "recompute moe, brain");
}

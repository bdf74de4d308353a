// Rows of measured steps as studies: what they state counts, the preset fills the rest, bad rows are left
// out.
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
  REQUIRE(rows.left_out.size() == 1);
  return rows.left_out[0].why;
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
    REQUIRE(rows.left_out.size() == 1);
    return rows.left_out[0].why;
  };
  CHECK(why("attention_impl", "flash-attn-3") ==
        "attention_impl \"flash-attn-3\", expected flash-attention or cudnn");
  CHECK(why("optimizer_state_dtype", "int8") == "optimizer_state_dtype \"int8\", expected bf16 or fp32");
  CHECK(why("n_gpus", "512") == "n_gpus 512, expected tp x cp x pp x dp = 8");
  CHECK(with("act_recompute", "full").recompute == "full");
  CHECK(with("act_recompute", "selective (per op)").study.layout.recompute == Recompute::selective);
  CHECK(with("notes", "SHARD_GRAD_OP", "fsdp").study.layout.zero == 2);
  CHECK(with("notes", "", "fsdp").study.layout.zero == 3);
  CHECK(with("vp,layers_run", "1,8").study.model.layers == 8);
  CHECK(with("precision", "fp8").study.layout.precision == Precision::fp8);
}

TEST_CASE("Where a row does not say what it recomputed, the cheapest that fits is taken") {
  // 16 sequences of 8192 tokens on one GPU: a token keeps about 41 KB in each of 16 layers, 86 GB in all, and
  // its input 2 KB, 4 GB in all, beside logits of 25 GB.
  const StepRows rows = read(kHeader + ",layers_run\na,b,H100,tiny,8192,1,1,1,1,16,16,1,16\n");
  REQUIRE(rows.rows.size() == 1);
  CHECK(rows.rows[0].recompute == "full");
}

TEST_CASE("A row that cannot be simulated is left out with its reason") {
  CHECK(reason("a,b,H100,tiny,2048,2,1,1,4,1,16,,,") == "no step time");
  CHECK(reason("a,b,H100,tiny,2048,2,1,1,4,1,16,-1,,") == "a step time of -1");
  CHECK(reason("a,b,H100,tiny,,2,1,1,4,1,16,1,,") == "no seq_len");
  CHECK(reason("a,b,H100,tiny,2048,2,1,1,4,,16,1,,") == "no mbs");
  CHECK(reason("a,b,H100,tiny,2048,1.5,1,1,4,1,16,1,,") == "tp 1.5, expected an integer from 1");
  CHECK(reason("a,b,H100,small,2048,2,1,1,4,1,16,1,,") == "unknown model small");
  CHECK(reason("a,b,A100,tiny,2048,2,1,1,4,1,16,1,,") == "gpu A100 without a profile (--profile)");
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

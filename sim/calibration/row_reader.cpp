#include "sim/calibration/row_reader.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

namespace equipoise {

using nlohmann::json;

namespace {

constexpr double kMixedAdam = 4 + 2 * 2;  // bytes: fp32 master weight, two bf16 moments

// Modules as published tables name them, and as Megatron-LM does.
constexpr std::pair<std::string_view, std::string_view> kModules[] = {
    {"norm", "layernorm"},
    {"rmsnorm", "layernorm"},
    {"layernorm", "layernorm"},
    {"act", "moe_act"},
    {"moe_act", "moe_act"},
    {"mla_up_proj", "mla_up_proj"},
    {"mlp", "mlp"},
    {"moe", "moe"},
    {"core_attn", "core_attn"},
    {"shared_expert", "shared_experts"},
    {"shared_experts", "shared_experts"},
};

// "norm, act" as parallel.recompute; null if a word is no module.
json modules_of(const std::string& said) {
  json modules = json::array();
  std::size_t begin = 0;
  while (begin <= said.size()) {
    const std::size_t end = std::min(said.find(',', begin), said.size());
    std::string_view word = std::string_view(said).substr(begin, end - begin);
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    const auto* const known = std::find_if(std::begin(kModules), std::end(kModules),
                                           [&](const auto& module) { return module.first == word; });
    if (known == std::end(kModules)) return {};
    modules.push_back(known->second);
    begin = end + 1;
  }
  return {{"modules", std::move(modules)}};
}

}  // namespace

std::string one_of(const char* column, std::string_view found,
                   std::initializer_list<std::string_view> allowed) {
  if (std::find(allowed.begin(), allowed.end(), found) != allowed.end()) return std::string(found);
  std::string expected;
  for (const std::string_view word : allowed)
    if (!word.empty()) expected.append(expected.empty() ? "" : " or ").append(word);
  throw NotThisRow{std::string(column) + " \"" + std::string(found) + "\", expected " + expected};
}

std::string RowReader::word(const char* column, std::initializer_list<std::string_view> allowed) const {
  return one_of(column, text(column), allowed);
}

std::int64_t RowReader::size(const char* column) const {
  const std::optional<double> value = rows_.number(row_, column);
  if (!value) throw NotThisRow{std::string("no ") + column};
  if (!(*value >= 1 && *value <= 1e9) || *value != std::floor(*value))
    throw NotThisRow{std::string(column) + " " + text(column) + ", expected an integer from 1"};
  return static_cast<std::int64_t>(*value);
}

std::int64_t RowReader::size_or(const char* column, std::int64_t otherwise) const {
  return text(column).empty() ? otherwise : size(column);
}

void RowReader::check_gpus() const {
  if (text("n_gpus").empty()) return;
  const std::int64_t gpus = size("tp") * size("cp") * size("pp") * size("dp");
  if (size("n_gpus") != gpus)
    throw NotThisRow{"n_gpus " + text("n_gpus") + ", expected tp x cp x pp x dp = " + std::to_string(gpus)};
}

std::vector<json> RowReader::recompute_modes() const {
  const std::string said = text("act_recompute");
  const std::string mode = said.substr(0, said.find(' '));
  if (mode.empty()) return {"none", "full"};
  const bool partly = said.find(" on ") != std::string::npos;
  if (!partly && (mode == "none" || mode == "selective" || mode == "full")) return {mode};
  json modules = modules_of(said);
  if (modules.is_null()) throw NotThisRow{"recompute " + said};
  return {std::move(modules)};
}

json RowReader::model() const {
  const std::string id = text("model_id");
  if (models_ == nullptr) {
    if (text("layers_run").empty()) return id;
    throw NotThisRow{"layers_run needs a table of models"};
  }
  std::size_t at = 0;
  while (at < models_->rows() && models_->text(at, "model_id") != id) ++at;
  if (at == models_->rows()) throw NotThisRow{"unknown model " + id};
  const auto has = [&](const char* column) { return !models_->text(at, column).empty(); };
  const auto of_model = [&](const char* column) {
    const std::optional<double> value = models_->number(at, column);
    if (!value) throw NotThisRow{"model " + id + " without " + column};
    return static_cast<std::int64_t>(*value);
  };
  // Models with experts are gated unless the table says otherwise.
  const std::string_view said = models_->text(at, "gated_mlp");
  const bool gated = (said.empty() && has_experts()) || one_of("gated_mlp", said, {"1", "0"}) == "1";
  json model = {{"name", id},
                {"layers", text("layers_run").empty() ? of_model("n_layers") : size("layers_run")},
                {"hidden", of_model("hidden")},
                {"heads", of_model("n_heads")},
                {"kv_heads", has("n_kv_heads") ? of_model("n_kv_heads") : of_model("n_heads")},
                {"vocab", of_model("vocab")},
                {"gated_ffn", gated}};
  if (has("head_dim")) model["head_dim"] = of_model("head_dim");
  add_experts(at, model);
  if (has("ffn_hidden") || !model.contains("experts")) model["ffn"] = of_model("ffn_hidden");
  return model;
}

std::string RowReader::profile() const {
  if (!tables_.profile.empty()) return tables_.profile;
  const std::string gpu = text("gpu");
  for (const auto& [word, name] : {std::pair{"H200", "h200-sxm"}, std::pair{"H800", "h800-sxm"},
                                   std::pair{"H100", "h100-sxm"}, std::pair{"A100", "a100-sxm"}})
    if (gpu.find(word) != std::string::npos) return name;
  throw NotThisRow{"gpu " + gpu + " without a profile (--profile)"};
}

// What the row states of its framework.
json RowReader::framework() const {
  const bool is_path = tables_.preset.find('/') != std::string::npos || tables_.preset.ends_with(".json");
  json node = {{"preset", is_path ? std::filesystem::absolute(tables_.preset).string() : tables_.preset}};
  const std::string attention = word("attention_impl", {"", "flash-attention", "cudnn"});
  if (attention == "flash-attention") node["attention_kernel"] = "flash-attention-2";
  if (attention == "cudnn") node["attention_kernel"] = "";  // or its like: the profile's default
  if (word("optimizer_state_dtype", {"", "bf16", "fp32"}) == "bf16") node["optimizer_bytes"] = kMixedAdam;
  if (const std::string overlap = word("tp_overlap", {"", "0", "1"}); !overlap.empty())
    node["tp_overlap"] = overlap == "1";
  if (const std::string bytes = word("gradient_bytes", {"", "2", "4"}); !bytes.empty())
    node["gradient_bytes"] = bytes == "4" ? 4 : 2;
  if (has_experts()) add_expert_framework(node);
  return node;
}

json RowReader::parallel(const json& recompute) const {
  const std::string notes = text("notes");
  json parallel = {{"tensor", size("tp")}, {"context", size("cp")},  {"pipeline", size("pp")},
                   {"data", size("dp")},   {"recompute", recompute}, {"virtual_pipeline", size_or("vp", 1)}};
  if (notes.find("SHARD_GRAD_OP") != std::string::npos) parallel["zero"] = 2;  // FSDP's name for it
  if (notes.find("ring") != std::string::npos) parallel["context_comm"] = "ring";
  if (!has_experts()) return parallel;
  parallel["expert"] = size("ep");
  parallel["expert_tensor"] = expert_tensor();
  if (size_or("fsdp_shard", 1) > 1) {
    if (size("fsdp_shard") != size("dp"))
      throw NotThisRow{"fsdp_shard " + text("fsdp_shard") + ", expected dp = " + text("dp")};
    parallel["zero"] = 3;
  }
  return parallel;
}

json RowReader::study(const json& recompute) const {
  const std::string precision = text("precision");
  if (!precision.empty() && precision != "bf16" && !precision.starts_with("fp8"))
    throw NotThisRow{"precision " + precision};
  check_gpus();
  json study = {{"name", text("row_id")},
                {"trace", {{"uniform", size("seq_len")}}},
                {"model", model()},
                {"cluster", {{"profile", profile()}}},
                {"parallel", parallel(recompute)},
                {"framework", framework()},
                {"batch",
                 {{"context_window", size("seq_len")},
                  {"sequences_per_step", size("gbs_seqs")},
                  {"micro_batch_size", has_experts() ? size_or("mbs", 1) : size("mbs")},
                  {"steps", 1}}},
                {"precision", precision.starts_with("fp8") ? "fp8" : "bf16"},
                {"policies", {"plain"}}};
  const json& model = study["model"];
  // More virtual stages than layers: the first embeds and the last makes the logits, each as a layer.
  if (model.is_object() && size("pp") * size_or("vp", 1) > model["layers"].get<std::int64_t>())
    study["parallel"]["count_embedding_and_head"] = true;
  return study;
}

std::string RowReader::benchmark() const {
  const std::string group = text("group");
  const std::string model = text("model_id");
  const std::size_t named = model.empty() ? std::string::npos : group.find(model);
  return named == std::string::npos ? benchmark_of(group) : group.substr(0, named + model.size());
}

}  // namespace equipoise

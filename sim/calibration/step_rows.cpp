#include "sim/calibration/step_rows.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>

#include "policies/base/error.h"
#include "policies/base/parallel.h"
#include "policies/base/text.h"

namespace equipoise {

using nlohmann::json;

namespace {

// Why a row is no study; what it says is not wrong, so the others count.
struct NotThisRow {
  std::string why;
};

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
    {"selective (per op)", "per_op"},
};

// Mixers and masks that the models' table names in words, and that ModelShape cannot say.
constexpr const char* kNotModelled[] = {"linear attention", "Mamba"};

// The whole number behind some words, 0 where they are not there: "chunked attention of 8192".
std::int64_t number_after(std::string_view text, std::string_view words) {
  const std::size_t at = text.find(words);
  if (at == std::string_view::npos) return 0;
  return std::strtoll(std::string(text.substr(at + words.size())).c_str(), nullptr, 10);
}

// "q_lora=1536 kv_lora=512 qk_nope=128 qk_rope=64 v_head=128"
json mla_of(const std::string& id, std::string_view said) {
  json mla = json::object();
  for (const auto& [word, key] :
       {std::pair{"q_lora=", "q_lora"}, std::pair{"kv_lora=", "kv_lora"}, std::pair{"qk_nope=", "nope_dim"},
        std::pair{"qk_rope=", "rope_dim"}, std::pair{"v_head=", "v_dim"}}) {
    // A word begins the text or follows a blank: q_lora is not the end of another.
    std::size_t at = said.find(word);
    while (at != std::string_view::npos && at > 0 && said[at - 1] != ' ') at = said.find(word, at + 1);
    if (at == std::string_view::npos) {
      if (std::string_view(key) == "q_lora") continue;
      throw NotThisRow{"model " + id + ": mla without " + key};
    }
    const std::string_view word_text(word);
    const std::string number(said.substr(at + word_text.size(), said.find(' ', at) - at - word_text.size()));
    mla[key] = std::strtoll(number.c_str(), nullptr, 10);
  }
  return mla;
}

// The terms of a list, without the blanks around them.
std::vector<std::string_view> terms_of(std::string_view list) {
  std::vector<std::string_view> terms;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    std::string_view term = list.substr(begin, end - begin);
    while (term.starts_with(' ')) term.remove_prefix(1);
    while (term.ends_with(' ')) term.remove_suffix(1);
    terms.push_back(term);
    begin = end + 1;
  }
  return terms;
}

// The data's vocabulary of `dispatcher`: a name, of some with details in parentheses behind it, e.g. "custom
// all-to-all (20 SMs, at most 4 nodes a token)".
struct Dispatcher {
  std::string_view said, priced_as;
  bool takes_sms = false;  // its own SMs, beside those of the products
};
constexpr Dispatcher kDispatchers[] = {{"alltoall", "alltoall"},
                                       {"deepep", "deepep"},
                                       {"hybridep", "deepep"},
                                       // DeepSeek-V3's own, published as DeepEP
                                       {"custom all-to-all", "deepep", true}};

// The data's vocabulary of `routing`: terms of which one makes the experts' loads equal (a balance that is
// forced; a capacity of 1 that is filled up with padding).
constexpr std::string_view kEqualLoads[] = {"forced balance", "tokendrop"};

// "norm, act" as parallel.recompute; null if a word is no module.
json modules_of(const std::string& said) {
  json modules = json::array();
  for (const std::string_view word : terms_of(said)) {
    const auto* const known = std::ranges::find_if(kModules, [&](const auto& m) { return m.first == word; });
    if (known == std::end(kModules)) return {};
    modules.push_back(known->second);
  }
  return {{"modules", std::move(modules)}};
}

// The word, if it is one of the allowed ones; throws NotThisRow.
std::string one_of(const char* column, std::string_view found,
                   std::initializer_list<std::string_view> allowed) {
  if (std::find(allowed.begin(), allowed.end(), found) != allowed.end()) return std::string(found);
  throw NotThisRow{std::string(column) + " \"" + std::string(found) + "\", expected " + all_joined(allowed, " or ")};
}

class RowReader {
 public:
  // `models` may be null: model_id then names a built-in model.
  RowReader(const CsvTable& rows, const CsvTable* models, const StepTables& tables, std::size_t row)
      : rows_(rows), models_(models), tables_(tables), row_(row) {}

  [[nodiscard]] std::string text(const char* column) const { return std::string(rows_.text(row_, column)); }
  // What the row says it recomputed, or, where it says nothing, may have: values of parallel.recompute, the
  // cheapest first.
  [[nodiscard]] std::vector<nlohmann::json> recompute_modes() const;
  // The row as a study file. Throws NotThisRow.
  [[nodiscard]] nlohmann::json study(const nlohmann::json& recompute) const;
  // The group without its version and precision, or, where it names the row's model, up to that name: rows of
  // one benchmark differ little.
  [[nodiscard]] std::string benchmark() const;

 private:
  [[nodiscard]] std::int64_t size(const char* column) const;
  [[nodiscard]] std::int64_t size_or(const char* column, std::int64_t otherwise) const;
  [[nodiscard]] json stage_layers(const std::string& list) const;
  [[nodiscard]] std::string word(const char* column, std::initializer_list<std::string_view> allowed) const;
  void check_gpus() const;
  [[nodiscard]] nlohmann::json model() const;
  [[nodiscard]] nlohmann::json parallel(const nlohmann::json& recompute) const;
  [[nodiscard]] nlohmann::json framework() const;
  [[nodiscard]] std::string profile() const;
  void add_experts(std::size_t model_row, nlohmann::json& model) const;
  [[nodiscard]] bool has_experts() const;
  [[nodiscard]] std::int64_t expert_tensor() const;
  void add_expert_framework(nlohmann::json& framework) const;

  const CsvTable& rows_;
  const CsvTable* models_;
  const StepTables& tables_;
  std::size_t row_;
};

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
  if (!text("recompute_layers").empty()) {
    if (mode != "full") throw NotThisRow{"recompute_layers, expected with act_recompute full"};
    return {{{"layers", size("recompute_layers")}}};
  }
  if (mode.empty()) return {"none", "full"};
  const bool partly = said.find(" on ") != std::string::npos || said.ends_with("(per op)");
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
  if (has("tied_embeddings")) model["tied_embeddings"] = of_model("tied_embeddings") == 1;
  add_experts(at, model);
  if (has("ffn_hidden") || !model.contains("experts")) model["ffn"] = of_model("ffn_hidden");
  return model;
}

std::string RowReader::profile() const {
  if (!tables_.profile.empty()) return tables_.profile;
  const std::string gpu = text("gpu");
  for (const auto& [word, name] :
       {std::pair{"H200", "h200-sxm"}, std::pair{"H800", "h800-sxm"}, std::pair{"500W", "h100-500w"},
        std::pair{"H100", "h100-sxm"}, std::pair{"A100", "a100-sxm"}, std::pair{"B200", "b200-sxm"}})
    if (gpu.find(word) != std::string::npos) return name;
  throw NotThisRow{"gpu " + gpu + " without a profile (--profile)"};
}

json RowReader::framework() const {
  const bool is_path = tables_.preset.find('/') != std::string::npos || tables_.preset.ends_with(".json");
  json node = {{"preset", is_path ? std::filesystem::absolute(tables_.preset).string() : tables_.preset}};
  const std::string attention = word("attention_impl", {"", "flash-attention", "cudnn"});
  if (attention == "flash-attention") node["attention_kernel"] = "flash-attention-2";
  if (attention == "cudnn") node["attention_kernel"] = "";  // or its like: the profile's default
  if (word("optimizer_state_dtype", {"", "bf16", "fp32"}) == "bf16") node["optimizer_bytes"] = kMixedAdam;
  for (const char* key : {"tp_overlap", "fp8_param_gather"})
    if (const std::string said = word(key, {"", "0", "1"}); !said.empty()) node[key] = said == "1";
  const std::string notes = text("notes");
  if (notes.find("AsyncTP") != std::string::npos || notes.find("async TP") != std::string::npos)
    node["tp_overlap"] = true;
  if (notes.find(", eager") != std::string::npos || notes.find("; eager") != std::string::npos) node["linear_layers"] = "torch-eager";
  if (const std::string bytes = word("gradient_bytes", {"", "2", "4"}); !bytes.empty())
    node["gradient_bytes"] = bytes == "4" ? 4 : 2;
  if (!text("tp_overlap_sms").empty()) node["tp_overlap_sms"] = size("tp_overlap_sms");
  if (const std::string graphs = word("graphs", {"", "none", "attention", "layer", "full"}); !graphs.empty())
    node["graphs"] = graphs;
  if (has_experts()) add_expert_framework(node);
  return node;
}

json RowReader::parallel(const json& recompute) const {
  const std::string notes = text("notes");
  json parallel = {{"tensor", size("tp")}, {"context", size("cp")},  {"pipeline", size("pp")},
                   {"data", size("dp")},   {"recompute", recompute}, {"virtual_pipeline", size_or("vp", 1)}};
  if (const std::string zero = word("zero", {"", "0", "1", "2", "3"}); !zero.empty())
    parallel["zero"] = zero[0] - '0';
  if (notes.find("SHARD_GRAD_OP") != std::string::npos) parallel["zero"] = 2;  // FSDP's name for it
  if (word("context_comm", {"", "ring"}) == "ring" || notes.find("ring") != std::string::npos ||
      tables_.preset == "torchtitan")  // PyTorch has no other
    parallel["context_comm"] = "ring";
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

// "6;5;5;0"
json RowReader::stage_layers(const std::string& list) const {
  json layers = json::array();
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(';', begin), list.size());
    int count = 0;
    const auto [last, error] = std::from_chars(list.data() + begin, list.data() + end, count);
    if (error != std::errc() || last != list.data() + end || count < 0)
      throw NotThisRow{"stage_layers " + list + ", expected layers of each virtual stage, as 6;5;5;0"};
    layers.push_back(count);
    begin = end + 1;
  }
  return layers;
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
  if (const std::optional<double> rate = rows_.number(row_, "nic_GBps"))
    study["cluster"]["network"]["nic_GBps"] = *rate;
  const json& model = study["model"];
  // More virtual stages than layers: the first embeds and the last makes the logits, each as a layer.
  const bool stated = word("count_embedding_and_head", {"", "0", "1"}) == "1";
  if (const std::string layers = text("stage_layers"); !layers.empty())
    study["parallel"]["stage_layers"] = stage_layers(layers);
  else if (stated ||
           (model.is_object() && size("pp") * size_or("vp", 1) > model["layers"].get<std::int64_t>()))
    study["parallel"]["count_embedding_and_head"] = true;
  return study;
}

std::string RowReader::benchmark() const {
  const std::string group = text("group");
  const std::string model = text("model_id");
  const std::size_t named = model.empty() ? std::string::npos : group.find(model);
  return named == std::string::npos ? benchmark_of(group) : group.substr(0, named + model.size());
}

bool RowReader::has_experts() const {
  if (models_ == nullptr) return !text("ep").empty() && size("ep") > 1;
  for (std::size_t at = 0; at < models_->rows(); ++at)
    if (models_->text(at, "model_id") == text("model_id"))
      return models_->number(at, "n_experts").value_or(0) > 0;
  return false;
}

void RowReader::add_experts(std::size_t at, json& model) const {
  const std::string id = text("model_id");
  const auto number = [&](const char* column) {
    return static_cast<std::int64_t>(models_->number(at, column).value_or(0));
  };
  const std::string_view source = models_->text(at, "source");
  for (const char* kind : kNotModelled)
    if (source.find(kind) != std::string_view::npos)
      throw NotThisRow{"model " + id + ": " + kind + " is not modelled"};
  // All layers see all of a sequence of one chunk.
  if (const std::int64_t chunk = number_after(source, "chunked attention of "); chunk > 0) {
    if (size("seq_len") > chunk)
      throw NotThisRow{"model " + id + ": chunked attention is not modelled beyond one chunk of " +
                       std::to_string(chunk) + " tokens"};
  }
  constexpr std::string_view kEveryOther = "every other layer uses sliding-window attention of ";
  if (const std::int64_t window = number_after(source, kEveryOther); window > 0) {
    model["sliding_window"] = window;
    model["sliding_window_pattern"] = 2;
  } else if (source.find("sliding-window attention") != std::string_view::npos) {
    throw NotThisRow{"model " + id + ": sliding-window attention, expected \"" + std::string(kEveryOther) +
                     "N tokens\" in its source"};
  }
  if (number("n_experts") == 0) return;
  model["experts"] = {{"count", number("n_experts")},
                      {"active", number("experts_per_token")},
                      {"ffn", number("moe_ffn_hidden")}};
  if (number("shared_ffn") > 0) model["experts"]["shared_ffn"] = number("shared_ffn");
  if (number("dense_layers") > 0) model["experts"]["dense_layers"] = number("dense_layers");
  model["ffn"] = number("moe_ffn_hidden");  // of no layer, if the table has no other
  const std::string_view mla = models_->text(at, "mla");
  if (!mla.empty()) model["mla"] = mla_of(id, mla);
}

// Megatron-LM's default is tp. A row that leaves it open while its group has rows that tp does not fit (ep x
// etp must divide tp x cp x dp) ran as those did: with 1.
std::int64_t RowReader::expert_tensor() const {
  if (!text("etp").empty()) return size("etp");
  const std::string group = text("group");
  for (std::size_t i = 0; i < rows_.rows(); ++i) {
    if (i != row_ && (group.empty() || rows_.text(i, "group") != group || !rows_.text(i, "etp").empty()))
      continue;
    const RowReader other(rows_, models_, tables_, i);
    const std::int64_t ranks = other.size("tp") * other.size("cp") * other.size("dp");
    if (ranks % (other.size("ep") * other.size("tp")) != 0) return 1;
  }
  return size("tp");
}

void RowReader::add_expert_framework(json& framework) const {
  const std::string said = text("dispatcher");
  const std::size_t details = said.find(" (");
  const std::string_view name = std::string_view(said).substr(0, details);
  const auto* const dispatcher = std::ranges::find(kDispatchers, name, &Dispatcher::said);
  if (dispatcher != std::end(kDispatchers)) {
    framework["expert_dispatcher"] = dispatcher->priced_as;
    if (dispatcher->takes_sms) framework["exchange_sm_margin"] = true;
    if (const std::int64_t nodes = number_after(said, "at most ")) framework["expert_nodes"] = nodes;
  } else {
    (void)word("dispatcher", {"", "alltoall", "deepep", "hybridep"});
  }
  const std::string overlap = word("overlap", {"", "none", "1f1b", "dualpipe", "shared-expert"});
  if (!overlap.empty()) framework["expert_overlap"] = overlap == "1f1b" ? "dualpipe" : overlap;
  if (const std::string fused = word("permute_fusion", {"", "0", "1"}); !fused.empty())
    framework["permute_fusion"] = fused == "1";
  for (const char* key : {"expert_kernel", "expert_router"})
    if (const std::string stated = text(key); !stated.empty()) framework[key] = stated;
  const std::string routing = text("routing");
  constexpr std::string_view kCapacity = "capacity factor ";
  for (const std::string_view term : terms_of(routing)) {
    if (term.starts_with(kCapacity)) {
      const double factor = std::strtod(std::string(term.substr(kCapacity.size())).c_str(), nullptr);
      if (!(factor > 0)) throw NotThisRow{"routing \"" + routing + "\", expected capacity factor NUMBER"};
      framework["expert_capacity_factor"] = factor;
    }
    if (std::find(std::begin(kEqualLoads), std::end(kEqualLoads), term) != std::end(kEqualLoads))
      framework["expert_imbalance"] = 1, framework["expert_skew"] = 0, framework["expert_router"] = "stated";
  }
}

constexpr const char* kNeeded[] = {"gpu", "model_id", "seq_len", "tp",       "cp",
                                   "pp",  "dp",       "mbs",     "gbs_seqs", "step_time_s"};
constexpr const char* kNeededOfModels[] = {"model_id", "n_layers",   "hidden",
                                           "n_heads",  "ffn_hidden", "vocab"};

CsvTable read_table(const std::string& path, std::span<const char* const> needed) {
  CsvTable table = CsvTable::read(path);
  for (const char* column : needed)
    if (!table.has(column)) throw UserError(path, ": expected a column called ", column, ", found none");
  return table;
}

Metrics simulated(const Study& study, const StudyInputs& inputs, bool ignore_memory) {
  RunStudyOptions options;
  options.find_fits = false;
  options.ignore_memory = ignore_memory;
  const StudyResult result = run_study(study, inputs, options);
  const PolicyResult& row = result.policies.front();
  if (!row.simulated()) throw NotThisRow{row.reason};
  return row.metrics;
}

StepRow make_row(const RowReader& reader, const std::string& where) {
  std::string why;
  const bool stated = !reader.text("act_recompute").empty();
  for (const json& mode : reader.recompute_modes()) {
    Study study = parse_study(reader.study(mode), where);
    StudyInputs inputs = load_inputs(study);
    try {
      (void)simulated(study, inputs, stated);
    } catch (const NotThisRow& not_this) {
      why = not_this.why;
      continue;
    }
    const std::string group = reader.text("group");
    const std::string precision = reader.text("precision");
    return {reader.text("row_id"),
            group,
            reader.benchmark(),
            precision.empty() ? "bf16" : precision,
            mode.is_string() ? mode.get<std::string>() : reader.text("act_recompute"),
            0,
            std::move(study),
            std::move(inputs)};
  }
  throw NotThisRow{why};
}

}  // namespace

std::string benchmark_of(const std::string& group) {
  std::string_view name = group;
  const size_t version = name.find_last_not_of("0123456789.");
  if (version != name.npos && version + 1 < name.size()) {
    if (name[version] == '_')
      name = name.substr(0, version);
    else if (version > 0 && name[version] == 'v' && name[version - 1] == '_')
      name = name.substr(0, version - 1);
  }
  for (const std::string_view precision : {"_bf16", "_fp8-linear", "_fp8"})
    if (name.ends_with(precision)) {
      name.remove_suffix(precision.size());
      break;
    }
  return std::string(name);
}

double StepRow::seconds(const Slowdowns& slowdowns, std::optional<ExpertTimes> experts,
                        std::optional<double> seconds_per_launch) const {
  Study slowed = study;
  for (FrameworkOptions* options : {&slowed.framework.in_training, &slowed.framework.alone}) {
    options->gemm_slowdown = slowdowns[0];
    options->attention_slowdown = slowdowns[1];
    options->elementwise_slowdown = slowdowns[2];
    if (seconds_per_launch) options->host.seconds_per_launch = *seconds_per_launch;
    if (!experts) continue;
    options->expert_gemm_slowdown = experts->gemm_slowdown;
    options->expert_product_seconds = experts->product_seconds;
  }
  return *simulated(slowed, inputs, true).step_seconds;
}

StepParts StepRow::parts_as_preset() const {
  const Metrics m = simulated(study, inputs, true);
  const auto part = [&](const Metric& share) { return *m.step_seconds * share.value_or(0); };
  const auto exposed = [&](Stream stream) { return part(m.exposed_comm_ratio[at(stream)]); };
  const double waits = part(m.losses.waiting) + part(m.losses.lanes_wait);
  return {*m.step_seconds,     waits, exposed(Stream::tp), exposed(Stream::cp), exposed(Stream::ep),
          exposed(Stream::pp), exposed(Stream::dp), part(m.losses.recompute)};
}

StepRows read_step_rows(const StepTables& tables, int jobs) {
  const CsvTable rows = read_table(tables.rows, kNeeded);
  std::optional<CsvTable> models;
  if (!tables.models.empty()) models = read_table(tables.models, kNeededOfModels);
  std::vector<std::optional<StepRow>> made(rows.rows());
  std::vector<std::string> why(rows.rows()), ids(rows.rows());
  parallel_for(jobs, rows.rows(), [&](int, std::size_t i) {
    const RowReader reader(rows, models ? &*models : nullptr, tables, i);
    ids[i] = reader.text("row_id").empty() ? "line " + std::to_string(rows.line(i)) : reader.text("row_id");
    try {
      const std::optional<double> published = rows.number(i, "step_time_s");
      if (!published) throw NotThisRow{"no step time"};
      if (!(*published > 0)) throw NotThisRow{"a step time of " + reader.text("step_time_s")};
      made[i] = make_row(reader, tables.rows + ": " + ids[i]);
      made[i]->id = ids[i];
      made[i]->published = *published;
      if (made[i]->benchmark.empty()) made[i]->group = made[i]->benchmark = ids[i];
    } catch (const NotThisRow& not_this) {
      why[i] = not_this.why;
    } catch (const UserError& e) {
      why[i] = e.what();
    }
  });
  StepRows result;
  for (std::size_t i = 0; i < made.size(); ++i)
    if (made[i])
      result.rows.push_back(std::move(*made[i]));
    else
      result.left_out.push_back({ids[i], why[i]});
  return result;
}

}  // namespace equipoise

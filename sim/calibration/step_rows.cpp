#include "sim/calibration/step_rows.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>

#include "policies/base/csv.h"
#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/parallel.h"
#include "policies/base/text.h"
#include "profiler/profile/profile.h"
#include "sim/report/words/words.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;

namespace {

// Why a row becomes no study. The row need not be wrong, so the other rows still count.
struct NotThisRow {
  std::string why;
};

// What the words of published tables mean for a study.
const json& words() {
  static const json known = [] {
    const std::string path =
        shipped_path("calibration/published_words.json", EQUIPOISE_CALIBRATION_DIR "/published_words.json")
            .string();
    return parse_json(read_text_file(path), path);
  }();
  return known;
}

// The whole number after some words, as in "chunked attention of 8192"; 0 if they are missing.
std::int64_t number_after(std::string_view text, std::string_view before) {
  const std::size_t at = text.find(before);
  if (at == std::string_view::npos) return 0;
  return std::strtoll(std::string(text.substr(at + before.size())).c_str(), nullptr, 10);
}

// The terms of a list without surrounding blanks.
std::vector<std::string_view> terms_of(std::string_view list, char between = ',') {
  std::vector<std::string_view> terms;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(between, begin), list.size());
    std::string_view term = list.substr(begin, end - begin);
    while (term.starts_with(' ')) term.remove_prefix(1);
    while (term.ends_with(' ')) term.remove_suffix(1);
    terms.push_back(term);
    begin = end + 1;
  }
  return terms;
}

// "deepep or hybridep": the words that the program knows.
std::string words_of(const json& known) {
  std::vector<std::string> words;
  for (const auto& [word, _] : known.items()) words.push_back(word);
  return all_joined(words, " or ");
}

// "q_lora=1536 kv_lora=512 qk_nope=128 qk_rope=64 v_head=128"
json mla_of(const std::string& id, std::string_view said) {
  json mla = json::object();
  for (const auto& [word, key] : words()["mla"].items()) {
    const auto terms = terms_of(said, ' ');
    const auto term =
        std::ranges::find_if(terms, [&](std::string_view t) { return t.starts_with(word + "="); });
    if (term != terms.end())
      mla[key] = number_after(*term, "=");
    else if (key != "q_lora")  // the latent of queries is optional
      throw NotThisRow{"model " + id + ": mla without " + key.get<std::string>()};
  }
  return mla;
}

// Turns "norm, act" into a value of parallel.recompute; null if a word is no module.
json modules_of(const std::string& said) {
  json modules = json::array();
  const json& known = words()["recomputed_modules"];
  for (const std::string_view word : terms_of(said)) {
    if (!known.contains(word)) return {};
    modules.push_back(known[std::string(word)]);
  }
  return {{"modules", std::move(modules)}};
}

// Returns the word if it is allowed, else throws NotThisRow.
std::string one_of(const char* column, std::string_view found,
                   std::initializer_list<std::string_view> allowed) {
  if (std::find(allowed.begin(), allowed.end(), found) != allowed.end()) return std::string(found);
  throw NotThisRow{std::string(column) + " \"" + std::string(found) + "\", expected " +
                   all_joined(allowed, " or ")};
}

class RowReader {
 public:
  // If `models` is null, model_id names a built-in model.
  RowReader(const CsvTable& rows, const CsvTable* models, const StepTables& tables, std::size_t row)
      : rows_(rows), models_(models), tables_(tables), row_(row) {}

  [[nodiscard]] std::string text(const char* column) const { return printable(rows_.text(row_, column)); }
  // What the row says that it recomputed, or may have recomputed if it says nothing: values of
  // parallel.recompute, the cheapest first.
  [[nodiscard]] std::vector<nlohmann::json> recompute_modes() const;
  // The row as a study file. Throws NotThisRow.
  [[nodiscard]] nlohmann::json study(const nlohmann::json& recompute) const;
  // The group without its version and precision, or, if it names the row's model, up to that name. Rows of
  // one benchmark differ little.
  [[nodiscard]] std::string benchmark() const;

 private:
  [[nodiscard]] std::int64_t size(const char* column) const;
  [[nodiscard]] std::int64_t size_or(const char* column, std::int64_t otherwise) const;
  [[nodiscard]] json stage_layers(const std::string& list) const;
  void add_words(const json& columns, json& study) const;
  void check_gpus() const;
  [[nodiscard]] nlohmann::json model() const;
  [[nodiscard]] nlohmann::json parallel(const nlohmann::json& recompute) const;
  [[nodiscard]] nlohmann::json framework() const;
  void add_routing(json& study) const;
  void add_adapters(json& study) const;
  void set_keys(json& study) const;
  [[nodiscard]] std::string profile() const;
  void add_experts(std::size_t model_row, nlohmann::json& model) const;
  [[nodiscard]] std::size_t row_of_model() const;   // the table's number of rows if it has none
  [[nodiscard]] const ModelShape* builtin() const;  // null if the program has no model of this name
  [[nodiscard]] bool has_experts() const;
  [[nodiscard]] std::int64_t expert_tensor() const;

  const CsvTable& rows_;
  const CsvTable* models_;
  const StepTables& tables_;
  std::size_t row_;
};

// Adds to the study what the row's words in these columns mean. A word may have details in parentheses.
void RowReader::add_words(const json& columns, json& study) const {
  for (const auto& [column, known] : columns.items()) {
    const std::string said = text(column.c_str());
    if (said.empty()) continue;
    const std::string word = said.substr(0, said.find(" ("));
    if (!known.contains(word)) throw NotThisRow{column + " \"" + said + "\", expected " + words_of(known)};
    study.merge_patch(known[word]);
    const json details = words()["numbers_in_details"].value(column, json::object());
    for (const auto& [before, key] : details.items())
      if (const std::int64_t number = number_after(said, before))
        study["framework"][key.get<std::string>()] = number;
  }
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
  const bool partly = said.find(" on ") != std::string::npos || words()["recomputed_modules"].contains(said);
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
  const std::size_t at = row_of_model();
  if (at == models_->rows()) {
    if (builtin() == nullptr) throw NotThisRow{"unknown model " + id};
    if (text("layers_run").empty()) return id;
    throw NotThisRow{"layers_run needs the model in the table of models"};
  }
  const auto has = [&](const char* column) { return !models_->text(at, column).empty(); };
  const auto of_model = [&](const char* column) {
    const std::optional<double> value = models_->number(at, column);
    if (!value) throw NotThisRow{"model " + id + " without " + column};
    return static_cast<std::int64_t>(*value);
  };
  // Models with experts have gated FFNs unless the table says otherwise.
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
  for (const json& known : words()["gpu"])
    if (gpu.find(known[0].get<std::string>()) != std::string::npos) return known[1];
  throw NotThisRow{"gpu " + gpu + " without a profile (--profile)"};
}

json RowReader::framework() const {
  const bool is_path = tables_.preset.find('/') != std::string::npos || tables_.preset.ends_with(".json");
  json node = {{"preset", is_path ? std::filesystem::absolute(tables_.preset).string() : tables_.preset}};
  if (!text("tp_overlap_sms").empty()) node["tp_overlap_sms"] = size("tp_overlap_sms");
  if (!has_experts()) return node;
  for (const char* key : {"expert_kernel", "expert_router"})
    if (const std::string stated = text(key); !stated.empty()) node[key] = stated;
  return node;
}

json RowReader::parallel(const json& recompute) const {
  json parallel = {{"tensor", size("tp")}, {"context", size("cp")},  {"pipeline", size("pp")},
                   {"data", size("dp")},   {"recompute", recompute}, {"virtual_pipeline", size_or("vp", 1)}};
  // With a pipeline the weights stay gathered from a forward to its backward, so that only gradients and
  // states are sharded.
  if (size_or("fsdp_shard", 1) > 1 && size("pp") == 1) parallel["zero"] = 3;
  if (!has_experts()) return parallel;
  parallel["expert"] = size_or("ep", 1);
  parallel["expert_tensor"] = expert_tensor();
  if (size_or("fsdp_shard", 1) > 1 && size("fsdp_shard") != size("dp"))
    throw NotThisRow{"fsdp_shard " + text("fsdp_shard") + ", expected dp = " + text("dp")};
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
  study.merge_patch(words()["presets"].value(tables_.preset, json::object()));
  add_words(words()["columns"], study);
  for (const auto& [column, parts] : words()["parts"].items())
    for (const json& part : parts)
      if (text(column.c_str()).find(part[0].get<std::string>()) != std::string::npos)
        study.merge_patch(part[1]);
  if (has_experts()) {
    add_words(words()["columns_of_experts"], study);
    add_routing(study);
  }
  const json& model = study["model"];
  // With more virtual stages than layers the first embeds and the last makes the logits, each as a layer.
  const bool stated =
      one_of("count_embedding_and_head", text("count_embedding_and_head"), {"", "0", "1"}) == "1";
  if (const std::string layers = text("stage_layers"); !layers.empty())
    study["parallel"]["stage_layers"] = stage_layers(layers);
  else if (stated ||
           (model.is_object() && size("pp") * size_or("vp", 1) > model["layers"].get<std::int64_t>()))
    study["parallel"]["count_embedding_and_head"] = true;
  add_adapters(study);
  set_keys(study);
  return study;
}

// Reads "16:linear_qkv,linear_proj", the rank and the layers that have an adapter, or "16:all".
void RowReader::add_adapters(json& study) const {
  const std::string said = text("lora");
  if (said.empty()) return;
  const json& known = words()["adapted_modules"];
  json modules = json::array();
  for (const std::string_view word : terms_of(std::string_view(said).substr(said.find(':') + 1))) {
    if (!known.contains(word))
      throw NotThisRow{"lora \"" + said + "\", expected RANK:MODULE,... with a MODULE of " + words_of(known)};
    for (const json& module : known[std::string(word)])
      if (std::ranges::find(modules, module) == modules.end()) modules.push_back(module);
  }
  study["lora"] = {{"dim", number_after(said, "")}, {"target_modules", std::move(modules)}};
}

// Adds the keys of a study that the row states: {"framework.permute_fusion": true}.
void RowReader::set_keys(json& study) const {
  const std::string said = text("study_set");
  if (said.empty()) return;
  const json keys = parse_json(said, "study_set");
  for (const auto& [key, value] : keys.items())
    set_study_key(study, key + "=" + value.dump());
}

std::string RowReader::benchmark() const {
  const std::string group = text("group");
  const std::string model = text("model_id");
  const std::size_t named = model.empty() ? std::string::npos : group.find(model);
  return named == std::string::npos ? benchmark_of(group) : group.substr(0, named + model.size());
}

std::size_t RowReader::row_of_model() const {
  std::size_t at = 0;
  while (at < models_->rows() && models_->text(at, "model_id") != text("model_id")) ++at;
  return at;
}

const ModelShape* RowReader::builtin() const {
  const auto found = std::ranges::find(builtin_models(), text("model_id"), &ModelShape::name);
  return found == builtin_models().end() ? nullptr : &*found;
}

bool RowReader::has_experts() const {
  if (models_ != nullptr)
    if (const std::size_t at = row_of_model(); at < models_->rows())
      return models_->number(at, "n_experts").value_or(0) > 0;
  return builtin() != nullptr && builtin()->moe.has_value();
}

void RowReader::add_experts(std::size_t at, json& model) const {
  const std::string id = text("model_id");
  const auto number = [&](const char* column) {
    return static_cast<std::int64_t>(models_->number(at, column).value_or(0));
  };
  const std::string_view source = models_->text(at, "source");
  const json& says = words()["model_source"];
  for (const std::string kind : says["not_modelled"])
    if (source.find(kind) != std::string_view::npos)
      throw NotThisRow{"model " + id + ": " + kind + " is not modelled"};
  // If a sequence is a single chunk, chunks are no mask.
  if (const std::int64_t chunk = number_after(source, says["chunk"].get<std::string>()); chunk > 0) {
    if (size("seq_len") > chunk)
      throw NotThisRow{"model " + id + ": chunked attention is not modelled beyond one chunk of " +
                       std::to_string(chunk) + " tokens"};
  }
  const auto every_other = says["window_of_every_other_layer"].get<std::string>();
  if (const std::int64_t window = number_after(source, every_other); window > 0) {
    model["sliding_window"] = window;
    model["sliding_window_pattern"] = 2;
  } else if (source.find(says["window"].get<std::string>()) != std::string_view::npos) {
    throw NotThisRow{"model " + id + ": sliding-window attention, expected \"" + every_other +
                     "N tokens\" in its source"};
  }
  if (number("n_experts") == 0) return;
  model["experts"] = {{"count", number("n_experts")},
                      {"active", number("experts_per_token")},
                      {"ffn", number("moe_ffn_hidden")}};
  if (number("shared_ffn") > 0) model["experts"]["shared_ffn"] = number("shared_ffn");
  if (number("dense_layers") > 0) model["experts"]["dense_layers"] = number("dense_layers");
  if (source.find(says["expert_biases"].get<std::string>()) != std::string_view::npos)
    model["experts"]["bias"] = true;
  model["ffn"] = number("moe_ffn_hidden");  // used by no layer, if the table has no other width
  const std::string_view mla = models_->text(at, "mla");
  if (!mla.empty()) model["mla"] = mla_of(id, mla);
}

// Megatron-LM's default is tp. If tp does not fit some row of the group (ep x etp must divide tp x cp x dp),
// all rows that leave it open ran with 1.
std::int64_t RowReader::expert_tensor() const {
  if (!text("etp").empty()) return size("etp");
  const std::string group = text("group");
  for (std::size_t i = 0; i < rows_.rows(); ++i) {
    if (i != row_ && (group.empty() || rows_.text(i, "group") != group || !rows_.text(i, "etp").empty()))
      continue;
    const RowReader other(rows_, models_, tables_, i);
    const std::int64_t ranks = other.size("tp") * other.size("cp") * other.size("dp");
    if (ranks % (other.size_or("ep", 1) * other.size("tp")) != 0) return 1;
  }
  return size("tp");
}

// Adds what the routing's terms mean: some make the experts' loads equal, and one is the capacity of each
// expert.
void RowReader::add_routing(json& study) const {
  const std::string routing = text("routing");
  const json& says = words()["routing"];
  const auto capacity = says["capacity"].get<std::string>();
  for (const std::string_view term : terms_of(routing)) {
    if (term.starts_with(capacity)) {
      const double factor = std::strtod(std::string(term.substr(capacity.size())).c_str(), nullptr);
      if (!(factor > 0)) throw NotThisRow{"routing \"" + routing + "\", expected " + capacity + "NUMBER"};
      study["framework"]["expert_capacity_factor"] = factor;
    }
    if (const auto known = says["terms"].find(term); known != says["terms"].end()) study.merge_patch(*known);
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

PolicyResult simulated(const Study& study, const StudyInputs& inputs, bool ignore_memory) {
  RunStudyOptions options;
  options.find_fits = false;
  options.ignore_memory = ignore_memory;
  StudyResult result = run_study(study, inputs, options);
  PolicyResult& row = result.policies.front();
  if (!row.simulated()) throw NotThisRow{reason_text(row.reasons)};
  return std::move(row);
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
  for (const std::string precision : words()["group_precisions"])
    if (name.ends_with(precision)) {
      name.remove_suffix(precision.size());
      break;
    }
  return std::string(name);
}

double StepRow::seconds(const Slowdowns& slowdowns, std::optional<ExpertTimes> experts,
                        std::optional<double> seconds_per_launch) const {
  Study slowed = study;
  slowed.framework.says_slowdowns = true;  // replaces the preset's own for this GPU and precision
  for (FrameworkOptions* options : {&slowed.framework.in_training, &slowed.framework.alone}) {
    options->gemm_slowdown = slowdowns[0];
    options->attention_slowdown = slowdowns[1];
    options->elementwise_slowdown = slowdowns[2];
    if (seconds_per_launch) options->host.seconds_per_launch = *seconds_per_launch;
    if (!experts) continue;
    options->expert_gemm_slowdown = experts->gemm_slowdown;
    options->expert_product_seconds = experts->product_seconds;
  }
  return *simulated(slowed, inputs, true).metrics.step_seconds;
}

StepParts StepRow::parts_as_preset() const {
  const PolicyResult row = simulated(study, inputs, true);
  const Metrics& m = row.metrics;
  const auto part = [&](const Metric& share) { return *m.step_seconds * share.value_or(0); };
  const auto exposed = [&](Stream stream) { return part(m.exposed_comm_ratio[at(stream)]); };
  const double waits = part(m.losses.waiting) + part(m.losses.lanes_wait);
  return {*m.step_seconds,
          waits,
          exposed(Stream::tp),
          exposed(Stream::cp),
          exposed(Stream::ep),
          exposed(Stream::pp),
          exposed(Stream::dp),
          part(m.losses.recompute),
          row.peak.parts.total() - row.peak.parts.reserve,
          row.status == RowStatus::ok};
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
      result.excluded.push_back({ids[i], why[i]});
  return result;
}

}  // namespace equipoise

#include "sim/framework/framework.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <tuple>
#include <type_traits>

#include "kernels/row_ops.h"
#include "policies/base/error.h"
#include "policies/base/text.h"
#include "traces/json_object.h"

namespace equipoise {
namespace {

using nlohmann::json;

constexpr ShippedFiles kPresets{"framework", "EQUIPOISE_FRAMEWORKS", "frameworks", EQUIPOISE_FRAMEWORK_DIR,
                                "the path of a .json file made by `equipoise fit --steps`"};

double number_within(const json& node, const char* key, double least, double most, const std::string& where) {
  const double value = number_field(node, key, where);
  if (value >= least && value <= most) return value;
  refuse_field(node, key, where, concatenated("a number in ", short_number(least), "..", short_number(most)));
}

int count_within(const json& node, const char* key, int most, const std::string& where) {
  const double value = number_within(node, key, 0, most, where);
  if (value == std::floor(value)) return static_cast<int>(value);
  refuse_field(node, key, where, "an integer");
}

// --- `defaults`: one row per key, with the place of its value and the allowed range.

struct DefaultKey {
  const char* key;
  void (*read)(const DefaultKey& key, const json& node, const std::string& where, FrameworkPreset& preset);
  double most = 0, least = 0;  // of a number
  bool needed = false;         // whether every preset has it
};

template <auto Member>
auto& default_of(FrameworkPreset& preset) {
  if constexpr (std::is_invocable_v<decltype(Member), FrameworkPreset&>)
    return preset.*Member;
  else
    return preset.options.*Member;
}

template <auto Member>
void read_number(const DefaultKey& key, const json& node, const std::string& where, FrameworkPreset& preset) {
  default_of<Member>(preset) = number_within(node, key.key, key.least, key.most, where);
}
template <auto Member>
void read_count(const DefaultKey& key, const json& node, const std::string& where, FrameworkPreset& preset) {
  default_of<Member>(preset) = count_within(node, key.key, static_cast<int>(key.most), where);
}
template <auto Member>
void read_flag(const DefaultKey& key, const json& node, const std::string& where, FrameworkPreset& preset) {
  default_of<Member>(preset) = flag_field(node, key.key, where);
}
template <auto Member>
void read_text(const DefaultKey& key, const json& node, const std::string& where, FrameworkPreset& preset) {
  default_of<Member>(preset) = text_field(node, key.key, where);
}
template <auto Member, const auto& Names>
void read_choice(const DefaultKey& key, const json& node, const std::string& where, FrameworkPreset& preset) {
  auto& value = default_of<Member>(preset);
  value = static_cast<std::decay_t<decltype(value)>>(
      choice_of(text_field(node, key.key, where), where + "." + key.key, Names));
}

using Options = FrameworkOptions;
constexpr DefaultKey kDefaults[] = {
    {"zero", read_count<&FrameworkPreset::zero>, 3, 0, true},
    {"tp_overlap", read_flag<&Options::tp_overlap_forward>, 0, 0, true},
    {"overlap_param_gather", read_flag<&Options::overlap_param_gather>, 0, 0, true},
    {"reduce_each_micro_batch", read_flag<&FrameworkPreset::reduce_each_micro_batch>, 0, 0, true},
    {"gradient_bytes", read_number<&Options::gradient_bytes>, 4, 2, true},
    {"optimizer_bytes", read_number<&Options::optimizer_bytes>, 32, 1, true},
    {"logit_bytes", read_number<&Options::logit_bytes>, 16, 4, true},
    {"gradient_copy_bytes", read_number<&Options::gradient_copy_bytes>, 4},
    {"scatter_gradients", read_flag<&Options::scatter_gradients>},
    {"overlap_grad_reduce", read_flag<&Options::overlap_grad_reduce>},
    {"gradient_bucket_MB", read_number<&Options::gradient_bucket_MB>, 1e5},
    {"records_streams", read_flag<&Options::records_streams>},
    {"gradient_add_bytes", read_number<&Options::gradient_add_bytes>, 32},
    {"step_end_bytes", read_number<&Options::step_end_bytes>, 64},
    {"allocator_slack", read_number<&Options::allocator_slack>, 1},
    {"fused_activation", read_flag<&Options::fused_activation>},
    {"early_stop", read_flag<&Options::early_stop>},
    {"ring_merges", read_flag<&Options::ring_merges>},
    {"loss", read_choice<&Options::loss, kLossNames>},
    {"linear_layers", read_choice<&Options::linear_layers, kLinearLayersNames>},
    {"stage_division", read_choice<&Options::stage_division, kStageDivisionNames>},
    {"attention_kernel", read_text<&Options::attention_kernel>},
    {"own_kernels", read_flag<&Options::own_kernels>},
    {"tp_overlap_sms", read_count<&Options::tp_overlap_sms>, kMostOverlapSms},
    {"exchange_sms", read_count<&Options::exchange_sms>, 1024},
    {"routing_kernels", read_count<&Options::routing_kernels>, kMostRoutingKernels},
    {"expert_skew", read_number<&Options::expert_skew>, 10},
    {"expert_kernel", read_text<&Options::expert_kernel>},
    {"expert_streams", read_count<&Options::expert_streams>, kMostExpertStreams},
    {"permute_fusion", read_flag<&Options::permute_fusion>},
    {"exchange_sm_margin", read_flag<&Options::exchange_sm_margin>},
    {"fp8_input_bytes", read_number<&Options::fp8_input_bytes>, 4},
    {"fp8_attention_bytes", read_number<&Options::fp8_attention_bytes>, 4},
    {"fp8_activation_bytes", read_number<&Options::fp8_activation_bytes>, 4},
    {"fp8_weight_bytes", read_number<&Options::fp8_weight_bytes>, 4},
    {"fp8_frozen_weight_bytes", read_number<&Options::fp8_frozen_weight_bytes>, 4},
};

void read_defaults(const json& file, const std::string& origin, FrameworkPreset& preset) {
  const std::string where = origin + ": defaults";
  const json& node = object_field(file, "defaults", origin + ": file");
  refuse_unknown_keys(
      node, each_of(kDefaults, [](const DefaultKey& key) { return std::string_view(key.key); }), where);
  for (const DefaultKey& key : kDefaults)
    if (key.needed || node.contains(key.key)) key.read(key, node, where, preset);
  const json& sources = object_field(file, "sources", origin + ": file");
  for (const auto& item : node.items()) text_field(sources, item.key(), origin + ": sources");
  if (node.contains("expert_skew"))
    preset.skew_source = text_field(sources, "expert_skew", origin + ": sources");
}

std::vector<ErrorOnGpu> read_errors_on_gpus(const json& kernels, const std::string& where) {
  std::vector<ErrorOnGpu> errors;
  if (!kernels.contains("on_gpus")) return errors;
  for (const auto& [gpu, node] : object_field(kernels, "on_gpus", where).items()) {
    const std::string place = where + ".on_gpus." + gpu;
    refuse_unknown_keys(node, {"rows", "mean_abs_error", "mean_error", "worst", "precision", "source"},
                        place);
    errors.push_back({gpu, static_cast<std::int64_t>(number_within(node, "rows", 1, 1e9, place)),
                      non_negative_field(node, "mean_abs_error", place),
                      number_field(node, "mean_error", place)});
  }
  return errors;
}

// Counts by an op's name: [forward, backward].
void read_launches(const json& node, const std::string& where, LaunchCounts& counts) {
  for (const auto& item : node.items()) {
    const std::string& name = item.key();
    const json& of_passes = item.value();
    std::size_t op = 0;
    while (op < kOpNames && name != name_of(static_cast<OpName>(op))) ++op;
    if (op == kOpNames) throw UserError(where, ".", name, ": expected an op's name, such as rms_norm");
    const auto count = [&](std::size_t pass) {
      if (of_passes.is_array() && of_passes.size() == 2 && of_passes[pass].is_number_integer() &&
          of_passes[pass] >= 0 && of_passes[pass] <= kMostLaunches)
        return of_passes[pass].get<std::uint8_t>();
      refuse_field(node, name, where,
                   concatenated("launches of a forward and a backward, two integers in 0..", kMostLaunches));
    };
    counts.forward[op] = count(0);
    counts.backward[op] = count(1);
  }
}

void read_host(const json& file, const std::string& origin, FrameworkPreset& preset) {
  if (!file.contains("host")) return;
  const std::string where = origin + ": host";
  const json& node = object_field(file, "host", origin + ": file");
  refuse_unknown_keys(node,
                      {"seconds_per_launch", "seconds_per_kernel", "band", "known", "launches", "waits",
                       "sources", "fit", "left_out"},
                      where);
  HostOptions& host = preset.options.host;
  host.seconds_per_launch = number_within(node, "seconds_per_launch", 0, 1, where);
  if (node.contains("seconds_per_kernel"))
    host.seconds_per_kernel = number_within(node, "seconds_per_kernel", 0, 1, where);
  read_launches(object_field(node, "launches", where), where + ".launches", host.launches);
  for (const json& wait : list_field(node, "waits", where)) {
    if (wait != "hops" && wait != "routes") refuse_field(node, "waits", where, "hops and routes");
    (wait == "hops" ? host.waits_at_hops : host.waits_for_routes) = true;
  }
  const json& sources = object_field(node, "sources", where);
  for (const char* key : {"seconds_per_launch", "launches", "waits"})
    text_field(sources, key, where + ".sources");
  const json& band = object_field(node, "band", where);
  const double least = 1e6 * number_within(band, "least", 0, 1, where + ".band");
  const double most = 1e6 * number_within(band, "most", 0, 1, where + ".band");
  preset.host = Note{"host_time",
                     "",
                     {{"us", 1e6 * host.seconds_per_launch},
                      {"least", least},
                      {"most", most},
                      {"known", text_field(node, "known", where)}}};
}

std::vector<std::string> read_gpu_families(const json& node, const std::string& where) {
  const json& list = list_field(node, "gpu_families", where);
  const auto is_word = [](const json& family) { return family.is_string() && family != ""; };
  if (list.empty() || !std::ranges::all_of(list, is_word))
    refuse_field(node, "gpu_families", where, "words of GPU names, such as [\"H100\"]");
  return list.get<std::vector<std::string>>();
}

std::optional<Load> read_load(const json& slowdowns, const std::string& where) {
  if (!slowdowns.contains("full_load")) return std::nullopt;
  return flag_field(slowdowns, "full_load", where) ? Load::full : Load::as_measured;
}

std::vector<SlowdownsThere> read_slowdowns_there(const json& kernels, const std::string& where) {
  std::vector<SlowdownsThere> all;
  if (!kernels.contains("there")) return all;
  if (!kernels["there"].is_array()) throw UserError(where, ".there: expected a list");
  for (const json& node : kernels["there"]) {
    const std::string place = where + ".there[" + std::to_string(all.size()) + "]";
    refuse_unknown_keys(node, {"gpu_families", "precision", "slowdowns", "fit"}, place);
    SlowdownsThere& there = all.emplace_back();
    there.gpu_families = read_gpu_families(node, place);
    if (node.contains("precision"))
      there.precision = static_cast<Precision>(
          choice_of(text_field(node, "precision", place), place + ".precision", kPrecisionNames));
    const json& slowdowns = object_field(node, "slowdowns", place);
    const std::string of = place + ".slowdowns";
    refuse_unknown_keys(slowdowns, {"gemm", "attention", "full_load", "expert_product_seconds"}, of);
    const auto number = [&](const char* key, double least, double most) -> std::optional<double> {
      if (!slowdowns.contains(key)) return std::nullopt;
      return number_within(slowdowns, key, least, most, of);
    };
    there.gemm = number("gemm", 0.1, 100);
    there.attention = number("attention", 0.1, 100);
    there.expert_product_seconds = number("expert_product_seconds", 0, 1);
    there.load = read_load(slowdowns, of);
  }
  return all;
}

void read_kernels(const json& file, const std::string& origin, FrameworkPreset& preset) {
  if (!file.contains("kernels")) return;
  const std::string where = origin + ": kernels";
  const json& node = object_field(file, "kernels", origin + ": file");
  refuse_unknown_keys(
      node, {"kind", "from", "gpu_families", "slowdowns", "fit", "left_out", "experts", "on_gpus", "there"},
      where);
  const std::string kind = text_field(node, "kind", where);
  if (kind != "fitted" && kind != "borrowed")
    throw UserError(where, ".kind: expected fitted or borrowed, found \"", kind, "\"");
  preset.kernels = kind == "fitted" ? KernelTimes::fitted : KernelTimes::borrowed;
  if (preset.kernels == KernelTimes::borrowed) preset.borrowed_from = text_field(node, "from", where);
  const json& slowdowns = object_field(node, "slowdowns", where);
  refuse_unknown_keys(
      slowdowns, {"gemm", "attention", "elementwise", "full_load", "expert_gemm", "expert_product_seconds"},
      where + ".slowdowns");
  FrameworkOptions& o = preset.options;
  o.load = read_load(slowdowns, where + ".slowdowns").value_or(o.load);
  o.gemm_slowdown = number_within(slowdowns, "gemm", 0.1, 100, where + ".slowdowns");
  o.attention_slowdown = number_within(slowdowns, "attention", 0.1, 100, where + ".slowdowns");
  o.elementwise_slowdown = number_within(slowdowns, "elementwise", 0.1, 100, where + ".slowdowns");
  if (slowdowns.contains("expert_gemm"))
    o.expert_gemm_slowdown = number_within(slowdowns, "expert_gemm", 0.1, 100, where + ".slowdowns");
  if (slowdowns.contains("expert_product_seconds"))
    o.expert_product_seconds = number_within(slowdowns, "expert_product_seconds", 0, 1, where + ".slowdowns");
  preset.gpu_families = read_gpu_families(node, where);
  preset.on_gpus = read_errors_on_gpus(node, where);
  preset.there = read_slowdowns_there(node, where);
  if (node.contains("left_out") && !node["left_out"].is_null())
    preset.error =
        non_negative_field(object_field(node, "left_out", where), "mean_abs_error", where + ".left_out");
}

}  // namespace

FrameworkPreset FrameworkPreset::read(const json& file, const std::string& origin) {
  if (!file.is_object()) throw UserError(origin, ": expected an object, found ", file.type_name());
  refuse_unknown_keys(file, {"schema", "name", "summary", "defaults", "sources", "host", "kernels"},
                      origin + ": file");
  const std::string schema = text_field(file, "schema", origin + ": file");
  if (schema != "equipoise.framework/1")
    throw UserError(origin, ": schema: expected equipoise.framework/1, found \"", schema, "\"");
  FrameworkPreset preset;
  preset.origin = origin;
  preset.name = text_field(file, "name", origin + ": file");
  preset.summary = text_field(file, "summary", origin + ": file");
  read_defaults(file, origin, preset);
  read_host(file, origin, preset);
  read_kernels(file, origin, preset);
  return preset;
}

// Searches and sweeps read their study thousands of times, so a file that has not changed is not read again.
FrameworkPreset FrameworkPreset::load(std::string_view name_or_path) {
  struct Known {
    std::filesystem::file_time_type written;
    std::uintmax_t size = 0;
    FrameworkPreset preset;
  };
  static std::mutex mutex;
  static std::map<std::string, Known> known;
  const std::filesystem::path path = kPresets.find(name_or_path);
  std::error_code unreadable;
  const auto written = std::filesystem::last_write_time(path, unreadable);
  const auto size = std::filesystem::file_size(path, unreadable);
  const std::lock_guard lock(mutex);
  const auto found = known.find(path.string());
  if (found != known.end() && found->second.written == written && found->second.size == size)
    return found->second.preset;
  FrameworkPreset preset = read(read_json_file(path.string()), path.string());
  known[path.string()] = {written, size, preset};
  return preset;
}

FrameworkOptions FrameworkPreset::alone() const {
  FrameworkOptions o = options;
  o.gemm_slowdown = o.attention_slowdown = o.elementwise_slowdown = o.expert_gemm_slowdown = 1;
  o.expert_product_seconds = 0;
  o.load = Load::as_measured;
  return o;
}

namespace {

bool names(const std::string& word, const std::string& gpu) {
  return gpu.find(word) != std::string::npos;
}

// The profile's JSON at a pointer; an empty object if it has none.
const json& part_of(const Profile& profile, const char* pointer) {
  static const json kNone = json::object();
  const json::json_pointer place(pointer);
  return profile.json().contains(place) ? profile.json()[place] : kNone;
}

// Counts the tables at and below a place: all of them, and those that were measured on a machine. Keeps the
// largest median error that these state on samples which their fits did not see.
struct Tables {
  int measured = 0, all = 0;
  double error = 0;
  Tables& add(const json& tables) {
    if (const auto found = tables.find("provenance"); found != tables.end()) {
      const std::string kind = found->value("kind", std::string());
      ++all;
      if (kind != "measured" && kind != "calibrated") return *this;
      ++measured;
      for (const json& group : tables.value("cross_validated", json::array()))
        if (group.is_object() && group.value("median", json()).is_number())
          error = std::max(error, group["median"].get<double>());
    } else if (tables.is_object()) {
      for (const json& below : tables) add(below);
    }
    return *this;
  }
  [[nodiscard]] Measured how() const {
    return measured == 0 ? Measured::none : measured < all ? Measured::some : Measured::all;
  }
};

// Chips with the same SMs; whatever slows kernels in training slows them alike. (An H20 has half as many.)
bool is_hopper(const std::string& gpu) {
  return names("H100", gpu) || names("H800", gpu) || names("H200", gpu);  // "GH200" contains "H200", too
}

}  // namespace

bool kernels_are_measured(const Profile& profile) {
  return Tables().add(part_of(profile, "/tables/gemm/bf16")).measured > 0;
}

namespace {

Tables attention_tables(const Profile& profile, const std::string& kernel) {
  const json& preset = part_of(profile, "/tables/attention/default");
  const std::string used = kernel.empty() && preset.is_string() ? preset.get<std::string>() : kernel;
  return Tables().add(part_of(profile, "/tables/attention/kernels").value(used, json()));
}

Tables elementwise_tables(const Profile& profile) {
  Tables tables;
  for (const auto& [name, table] : part_of(profile, "/tables/elementwise").items()) {
    std::string_view op = name;  // kernels of other libraries are in the list, too
    if (op.ends_with(kernels::kBackwardSuffix)) op.remove_suffix(kernels::kBackwardSuffix.size());
    if (std::ranges::count(kernels::kElementwiseNames, op) > 0) tables.add(table);
  }
  return tables;
}

}  // namespace

Measured attention_measured(const Profile& profile, const std::string& kernel) {
  return attention_tables(profile, kernel).how();
}

Measured elementwise_measured(const Profile& profile) {
  return elementwise_tables(profile).how();
}

Notes measured_errors(const Profile& profile, const std::string& kernel, const std::string& network) {
  const json& collective = part_of(profile, "/tables/collective");
  const std::string used = network.empty() ? collective.value("default_network", std::string()) : network;
  Notes errors;
  for (const auto& [kind, tables] :
       {std::pair("GEMM", Tables().add(part_of(profile, "/tables/gemm/bf16"))),
        std::pair("attention", attention_tables(profile, kernel)),
        std::pair("elementwise", elementwise_tables(profile)),
        std::pair("collectives in a node", Tables().add(collective.value("node", json()))),
        std::pair("between nodes",
                  Tables().add(collective.value("networks", json::object()).value(used, json())))})
    if (tables.error > 0)
      errors.push_back({"kernel_error", "", {{"kernels", kind}, {"error", tables.error}}});
  return errors;
}

static bool is_of(const std::vector<std::string>& families, const std::string& gpu) {
  return std::ranges::any_of(families, [&](const std::string& family) {
    return names(family, gpu) || (is_hopper(family) && is_hopper(gpu));
  });
}

bool SlowdownsThere::hold_on(const std::string& gpu, Precision of_steps) const {
  return is_of(gpu_families, gpu) && (!precision || *precision == of_steps);
}

SlowdownRule FrameworkPreset::rule_on(const Profile& profile) const {
  if (kernels == KernelTimes::benchmark || kernels_are_measured(profile)) return SlowdownRule::alone;
  const std::string& gpu = profile.device().name;
  const bool seen = std::ranges::any_of(
      there, [&](const SlowdownsThere& slowdowns) { return is_of(slowdowns.gpu_families, gpu); });
  return seen || is_of(gpu_families, gpu) ? SlowdownRule::fitted : SlowdownRule::carried;
}

void FrameworkPreset::slow_down(FrameworkOptions& slowed, const std::string& gpu, Precision precision) const {
  const auto found = std::ranges::find_if(
      there, [&](const SlowdownsThere& slowdowns) { return slowdowns.hold_on(gpu, precision); });
  if (found == there.end()) return;
  slowed.gemm_slowdown = found->gemm.value_or(slowed.gemm_slowdown);
  slowed.attention_slowdown = found->attention.value_or(slowed.attention_slowdown);
  slowed.expert_product_seconds = found->expert_product_seconds.value_or(slowed.expert_product_seconds);
  slowed.load = found->load.value_or(slowed.load);
}

std::optional<Note> FrameworkPreset::error_on(const Profile& profile) const {
  for (const ErrorOnGpu& seen : on_gpus)
    if (names(seen.gpu, profile.device().name))
      return Note{"error_on_gpu",
                  "",
                  {{"error", seen.mean_abs_error},
                   {"mean", seen.mean_error},
                   {"steps", seen.rows},
                   {"gpu", seen.gpu}}};
  return {};
}

Note slowdowns_note(const FrameworkOptions& options, Notes known) {
  Notes load;
  if (options.load == Load::full) load.push_back({"of_full_load", "", {}});
  return {"kernels_slowed",
          "",
          {{"gemm", options.gemm_slowdown},
           {"load", std::move(load)},
           {"attention", options.attention_slowdown},
           {"elementwise", options.elementwise_slowdown},
           {"known", std::move(known)}}};
}

Note FrameworkPreset::kernel_note(const FrameworkOptions& slowed) const {
  if (kernels == KernelTimes::benchmark) return {"kernels_at_benchmark", "", {}};
  if (kernels == KernelTimes::borrowed)
    return slowdowns_note(slowed, {{"borrowed", "", {{"from", borrowed_from}}}});
  if (!error) return slowdowns_note(slowed, {{"fitted_error_unknown", "", {}}});
  return slowdowns_note(slowed, {{"fitted_error", "", {{"error", *error}}}});
}

std::vector<std::string> shipped_frameworks() {
  return kPresets.names();
}

}  // namespace equipoise

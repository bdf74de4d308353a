#include "sim/study/read/training.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "policies/base/index.h"
#include "policies/base/text.h"
#include "profiler/profile/profile.h"
#include "sim/study/read/study_keys.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;

std::uint32_t read_words(const json& list, JsonObject& object, std::string_view key,
                         std::span<const std::string_view> words, const std::string& more) {
  const std::string expected = "a list of " + all_joined(words) + more + ", each at most once";
  if (!list.is_array() || list.empty()) object.fail(key, expected);
  std::uint32_t set = 0;
  for (const json& word : list) {
    const auto name = std::find(words.begin(), words.end(),
                                word.is_string() ? std::string_view(word.get_ref<const std::string&>()) : "");
    if (name == words.end()) object.fail(key, expected);
    const std::uint32_t bit = std::uint32_t{1} << (name - words.begin());
    if ((set & bit) != 0) object.fail(key, expected);
    set |= bit;
  }
  return set;
}

// The linear layers that a word of target_modules names: Megatron's names, and those of Hugging Face's
// classes, which PEFT takes. The importer of jobs reads the same table.
static const json& words_of_linear_layers() {
  static const json table =
      read_json_file(shipped_path("importing/tables/linear_layers.json", EQUIPOISE_LINEAR_LAYERS).string());
  return table;
}

static WeightSet linear_layers_of(const std::string& word) {
  WeightSet layers = 0;
  for (const auto& [name, words] : words_of_linear_layers().items())
    if (std::ranges::count(words, json(word)) > 0)
      layers |= bit_of(static_cast<WeightKind>(std::ranges::find(kWeightNames, name) - kWeightNames));
  return layers;
}

// PEFT's name of all layers is a word alone, too.
static WeightSet read_targets(const json& targets, JsonObject& lora) {
  constexpr std::string_view kKey = "target_modules";
  const std::string expected = "a list of " +
                               all_joined(std::span(kWeightNames).subspan(at(WeightKind::qkv), 4)) +
                               R"(, of their names in PEFT (q_proj, k_proj, ...), or "all-linear")";
  const json words = targets.is_string() ? json::array({targets}) : targets;
  if (!words.is_array() || words.empty()) lora.fail(kKey, expected);
  WeightSet adapted = 0;
  for (const json& word : words) {
    const WeightSet layers = word.is_string() ? linear_layers_of(word) : 0;
    if (layers == 0) lora.fail(kKey, expected);
    adapted |= layers;
  }
  return adapted;
}

// PEFT adapts each of Q, K and V alone; here they are one layer.
static bool names_part_of_qkv(const json& targets) {
  const auto has = [&](const char* word) { return std::ranges::count(targets, json(word)) > 0; };
  const int named = int{has("q_proj")} + int{has("k_proj")} + int{has("v_proj")};
  return named % 3 != 0 && !has("linear_qkv");
}

static void read_keys_of_training(JsonObject& file, const std::string& path, Training& training,
                                  Notes& notes) {
  if (const json* lora = file.find("lora")) {
    JsonObject object(*lora, path + ": lora");
    read_keys(object, lora_keys(), training);
    training.adapted = kAdaptable;
    if (const json* targets = object.find("target_modules")) {
      training.adapted = read_targets(*targets, object);
      if (names_part_of_qkv(*targets)) notes.push_back({"adapts_all_of_qkv", "lora", {}});
    }
    object.finish(place_of_key);
    require_keys(object, lora_keys());
    training.frozen = kAllWeights;
  }
  const json* frozen = file.find("frozen");
  if (frozen == nullptr) return;
  json words = *frozen;
  const auto layers = std::ranges::find_if(words, [](const json& entry) { return entry.is_object(); });
  if (words.is_array() && layers != words.end()) {
    JsonObject object(*layers, path + ": frozen");
    read_keys(object, frozen_keys(), training);
    object.finish();
    require_keys(object, frozen_keys());
    words.erase(layers);
    if (words.empty()) return;
  }
  training.frozen = read_words(words, file, "frozen", kWeightNames, R"( and {"layers": N})");
}

static std::string training_fault(const ModelShape& model, const std::string& path) {
  const Training& training = model.training;
  const auto only = [](WeightSet set) {
    std::string names;
    for (std::size_t w = 0; w < std::size(kWeightNames); ++w)
      if ((set & bit_of(static_cast<WeightKind>(w))) != 0)
        names.append(names.empty() ? "" : ", ").append(kWeightNames[w]);
    return names;
  };
  const int layers = training.frozen_layers;
  if (layers > 0 && training.adapted != 0)
    return path + ".frozen: expected no layers with lora, which freezes all of them";
  if (const WeightSet both = training.adapted & ~training.frozen; both != 0)
    return path + ".frozen: expected " + only(both) +
           " among them, which lora.target_modules has, found none";
  if (model.tied_embeddings && training.trains(WeightKind::embedding) != training.trains(WeightKind::head))
    return path + ".frozen: expected embedding and head, which are one matrix in " + model.name +
           ", or neither, found one of them";
  if (!model.moe && training.frozen != kAllWeights && !training.trains(WeightKind::router))
    return path + ".frozen: expected no router for a model without experts";
  if (layers > model.layers)
    return concatenated(path, ".frozen: expected layers in 0..", model.layers, ", those of ", model.name,
                        ", found ", layers);
  if (layers > 0 && training.trains(WeightKind::embedding))
    return path + ".frozen: expected embedding with layers " + std::to_string(layers) +
           ": to train it a backward goes through them";
  if (layers == model.all_layers() && !training.trains(WeightKind::head) &&
      !training.trains(WeightKind::norms))
    return path + ".frozen: expected something to train, found all layers and the head frozen";
  const WeightSet in_layers =
      kAdaptable | bit_of(WeightKind::norms) | (model.moe ? bit_of(WeightKind::router) : WeightSet{0});
  if (training.adapted == 0 && (training.frozen & in_layers) == in_layers)
    return path +
           ".frozen: expected something of the layers to train, or lora, found all of it frozen: a step "
           "without backward through the layers is not simulated";
  return "";
}

static void note_training(const ModelShape& model, Notes& notes) {
  if (model.training.frozen == 0) return;
  std::int64_t adapters = 0;
  for (int layer = 0; layer < model.all_layers(); ++layer)
    adapters += model.adapter_parameters(layer, false) + model.adapter_parameters(layer, true);
  Notes more;
  if (model.training.frozen_layers > 0) more.push_back({"first_layers_forward", "", {}});
  notes.push_back(
      {"trains_part",
       adapters > 0 ? "lora" : "frozen",
       {{"trained", model.trained_parameters()}, {"of", model.parameters() + adapters}, {"more", more}}});
}

std::string read_training(JsonObject& file, const std::string& path, ModelShape& model, Notes& notes) {
  read_keys_of_training(file, path, model.training, notes);
  note_training(model, notes);
  return training_fault(model, path);
}

}  // namespace equipoise

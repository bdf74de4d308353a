#include "sim/study/pack_keys.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <variant>
#include <vector>

#include "policies/base/names.h"
#include "policies/policy_keys.h"
#include "traces/json_text.h"

namespace equipoise {
namespace {

std::vector<PackKey> batch_keys() {
  constexpr auto kSize = ParameterKind::integer;
  return {
      {"--context-window", "context_window", kSize, true, true, "Tokens of a window (128K)"},
      {"--sequences-per-step", "sequences_per_step", kSize, true, true, "Global batch in windows (4)"},
      {"--documents-per-step", "documents_per_step", kSize, true, true, "Global batch in whole documents"},
      {"--steps", "steps", kSize, true, true, "Global batches; the whole trace by default"},
      {"--loader", "loader", ParameterKind::choice, true, true,
       "carry or drop the rest of a document cut at a window border"},
      {"--micro-batch-size", "micro_batch_size", kSize, true, true, "Sequences of a micro-batch (1)"}};
}

PackKey key_of(const PackParameter& row) {
  PackKey key;
  key.key = row.key;
  key.kind = row.kind;
  key.help = help_of_key(row.key, row.help);
  if (row.kind == ParameterKind::flag) key.value = !std::get<bool>(row.get({}));
  if (const std::size_t no = key.help.find("false "); !key.value && no != std::string::npos)
    key.help.erase(no, std::string_view("false ").size());  // what --no-KEY does
  if (row.kind == ParameterKind::choice) key.help += " (" + joined(row.choices) + ")";
  key.flag = row.flag;
  if (!key.flag.empty()) return key;
  key.flag = (key.value ? "--" : "--no-") + key.key;
  std::replace(key.flag.begin(), key.flag.end(), '_', '-');
  return key;
}

}  // namespace

std::span<const PackKey> pack_keys() {
  static const std::vector<PackKey> kAll = [] {
    std::vector<PackKey> all = batch_keys();
    for (const PackParameter& row : pack_parameters())
      if (row.key != "seed") all.push_back(key_of(row));
    return all;
  }();
  return kAll;
}

const PackKey* pack_key(std::string_view name) {
  std::string flag = "--" + std::string(name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  for (const PackKey& key : pack_keys())
    if (key.flag == flag || key.key == name) return &key;
  return nullptr;
}

nlohmann::json typed_value(const PackKey& key, const std::string& text) {
  if (key.kind == ParameterKind::number) return json_or_word(text, key.flag);
  return key.kind == ParameterKind::integers ? list_of_words(text) : nlohmann::json(text);
}

nlohmann::json list_of_words(const std::string& text) {
  nlohmann::json list = nlohmann::json::array();
  std::string item;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    if (at == text.size() || text[at] == ',') {
      list.push_back(item);
      item.clear();
    } else {
      item += text[at];
    }
  }
  return list;
}

}  // namespace equipoise

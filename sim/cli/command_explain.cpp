#include "sim/cli/command_explain.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "policies/policy.h"
#include "sim/cli/command_list.h"
#include "sim/report/study_outputs.h"
#include "sim/report/text_table.h"
#include "sim/study/read/study_keys.h"
#include "sim/study/run_study.h"

namespace equipoise {
namespace {

// What `explain` knows of a word: its place in one of the tables.
struct Entry {
  std::string kind, name, what;
  std::string values = {}, fallback = {}, unit = {}, source = {};
  std::vector<std::string> words = {};  // further words for it
  nlohmann::ordered_json options = {};  // of a policy
};

// The papers that the tables name, and where to find them.
constexpr std::pair<std::string_view, std::string_view> kPapers[] = {
    {"WLB-LLM", "arXiv 2503.17924"}, {"ChunkFlow", "arXiv 2503.02356"}, {"HBP", "arXiv 2503.07680"},
    {"Skrull", "arXiv 2505.19609"},  {"FlexSP", "arXiv 2412.01523"},    {"Krell", "arXiv 2107.02027"}};

std::string source_of(std::string from) {
  for (const auto& [paper, place] : kPapers)
    if (from.find(paper) != std::string::npos && from.find("arXiv") == std::string::npos)
      from.append(", ").append(place);
  return from;
}

// A key's name ends with its unit if the help does not state it.
std::string unit_of(std::string_view key) {
  constexpr std::pair<std::string_view, std::string_view> kUnits[] = {
      {"GBps", "GB/s"}, {"_GB", "GB"}, {"_seconds", "s"}, {"seconds_per_op", "s"}, {"_bytes", "bytes"}};
  for (const auto& [end, unit] : kUnits)
    if (key.ends_with(end)) return std::string(unit);
  return "";
}

std::string default_text(const nlohmann::ordered_json& schema) {
  if (!schema.contains("default") || schema["default"].is_null()) return "";
  return schema["default"].is_string() ? schema["default"].get<std::string>() : schema["default"].dump();
}

Entry entry_of_key(const std::string& kind, const std::string& name, const nlohmann::ordered_json& schema) {
  return {kind, name, schema["description"], values_text(schema), default_text(schema), unit_of(name)};
}

// The allowed words of a key, or of its items.
std::vector<std::string> words_of(const nlohmann::ordered_json& schema) {
  if (schema.contains("enum")) return schema["enum"].get<std::vector<std::string>>();
  if (schema.contains("items")) return words_of(schema["items"]);
  std::vector<std::string> words;
  if (schema.contains("anyOf"))
    for (const nlohmann::ordered_json& form : schema["anyOf"])
      for (std::string& word : words_of(form)) words.push_back(std::move(word));
  return words;
}

// What a key's help says of one of its words: the clause "; word: meaning". Every word has one (test_cli.py).
std::string meaning_of(const std::string& word, const std::string& help) {
  const std::string clauses = "; " + help, begin = "; " + word + ": ";
  const std::size_t at = clauses.find(begin);
  const std::string rest = at == std::string::npos ? "" : clauses.substr(at + begin.size());
  return rest.substr(0, rest.find("; "));
}

// A key's name in its paper; empty if it is the same.
std::string paper_word(std::string_view key) {
  return key == "max_tokens"    ? "L_max"
         : key == "bucket_size" ? "BucketSize"
         : key == "chunk_size"  ? "ChunkSize"
                                : "";
}

constexpr std::string_view kStatuses[] = {  // by RowStatus
    "the row ran", "its plan, or what any plan needs, does not fit into memory; the reason says what would",
    "the policy cannot place a document",
    "the policy, its sharding rule or its schedule refuses what it is given"};

// The value that a study uses for a policy's option if its file does not set it.
std::string taken_by(const Policy& policy) {
  return std::string("packs ") + (policy.batches == BatchKind::windows ? "windows" : "whole documents") +
         "; shard " + std::string(policy.shard) + ", schedule " +
         (policy.schedule.empty() ? "the study's" : std::string(policy.schedule)) + ", cost " +
         std::string(kCostKindNames[at(policy.cost)]) + " unless a study says otherwise";
}

std::vector<Entry> entries() {
  std::vector<Entry> all;
  for_each_key([&](const std::string& path, const nlohmann::ordered_json& schema) {
    all.push_back(entry_of_key("key of a study", path, schema));
    std::string plain = path;
    std::erase_if(plain, [](char c) { return c == '[' || c == ']'; });
    all.back().words = {plain, plain.substr(plain.rfind('.') + 1)};
    if (std::string word = paper_word(all.back().words[1]); !word.empty()) all.back().words.push_back(word);
    for (const std::string& word : words_of(schema))
      all.push_back({"value of " + path, word, meaning_of(word, schema["description"])});
  });
  for (const ResultColumn& column : result_columns()) {
    Entry entry{"column of a result", std::string(column.key.empty() ? column.title : column.key),
                std::string(column.help)};
    entry.unit = column.unit;
    const std::string title(column.title);  // its first words also mean it: delay means "delay (steady, max)"
    if (column.is_printed()) entry.words = {title, title.substr(0, title.find_first_of("(%") - 1)};
    all.push_back(std::move(entry));
  }
  for (const SummaryKey& k : summary_keys()) {
    const std::string path = "policies[]." + k.key;
    all.push_back({k.kind, k.key, k.what, "", "", k.unit, "", {k.word, path}});
  }
  for (std::size_t i = 0; i < std::size(kStatuses); ++i)
    all.push_back({"status of a row", name_of(static_cast<RowStatus>(i)), std::string(kStatuses[i])});
  for (const char* what : {"policies", "schedules", "models", "profiles", "frameworks", "traces"})
    for (const ListedName& row : list_of(what)) {
      const std::string kind = row.kind == "packing"    ? "packing policy"
                               : row.kind == "sharding" ? "sharding rule"
                               : row.kind == "default"  ? "framework"
                                                        : row.kind;
      Entry entry{kind, row.name, row.summary};
      entry.source = source_of(row.from);
      entry.options = row.options;
      if (row.kind == "packing") entry.what += ". It " + taken_by(packing_policy(row.name));
      all.push_back(std::move(entry));
      for (const auto& [key, schema] : row.options.items()) {
        all.push_back(entry_of_key("option of " + row.name, row.name + "." + key, schema));
        all.back().source = source_of(row.from);
        if (std::string word = paper_word(key); !word.empty()) all.back().words = {word};
      }
    }
  return all;
}

// The word as a key is typed: without an option's dashes and a row's number, with underscores.
std::string as_key(std::string_view word) {
  std::string key;
  for (const char c : word.substr(std::min(word.find_first_not_of('-'), word.size())))
    key += c == '-' ? '_' : c;
  for (std::size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1)) {
    const std::size_t end = key.find_first_not_of("0123456789", dot + 1);
    if (end != std::string::npos && end > dot + 1 && key[end] == '.') key.erase(dot, end - dot);
  }
  return key;
}

[[noreturn]] void refuse_word(const std::string& word, const std::vector<Entry>& all) {
  std::vector<std::string_view> known;
  for (const Entry& entry : all) {
    known.push_back(entry.name);
    for (const std::string& other : entry.words) known.push_back(other);
  }
  constexpr int kMost = 3;
  std::vector<std::string> near;
  for (int i = 0; i < kMost; ++i) {
    const std::string_view next = nearest_name(word, known);
    if (next.empty()) break;
    near.emplace_back(next);
    std::erase(known, next);
  }
  throw UserError("explain: unknown word \"" + word + "\"; " +
                  (near.empty()
                       ? "expected a key of a study, a column, a policy or another name of `equipoise "
                         "list`; `equipoise explain` shows the kinds"
                       : "nearest: " + joined(near)));
}

nlohmann::ordered_json entry_json(const Entry& entry) {
  nlohmann::ordered_json node = {{"name", entry.name}, {"kind", entry.kind}, {"what", entry.what}};
  for (const auto& [key, text] : {std::pair{"values", &entry.values},
                                  {"default", &entry.fallback},
                                  {"unit", &entry.unit},
                                  {"source", &entry.source}})
    node[key] = text->empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(*text);
  if (!entry.options.is_null()) node["options"] = entry.options;
  return node;
}

std::string entry_text(const Entry& entry) {
  std::string text = entry.name + ", " + entry.kind + ": " + entry.what + "\n";
  const nlohmann::ordered_json node = entry_json(entry);
  for (const auto& [key, value] : node.items())
    if (value.is_string() && key != "name" && key != "kind" && key != "what")
      text += "  " + key + ": " + value.get<std::string>() + "\n";
  if (!entry.options.empty()) text += "  options:\n";
  for (const auto& [key, schema] : entry.options.items()) {
    const std::string fallback = default_text(schema);
    text += "    " + key + " (" + values_text(schema) + (fallback.empty() ? "" : "; default " + fallback) +
            "): " + schema["description"].get<std::string>() + "\n";
  }
  return text;
}

// How many words each kind has, with one of them as an example.
std::string kinds_text(const std::vector<Entry>& all) {
  TextTable table({"kind", "words", "for example"});
  table.align_left(2);
  std::vector<std::string> kinds;
  const auto kind_of = [](const Entry& e) {
    return e.kind.starts_with("option of ")  ? std::string("option of a policy")
           : e.kind.starts_with("value of ") ? std::string("value of a key")
                                             : e.kind;
  };
  for (const Entry& entry : all)
    if (std::find(kinds.begin(), kinds.end(), kind_of(entry)) == kinds.end()) kinds.push_back(kind_of(entry));
  for (const std::string& kind : kinds) {
    std::vector<std::string> names;
    for (const Entry& entry : all)
      if (kind_of(entry) == kind) names.push_back(entry.name);
    table.add({kind, std::to_string(names.size()), names[names.size() / 2]});
  }
  return table.text();
}

}  // namespace

void run_explain_command(const std::string& word, Format format, std::ostream& out) {
  if (format == Format::csv) throw UserError("explain: --format csv; allowed: table, json");
  const std::vector<Entry> all = entries();
  if (word.empty() && format == Format::table) {
    out << kinds_text(all)
        << "`equipoise explain WORD` says what one is; a word of several tables prints each.\n";
    return;
  }
  nlohmann::ordered_json list = nlohmann::json::array();
  const std::string key = as_key(word);
  for (const Entry& entry : all) {
    const auto is = [&](const std::string& name) { return name == word || name == key; };
    if (!word.empty() && !is(entry.name) && std::none_of(entry.words.begin(), entry.words.end(), is))
      continue;
    if (format == Format::table) out << (list.empty() ? "" : "\n") << entry_text(entry);
    list.push_back(entry_json(entry));
  }
  if (list.empty()) refuse_word(word, all);
  if (format == Format::json) out << list.dump(2) << '\n';
}

}  // namespace equipoise

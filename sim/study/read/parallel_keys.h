// The keys of a study's `parallel`, and of what a backward recomputes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "sim/study/read/key_rows.h"
#include "sim/workload/layout.h"

namespace equipoise {

inline constexpr std::int64_t kMostGpus = 1 << 22;

// What a layout or a row recomputes: a word, or an object with layers or modules.
struct RecomputeKeys {
  Recompute mode = Recompute::none;
  int layers = 0;
  RecomputeModules modules = 0;
};

std::span<const Key<Layout>> parallel_keys();
RecomputeKeys read_recompute(const nlohmann::json& node, const std::string& where);  // throws UserError
// Reads `node`, an object of these keys; members without a key keep their values. Throws UserError.
void read_parallel(const nlohmann::json& node, const std::string& where, Layout& layout);

namespace keys {

struct ContextCommHelp {
  std::array<char, 1024> text{};
  std::size_t size = 0;
};
inline constexpr ContextCommHelp kContextCommHelpText = [] {
  ContextCommHelp help;
  const auto add = [&](std::string_view words) {
    for (const char c : words) help.text.at(help.size++) = c;
  };
  add("How CP exchanges K and V");
  for (const ContextCommFacts& form : kContextComms)
    for (const std::string_view words :
         {std::string_view("; "), form.name, std::string_view(": "), form.help})
      add(words);
  return help;
}();
inline constexpr std::string_view kContextCommHelp(kContextCommHelpText.text.data(),
                                                   kContextCommHelpText.size);

ordered_json recompute_definition();  // recompute_schema() refers to it
ordered_json recompute_schema();

}  // namespace keys

}  // namespace equipoise

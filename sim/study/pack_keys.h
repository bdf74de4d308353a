// The keys of a study that `pack` takes as options: those of `batch` that shape a step, and every key of a
// packing policy. The command line and the Python module read this one list.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "policies/parameter.h"

namespace equipoise {

// What is typed is passed on to the reader of studies, which checks it.
struct PackKey {
  std::string flag;  // --max-tokens for max_tokens; --no-rollback for a flag that is on by default
  std::string key;   // of the study
  ParameterKind kind = ParameterKind::integer;
  bool value = true;   // of a flag that is given
  bool batch = false;  // of the study's `batch`, else of the policy's entry
  std::string help;
};

// Those of `batch`, then every key of a packing policy but `seed`, which is of the trace, too.
std::span<const PackKey> pack_keys();

// The key of a name as Python spells it: the flag with underscores ("no_rollback"), or the study's key
// ("rollback"). Null if there is none.
const PackKey* pack_key(std::string_view name);

// The value of a key from its text: numbers and lists as such, words and sizes as they are.
nlohmann::json typed_value(const PackKey& key, const std::string& text);

// "a,b,c" as a list of strings.
nlohmann::json list_of_words(const std::string& text);

}  // namespace equipoise

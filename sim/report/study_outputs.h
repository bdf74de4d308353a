// The files that `study --out` writes, and what they hold.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/study/study_result.h"

namespace equipoise {

struct StudyOutput {
  std::string_view file;
  std::string_view holds;  // one line for users
  std::string (*text)(const Study&, const StudyResult&);
};

std::span<const StudyOutput> study_outputs();

// What summary.json holds in addition to metrics, and the files next to it, as listed in
// docs/reference/summary.md. `word` is what a user types for a path.
struct SummaryKey {
  std::string kind, key, unit, what, word;
};
std::vector<SummaryKey> summary_keys();

// Writes all files into an existing folder. Throws UserError.
void write_outputs(const std::string& directory, const Study& study, const StudyResult& result,
                   const nlohmann::json& receipt = nullptr);

}  // namespace equipoise

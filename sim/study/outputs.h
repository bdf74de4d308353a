// The files that `study --out` writes of a study, one row each.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "sim/study/study_result.h"

namespace equipoise {

struct StudyOutput {
  std::string_view file;
  std::string_view holds;  // one line, for people
  std::string (*text)(const Study&, const StudyResult&);
};

std::span<const StudyOutput> study_outputs();

// Writes all of them into a folder that is there. Throws UserError.
void write_outputs(const std::string& directory, const Study& study, const StudyResult& result);

}  // namespace equipoise

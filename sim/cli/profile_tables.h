// A profile as tables that a person can read.
#pragma once

#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "profiler/profile/profile.h"

namespace equipoise {

// One fitted or derived table of a profile.
struct TableView {
  std::string path;  // "attention fa3 forward", "gemm bf16"
  const nlohmann::json* table = nullptr;
};

// In the order of the file. The views point into the profile.
std::vector<TableView> tables_of(const Profile& profile);

// Where a profile's kernels come from, by its GEMM table: measured, published, derived, mended; empty: no
// table.
std::string kernels_are(const Profile& profile);

// Errors on samples that the fits did not see, one line a table and group.
void print_errors(const Profile& profile, std::ostream& out);

}  // namespace equipoise

// `equipoise profiles`: the shipped profiles, and the facts of one.
#pragma once

#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "profiler/profile/profile.h"
#include "sim/cli/commands.h"

namespace equipoise {

// `equipoise profiles`: one line per profile.
void profiles_command(Format format, std::ostream& out);

// `equipoise profiles show`: facts with their sources, tables with provenance, both ranges and errors;
// measured against predicted where the profile holds its own samples. `json` prints the file.
void profiles_show_command(const std::string& profile, Format format, std::ostream& out);

// One fitted or derived table of a profile.
struct TableView {
  std::string path;  // "attention fa3 forward", "gemm bf16"
  const nlohmann::json* table = nullptr;
};

// The tables in the order of the file. The views point into the profile.
std::vector<TableView> tables_of(const Profile& profile);

// Where a profile's kernels come from, by its GEMM table: measured, published, derived, calibrated; empty: no
// table.
std::string kernels_are(const Profile& profile);

// Errors on samples that the fits did not see, one line a table and group.
void print_errors(const Profile& profile, std::ostream& out);

}  // namespace equipoise

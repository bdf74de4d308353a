// `equipoise profiles`: lists the shipped profiles and shows the facts of one.
#pragma once

#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "profiler/profile/profile.h"
#include "sim/cli/commands.h"

namespace equipoise {

// Prints one line per profile.
void profiles_command(Format format, std::ostream& out);

// `equipoise profiles show`: facts with their sources, and tables with provenance, ranges and errors. If the
// profile holds its own samples, also measured against predicted. `json` prints the file.
void profiles_show_command(const std::string& profile, Format format, std::ostream& out);

// One fitted or derived table of a profile.
struct TableView {
  std::string path;  // "attention fa3 forward", "gemm bf16"
  const nlohmann::json* table = nullptr;
};

// The tables in the order of the file. The views point into the profile.
std::vector<TableView> tables_of(const Profile& profile);

// The origin of a profile's kernels, by its GEMM table: measured, published, derived or calibrated; may be
// empty.
std::string kernels_are(const Profile& profile);

// Prints errors on samples that the fits did not see, one line per table and group.
void print_errors(const Profile& profile, std::ostream& out);

// The tables that samples calibrated, one line a group of them: the base's error on the samples, and the
// error of what they made of it on each shape that it did not see.
void print_calibration(const Profile& profile, std::ostream& out);

}  // namespace equipoise

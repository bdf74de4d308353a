// `equipoise fit`: samples in, a profile out.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace equipoise {

struct FitCommandOptions {
  std::vector<std::string> samples;  // .csv in the columns of the public tables, or .json as `profile` writes
  std::string recipe;                // which samples make which table; needed for .csv
  std::string document_histogram;    // of rows whose documents are named by their distribution only
  std::string out = "profile.json";
};

// Prints the errors on samples the fit did not see; writes the profile whole or not at all.
void fit_command(const FitCommandOptions&, std::ostream& out, std::ostream& notes);

}  // namespace equipoise

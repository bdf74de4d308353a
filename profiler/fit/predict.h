// What a profile says of rows of a public table (profiler/fit/samples.h has their columns): each by the table
// that was fitted to such rows, else by the one that the simulator would use.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "profiler/fit/samples.h"
#include "profiler/profile/profile.h"

namespace equipoise {

struct PredictChoices {
  std::string kernel;           // attention table; empty: the one fitted to such rows, else the default
  std::string network;          // of rows between nodes; empty: the one whose name the row holds
  double nic_GBps = 0;          // of rows between nodes; 0: the rate the network was fitted at
  DocumentHistogram histogram;  // of rows whose documents are named by their distribution only
};

struct RowPrediction {
  double seconds = 0;
  double measured = 0;  // 0: the row has no time
  std::string group;    // of the summary
  std::string unable;   // why there is no prediction; empty: there is one
  [[nodiscard]] double error() const { return seconds / measured - 1; }
};

struct Predictions {
  std::vector<RowPrediction> rows;                         // of the table, in its order
  std::map<std::string, std::vector<double>> errors;       // by group, of rows with a measured time
  std::map<std::string, std::vector<std::size_t>> unable;  // lines of the file, by reason
};

// Throws UserError with file and line for a row that the profile refuses, and where none of the rows can be
// predicted.
Predictions predict_rows(const Profile& profile, const CsvTable& table, const PredictChoices& choices);

}  // namespace equipoise

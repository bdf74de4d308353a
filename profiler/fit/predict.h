// What a profile predicts for the rows of a public table (sample_tables.h). A row is predicted by the table
// that was fitted to such rows, else by the table that the simulator would use.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "policies/base/csv.h"
#include "profiler/fit/document_histogram.h"
#include "profiler/profile/profile.h"

namespace equipoise {

struct PredictChoices {
  std::string kernel;           // attention table; if empty, the one fitted to such rows, else the default
  std::string network;          // for rows between nodes; if empty, the one whose name the row contains
  double nic_GBps = 0;          // for rows between nodes; if 0, the rate at which the network was fitted
  DocumentHistogram histogram;  // for rows that state only the distribution of their documents
};

struct RowPrediction {
  double seconds = 0;
  double measured = 0;  // 0 if the row has no time
  std::string group;    // group of the summary
  std::string unable;   // why there is no prediction; empty if there is one
  [[nodiscard]] double error() const { return seconds / measured - 1; }
};

struct Predictions {
  std::vector<RowPrediction> rows;                         // one per row of the table, in its order
  std::map<std::string, std::vector<double>> errors;       // errors of rows with a measured time, by group
  std::map<std::string, std::vector<std::size_t>> unable;  // line numbers in the file, by reason
};

// Throws UserError with file and line if the profile refuses a row, and with the reasons if no row can be
// predicted.
Predictions predict_rows(const Profile& profile, const CsvTable& table, const PredictChoices& choices);

}  // namespace equipoise

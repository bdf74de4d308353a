// `equipoise predict`: published or measured rows, and what a profile predicts for them.
#pragma once

#include <iosfwd>
#include <string>

#include "sim/cli/commands.h"

namespace equipoise {

struct PredictOptions {
  std::string profile;
  std::string rows;     // a .csv in the columns of the public tables
  std::string kernel;   // attention table to use; empty: the one fitted to such rows, else the default
  std::string network;  // of rows between nodes; empty: the one whose name the row holds
  double nic_GBps = 0;  // of rows between nodes; 0: the rate the network was fitted at
  std::string document_histogram;  // of rows whose documents are named by their distribution only
  Format format = Format::csv;
};

// csv: the same rows with predicted_ms and error (predicted / measured - 1) on `out`, the errors by group on
// `notes`. json: rows and groups in one object. table: the groups alone. Rows that cannot be predicted keep
// both cells empty and are listed by reason with their lines; throws UserError where none can.
void predict_command(const PredictOptions&, std::ostream& out, std::ostream& notes);

}  // namespace equipoise

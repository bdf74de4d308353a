// `equipoise predict`: what a profile predicts for published or measured rows.
#pragma once

#include <iosfwd>
#include <string>

#include "sim/cli/commands.h"

namespace equipoise {

struct PredictOptions {
  std::string profile;
  std::string rows;     // a .csv in the columns of the public tables
  std::string kernel;   // attention table; if empty, the one fitted to such rows, else the default
  std::string network;  // for rows between nodes; if empty, the one whose name the row contains
  double nic_GBps = 0;  // for rows between nodes; if 0, the rate at which the network was fitted
  std::string document_histogram;  // for rows that state only the distribution of their documents
  Format format = Format::csv;
};

// csv: the same rows with predicted_ms and error (predicted / measured - 1) on `out`, and errors by group on
// `notes`. json: rows and groups in one object. table: only the groups. Rows that cannot be predicted have
// both cells empty and are listed by reason with their lines. Throws UserError if no row can be predicted.
void predict_command(const PredictOptions&, std::ostream& out, std::ostream& notes);

}  // namespace equipoise

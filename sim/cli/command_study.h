// `equipoise study`: the main job, every policy of a study on the same documents.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/commands.h"

namespace equipoise {

struct StudyOptions {
  std::string file;
  std::vector<std::string> set;    // key.path=value
  std::vector<std::string> sweep;  // key.path=a,b,c: the product of all is run
  std::string out;                 // directory; empty: nothing is written
  int jobs = 0;                    // threads; 0: all cores
  std::string fidelity = "stage";
  std::string format = "table";
  bool quiet = false;
};

// Prints the comparison (one per sweep case) and writes the results. Throws UserError.
void run_study_command(const StudyOptions& options, std::ostream& out, std::ostream& log);

}  // namespace equipoise

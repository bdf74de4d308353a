// `equipoise import`: a job of a training framework as a study.
#pragma once

#include <string>

namespace equipoise {

struct ImportOptions {
  std::string file;
  std::string framework;  // empty: found by the contents
  int gpus = 0;           // 0: the file's
  std::string gpu;        // empty: h100-sxm
  std::string model;      // empty: the file's
  std::string out;        // empty: stdout
  std::string format = "json";
  bool quiet = false;
};

// Becomes the importer of the Python package (sim/python/equipoise/importing). Returns only by throwing.
[[noreturn]] void import_command(const ImportOptions& options);

}  // namespace equipoise

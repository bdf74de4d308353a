// `equipoise import`: turns a job of a training framework into a study.
#pragma once

#include <string>

namespace equipoise {

struct ImportOptions {
  std::string file;
  std::string framework;  // recognized by the contents if empty
  int gpus = 0;           // 0: the file's
  std::string gpu;        // empty: h100-sxm
  std::string model;      // the file's if empty
  std::string out;        // empty: stdout
  std::string format = "json";
  bool quiet = false;
};

// Becomes the importer of the Python package (sim/python/equipoise/importing). Returns only by throwing.
[[noreturn]] void import_command(const ImportOptions& options);

}  // namespace equipoise

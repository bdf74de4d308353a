// A profile: one JSON file with a device's facts, its fitted cost models, their provenance and their error.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace equipoise {

// The kinds of tables, as profiles and samples files name them.
inline constexpr std::array<std::string_view, 4> kTableNames{"attention", "gemm", "elementwise",
                                                             "collective"};

struct DeviceFacts {
  std::string name;         // e.g. "NVIDIA H100 SXM5 80GB"
  double memory_bytes = 0;  // usable by one process
  double memory_GBps = 0;
  double peak_bf16_tflops = 0;  // dense
  double peak_fp8_tflops = 0;   // 0: none
  int sms = 0;
  int gpus_per_node = 1;
  double nvlink_GBps = 0;                    // one direction, one GPU
  double nic_GBps = 0;                       // default network, one direction, one GPU
  double launch_seconds = 0;                 // floor of every kernel
  std::optional<double> seconds_per_launch;  // host time of a kernel's launch, where it was measured
  double reserve_bytes = 0;                  // memory the framework, CUDA context and NCCL hold
  double element_bytes = 2;  // of an activation or a weight: bf16; 4 where a device computes in fp32
};

class Profile {
 public:
  // `name_or_path`: a shipped profile's name (found in the profile directories) or a file. Throws UserError.
  static Profile load(std::string_view name_or_path);
  explicit Profile(const nlohmann::json& file, std::string origin);

  [[nodiscard]] const DeviceFacts& device() const;
  [[nodiscard]] const std::string& name() const;
  [[nodiscard]] const std::string& origin() const;   // the file it came from, for error messages
  [[nodiscard]] const nlohmann::json& json() const;  // the whole file: tables, provenance, errors
  // One of `tables` by its name in kTableNames. Throws UserError where the file has none.
  [[nodiscard]] const nlohmann::json& table(std::string_view name) const;
  [[nodiscard]] bool has_table(std::string_view name) const;

 private:
  struct Data;
  std::shared_ptr<Data> data_;  // one for all copies
};

// How far collectives were off on fabrics whose rows a network's fit had not seen: "17 to 50% at the median";
// empty where its table does not say.
std::string unseen_fabric_errors(const nlohmann::json& network);

// Names of the profiles that are found beside the program or in the source tree, sorted.
std::vector<std::string> shipped_profiles();

// The two ranges of a fitted table: what the samples covered, and how far its physical form is trusted.

struct Interval {
  double low = 0;
  double high = 0;
  [[nodiscard]] bool holds(double value) const { return value >= low && value <= high; }
};

struct Validity {
  Interval samples;  // of the values that the fit saw; holds nothing if the table is derived
  Interval allowed;  // outside: refused
  bool derived = false;
};

// Reads `table.ranges.<dimension>` = {"samples": [low, high], "allowed": [low, high]}. A table of provenance
// `derived` has no samples: those that its file states are of the table it was derived from.
Validity validity_of(const nlohmann::json& table, const std::string& dimension, const std::string& where);

// One line for the user: which profile, which op, what was asked for, what is allowed.
[[noreturn]] void refuse_out_of_range(const std::string& profile, const std::string& op,
                                      const std::string& dimension, double found, const Interval& allowed);

// --- JSON files that come with the program and are known by name: profiles, framework presets.

struct ShippedFiles {
  const char* kind;         // "profile", for messages
  const char* variable;     // of the environment: the user's own directory, looked into first
  const char* share;        // folder below share/ beside the library that holds this code (a Python
                            // package's), second; below share/equipoise of an installed program, third
  const char* source_tree;  // last
  const char* or_path;      // what else may be given: "the path of a .json file"

  // Names without ".json", sorted, each once.
  [[nodiscard]] std::vector<std::string> names() const;
  // A name, or a path (with a slash, or ending in .json). Throws UserError with the nearest name.
  [[nodiscard]] std::filesystem::path find(std::string_view name_or_path) const;

 private:
  [[nodiscard]] std::vector<std::filesystem::path> directories() const;
};

// A file or folder that comes with the program: below share/equipoise of an installed one, else in the
// sources.
std::filesystem::path shipped_path(const char* share, const char* source_tree);

}  // namespace equipoise

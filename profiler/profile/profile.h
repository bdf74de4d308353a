// A profile: one JSON file with a device's facts, its fitted cost models, their provenance and their error.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace equipoise {

// The kinds of tables under their names in profiles and samples files.
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
  double launch_seconds = 0;                 // the shortest time of any kernel
  std::optional<double> seconds_per_launch;  // host time of a kernel's launch, where it was measured
  double reserve_bytes = 0;                  // memory the framework, CUDA context and NCCL hold
  double element_bytes = 2;  // of an activation or a weight; 4 where a device computes in fp32
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
  // What was read from the tables under this key, which names its kind and all that it depends on: `make`
  // reads it the first time, and all copies of the profile keep it. What `make` throws is not kept. Searches
  // price thousands of layouts, which ask for few keys.
  [[nodiscard]] std::shared_ptr<const void> kept(
      const std::string& key, const std::function<std::shared_ptr<const void>()>& make) const;

 private:
  struct Data;
  std::shared_ptr<Data> data_;  // shared by all copies
};

// The errors of collectives on fabrics that a network's fit had not seen, such as "17 to 50% at the median".
// Empty where the network's table does not say.
std::string unseen_fabric_errors(const nlohmann::json& network);

// Sorted names of the profiles that are installed with the program or lie in the source tree.
std::vector<std::string> shipped_profiles();

// A fitted table has two ranges: what its samples covered, and how far its form is trusted.

struct Interval {
  double low = 0;
  double high = 0;
  [[nodiscard]] bool holds(double value) const { return value >= low && value <= high; }
};

struct Validity {
  Interval samples;  // values that the fit saw; empty if the table is derived
  Interval allowed;  // a value outside is refused
  bool derived = false;
};

// Reads `table.ranges.<dimension>` = {"samples": [low, high], "allowed": [low, high]}. A table of provenance
// `derived` has no samples of its own; its file states those of the table that it was derived from.
Validity validity_of(const nlohmann::json& table, const std::string& dimension, const std::string& where);

// Throws UserError with the profile, the op, the requested value and what is allowed.
[[noreturn]] void refuse_out_of_range(const std::string& profile, const std::string& op,
                                      const std::string& dimension, double found, const Interval& allowed);

// --- JSON files that come with the program and are found by name: profiles and framework presets.

struct ShippedFiles {
  const char* kind;      // "profile", for messages
  const char* variable;  // environment variable with the user's own directory, searched first
  const char* share;     // folder below share/, searched second next to the library that holds this
  // code (a Python package's) and third below share/equipoise of an installed program
  const char* source_tree;  // last
  const char* or_path;      // for messages: what a user may give instead of a name

  // Sorted distinct names without ".json".
  [[nodiscard]] std::vector<std::string> names() const;
  // The file of a name or of a path, which has a slash or ends in .json. Throws UserError with the nearest
  // name.
  [[nodiscard]] std::filesystem::path find(std::string_view name_or_path) const;

 private:
  [[nodiscard]] std::vector<std::filesystem::path> directories() const;
};

// A file or folder that comes with the program, in share/equipoise of an installed program or in the sources.
std::filesystem::path shipped_path(const char* share, const char* source_tree);

}  // namespace equipoise

// `equipoise merge`: the results of a search or a sweep that several machines shared.
#pragma once

#include <atomic>
#include <iosfwd>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/cli/commands.h"
#include "sim/report/line_journal.h"

namespace equipoise {

struct MergeOptions {
  std::string out;                   // folder of the whole
  std::vector<std::string> folders;  // shards, or folders that hold some
  int jobs = 0;                      // threads; 0: all cores
  double max_memory_GB = 0;          // 0: default_memory_limit()
  std::string format = "table";
  bool quiet = false;
};

// Prints and writes what one machine would have. Throws UserError where a shard is missing or of another run.
int run_merge_command(const MergeOptions& options, std::ostream& out, std::ostream& log,
                      const std::atomic<bool>& stop);

// The shards that were found, which must be all of one run, each once.
class PartsFound {
 public:
  explicit PartsFound(const JournalKind& kind) : kind_(kind) {}

  // `asked`: as the shard's journal at `path` has it.
  void add(nlohmann::json asked, const std::string& path);
  // What the whole run was asked for. Throws UserError where a shard is missing.
  [[nodiscard]] const nlohmann::json& whole() const;

 private:
  JournalKind kind_;
  nlohmann::json asked_;  // without the share
  int count_ = 0;
  std::map<int, std::string> path_of_;
};

}  // namespace equipoise

// The shards of one search or sweep, put together: what `merge` shares with the commands that made them.
#pragma once

#include <atomic>
#include <iosfwd>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/report/line_journal.h"

namespace equipoise {

struct MergeOptions;

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

// Copies the cases of all shards of a sweep into one folder and prints them as one sweep.
int merge_sweep(const MergeOptions& options, const std::vector<std::string>& folders, std::ostream& out);

// Ranks what all shards of a search found, from their journals, as if one machine had searched.
int merge_tune(const MergeOptions& options, const std::vector<std::string>& folders, std::ostream& out,
               std::ostream& log, const std::atomic<bool>& stop);

}  // namespace equipoise

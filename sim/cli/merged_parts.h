// The shards of a search or a sweep, as `merge` finds them.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/report/line_journal.h"

namespace equipoise {

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

// The shards of a search or a sweep, as `merge` finds them.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/report/line_journal.h"

namespace equipoise {

// The shards that were found. They must belong to one run, and each must be there once.
class PartsFound {
 public:
  explicit PartsFound(const JournalKind& kind) : kind_(kind) {}

  // `asked` is the request in the shard's journal at `path`.
  void add(nlohmann::json asked, const std::string& path);
  // The request of the whole run. Throws UserError if a shard is missing.
  [[nodiscard]] const nlohmann::json& whole() const;

 private:
  JournalKind kind_;
  nlohmann::json asked_;  // the request without its share
  int count_ = 0;
  std::map<int, std::string> path_of_;
};

}  // namespace equipoise

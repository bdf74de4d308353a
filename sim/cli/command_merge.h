// `equipoise merge`: the results of a search or a sweep that several machines shared.
#pragma once

#include <atomic>
#include <iosfwd>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/cli/commands.h"
#include "sim/study/share.h"

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
  void add(Share share, const std::string& path);
  void check() const;

 private:
  int count_ = 0;
  std::map<int, std::string> path_of_;
};

// A journal's "share"; throws UserError where it has none.
Share share_of_json(const nlohmann::json& asked, const std::string& path);

}  // namespace equipoise

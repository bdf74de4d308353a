#include "sim/cli/command_merge.h"

#include <algorithm>
#include <filesystem>
#include <ostream>

#include "policies/base/error.h"
#include "sim/cli/command_tune.h"
#include "sim/cli/sweep.h"
#include "sim/tune/journal.h"

namespace equipoise {
namespace {

namespace fs = std::filesystem;

bool has_journal(const fs::path& folder, const char* name) {
  return fs::is_regular_file(folder / name);
}

// The shards in each folder, in the order of their names; a folder that is itself a shard counts as one.
std::vector<std::string> shards_in(const std::vector<std::string>& folders) {
  std::vector<std::string> shards;
  const auto is_shard = [](const fs::path& folder) {
    return has_journal(folder, kTuneJournal) || has_journal(folder, kSweepJournal);
  };
  for (const std::string& folder : folders) {
    if (!fs::is_directory(folder)) throw UserError("merge: ", folder, ": no such folder");
    std::vector<std::string> inside;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
      if (entry.is_directory() && entry.path().filename().string().starts_with("shard-") &&
          is_shard(entry.path()))
        inside.push_back(entry.path().string());
    std::sort(inside.begin(), inside.end());
    if (inside.empty() && is_shard(folder)) inside.push_back(folder);
    if (inside.empty())
      throw UserError("merge: ", folder,
                      ": expected what `tune` or `study --sweep` wrote with --shard, found ", "no ",
                      kTuneJournal, " and no ", kSweepJournal);
    shards.insert(shards.end(), inside.begin(), inside.end());
  }
  return shards;
}

}  // namespace

int run_merge_command(const MergeOptions& options, std::ostream& out, std::ostream& log,
                      const std::atomic<bool>& stop) {
  if (options.out.empty() || (fs::exists(options.out) && !fs::is_directory(options.out)))
    throw UserError("merge: OUT: expected a folder, found ",
                    (options.out.empty() ? "nothing" : options.out + ", a file"));
  const std::vector<std::string> shards = shards_in(options.folders);
  const bool tune = has_journal(shards.front(), kTuneJournal);
  for (const std::string& shard : shards)
    if (has_journal(shard, kTuneJournal) != tune)
      throw UserError("merge: expected shards of one run, found some of `tune` and some of `study --sweep`");
  return tune ? merge_tune(options, shards, out, log, stop) : merge_sweep(options, shards, out);
}

}  // namespace equipoise

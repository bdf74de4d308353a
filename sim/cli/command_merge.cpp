#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "sim/cli/study_commands.h"
#include "sim/cli/sweep.h"
#include "sim/report/comparison.h"
#include "sim/study/sharing.h"
#include "sim/tune/trial.h"
#include "traces/json_text.h"

namespace equipoise {
namespace {

namespace fs = std::filesystem;

bool has_journal(const fs::path& folder, const char* name) {
  return fs::is_regular_file(folder / name);
}

// The shards in each folder, in the order of their names; the folder itself where it is one.
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

Share share_of(const nlohmann::json& asked, const std::string& path) {
  const auto share = asked.find("share");
  if (share == asked.end())
    throw UserError(path, ": expected one of several shards, found a whole run; it needs no merge");
  try {
    return parse_share(share->at(0).dump() + "/" + share->at(1).dump(), path + ": asked.share");
  } catch (const nlohmann::json::exception&) {
    throw UserError(path, ": asked.share: expected [index, count], found ", shown_json(*share));
  }
}

}  // namespace

void PartsFound::add(nlohmann::json asked, const std::string& path) {
  const Share share = share_of(asked, path);
  asked.erase("share");
  if (count_ == 0) {
    count_ = share.count;
    asked_ = std::move(asked);
  } else if (asked != asked_) {
    throw UserError("merge: ", path, ": expected a shard of the ", kind_.job, " that ",
                    path_of_.begin()->second, " is of, found another (", kind_.decides, " differ)");
  }
  if (share.count != count_)
    throw UserError("merge: ", path, ": expected one of ", count_, " shards, found ", share.index, "/",
                    share.count);
  const auto [same, is_new] = path_of_.emplace(share.index, path);
  if (!is_new)
    throw UserError("merge: expected each shard once, found ", share.index, "/", share.count, " as ",
                    same->second, " and as ", path);
}

const nlohmann::json& PartsFound::whole() const {
  std::string missing;
  for (int i = 0; i < count_; ++i)
    if (!path_of_.contains(i)) missing.append(missing.empty() ? "" : ", ").append(std::to_string(i));
  if (!missing.empty())
    throw UserError("merge: expected all ", count_, " shards, found ", path_of_.size(),
                    " of them; missing: ", missing);
  return asked_;
}

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

// `equipoise report`: saved results again, one or two side by side.
int run_report_command(const ReportOptions& options, std::ostream& out, std::ostream& log) {
  if (!options.out.empty() && !options.out.ends_with(".html"))
    throw UserError("report: --out ", options.out, ": expected the name of a page that ends in .html");
  const SavedResult first = load_saved(options.first);
  std::string page;
  if (options.second.empty()) {
    if (!options.out.empty()) page = saved_page(first);
    if (options.format == Format::json)
      out << first.summary.dump(2) << '\n';
    else
      out << (options.format == Format::csv ? saved_csv(first) : saved_table(first));
  } else {
    const SavedResult second = load_saved(options.second);
    const SavedComparison found = compare_saved(first, second);
    if (!options.out.empty()) page = comparison_page(first, second, found);
    if (options.format == Format::json)
      out << comparison_json(first, second, found).dump(2) << '\n';
    else
      out << (options.format == Format::csv ? comparison_csv(found) : comparison_text(first, second, found));
  }
  if (!page.empty()) {
    write_file_atomically(options.out, page);
    log << "note: wrote " << options.out << '\n';
  }
  return 0;
}

}  // namespace equipoise

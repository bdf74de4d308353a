#include "sim/cli/merged_parts.h"

#include "policies/base/error.h"
#include "sim/study/share.h"
#include "traces/json_text.h"

namespace equipoise {

static Share share_of(const nlohmann::json& asked, const std::string& path) {
  const auto share = asked.find("share");
  if (share == asked.end())
    throw UserError(path, ": expected one of several shards, found a whole run; it needs no merge");
  try {
    return parse_share(share->at(0).dump() + "/" + share->at(1).dump(), path + ": asked.share");
  } catch (const nlohmann::json::exception&) {
    throw UserError(path, ": asked.share: expected [index, count], found ", shown_json(*share));
  }
}

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

}  // namespace equipoise

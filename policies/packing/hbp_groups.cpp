// HBP (arXiv 2503.07680), Algorithm 1.
//
// Algorithm 1 compares the best strategy of every candidate pack length at the same global token count. The
// fastest length l_best and the longest l_max always make groups. Packs of l_best / degree_best and of
// l_max / degree_max tokens fit one rank of those strategies, so documents that short need no CP at all: they
// make groups of degree 1, the second only if it is longer than l_best (else l_best serves those documents).
//
// The printed listing leaves duplicates (a best length of degree 1 appears twice); they are removed, and a
// group that two rules name keeps the measured strategy of its candidate.
#include <algorithm>
#include <sstream>
#include <string>

#include "policies/base/error.h"
#include "policies/base/sizes.h"
#include "policies/packing/hbp.h"
#include "policies/packs.h"
#include "policies/step_shape.h"

namespace equipoise {
namespace {

Group of_candidate(const GroupCandidate& c) {
  return {c.length, c.context, c.recompute_layers};
}

// What one rank of the candidate holds, run without CP.
Group alone(const GroupCandidate& c) {
  return {c.length / c.context, 1, c.recompute_layers_alone};
}

void check(const Group& group, std::int64_t gpus) {
  const std::string where = "groups: " + std::to_string(group.length) + ":" + std::to_string(group.context);
  if (group.length < 1 || group.context < 1) {
    throw UserError(where + ": expected a pack length and a CP degree >= 1");
  }
  if (group.context > gpus) {
    throw UserError(where + ": CP degree above the " + std::to_string(gpus) + " GPUs of the DP x CP grid");
  }
}

}  // namespace

std::vector<Group> parse_groups(const std::string& text) {
  constexpr int kMostDegree = 1024;
  const auto refuse = [](const std::string& found) {
    throw UserError("expected length:degree pairs such as 16K:1,128K:8, found " + found);
  };
  std::vector<Group> groups;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    const std::size_t colon = item.find(':');
    Group group;
    std::int64_t degree = 0;
    if (colon == std::string::npos || !parse_size(std::string_view(item).substr(0, colon), group.length) ||
        !parse_size(std::string_view(item).substr(colon + 1), degree) || group.length < 1 || degree < 1 ||
        degree > kMostDegree)
      refuse(item);
    group.context = static_cast<int>(degree);
    groups.push_back(group);
  }
  if (groups.empty()) refuse("nothing");
  return groups;
}

std::string groups_text(std::span<const Group> groups) {
  constexpr std::int64_t kK = 1024;
  std::string text;
  for (const Group& g : groups) {
    if (!text.empty()) text += ',';
    text += g.length % kK == 0 ? std::to_string(g.length / kK) + 'K' : std::to_string(g.length);
    text += ':' + std::to_string(g.context);
  }
  return text;
}

std::vector<Group> select_groups(std::span<const GroupCandidate> candidates) {
  if (candidates.empty()) return {};
  const auto faster = [](const GroupCandidate& a, const GroupCandidate& b) { return a.seconds < b.seconds; };
  const auto shorter = [](const GroupCandidate& a, const GroupCandidate& b) { return a.length < b.length; };
  const GroupCandidate& best = *std::min_element(candidates.begin(), candidates.end(), faster);
  const GroupCandidate& longest = *std::max_element(candidates.begin(), candidates.end(), shorter);
  std::vector<Group> groups{of_candidate(best), of_candidate(longest), alone(best)};
  if (alone(longest).length > best.length) groups.push_back(alone(longest));
  // Stable, so that of equal lengths the candidates' own strategies stay.
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.length < b.length; });
  const auto same = [](const Group& a, const Group& b) { return a.length == b.length; };
  groups.erase(std::unique(groups.begin(), groups.end(), same), groups.end());
  return groups;
}

std::vector<Group> hbp_groups(const PackOptions& options) {
  std::vector<Group> groups = options.groups;
  if (groups.empty()) groups = select_groups(options.candidates);
  if (groups.empty()) groups.push_back({pack_length(options), options.context, kStudyRecompute});
  for (const Group& group : groups) check(group, grid_gpus(options));
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.length < b.length; });
  for (std::size_t i = 1; i < groups.size(); ++i) {
    if (groups[i].length == groups[i - 1].length) {
      throw UserError("groups: pack length " + std::to_string(groups[i].length) + " is given twice");
    }
  }
  return groups;
}

std::int64_t hbp_hard_limit(const PackOptions& options) {
  return hbp_groups(options).back().length;
}

std::int64_t shortest_group(const PackOptions& options) {
  std::int64_t least = 0;
  for (const Group& group : options.groups)
    if (least == 0 || group.length < least) least = group.length;
  return least;
}

Room room_by_groups(const PackOptions& options, std::int64_t tokens) {
  Room room{"groups", "a group of " + std::to_string(tokens) + " tokens", options};
  std::vector<Group>& groups = room.options.groups;
  if (!groups.empty()) {
    const auto shorter = [](const Group& a, const Group& b) { return a.length < b.length; };
    Group& last = *std::max_element(groups.begin(), groups.end(), shorter);
    last.length = std::max(last.length, tokens);
    return room;
  }
  std::vector<std::int64_t>& candidates = room.options.of<HbpOptions>().candidate_lengths;
  if (candidates.empty()) return room_by_pack_length(options, tokens);
  candidates.push_back(tokens);
  room.key = "candidates";
  room.text = "a candidate of " + std::to_string(tokens) + " tokens";
  return room;
}

}  // namespace equipoise

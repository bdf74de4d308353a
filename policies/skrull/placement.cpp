#include "policies/skrull/placement.h"

#include <algorithm>

#include "policies/plan.h"

namespace equipoise::skrull {

Buckets::Buckets(const PlacementProblem& problem)
    : problem_(problem),
      capacity_(problem.bucket * problem.ranks),
      local_tokens_(static_cast<std::size_t>(problem.ranks), 0),
      local_cost_(static_cast<std::size_t>(problem.ranks), 0),
      rank_of_(problem.tokens.size(), kDistributed),
      oldest_(static_cast<std::size_t>(problem.ranks), 0) {}

std::size_t Buckets::least_loaded() const {
  return static_cast<std::size_t>(std::min_element(local_cost_.begin(), local_cost_.end()) -
                                  local_cost_.begin());
}

std::size_t Buckets::most_room() const {
  return static_cast<std::size_t>(std::min_element(local_tokens_.begin(), local_tokens_.end()) -
                                  local_tokens_.begin());
}

std::size_t Buckets::least_room() const {
  return static_cast<std::size_t>(std::max_element(local_tokens_.begin(), local_tokens_.end()) -
                                  local_tokens_.begin());
}

std::int64_t Buckets::room(std::size_t rank) const {
  return capacity_ - problem_.ranks * local_tokens_[rank] - distributed_tokens_;
}

bool Buckets::fits_local(std::size_t rank, std::size_t document) const {
  return problem_.ranks * problem_.tokens[document] <= room(rank);
}

bool Buckets::fits_distributed(std::size_t document) const {
  return problem_.tokens[document] <= room(least_room());
}

void Buckets::place_local(std::size_t rank, std::size_t document) {
  local_tokens_[rank] += problem_.tokens[document];
  local_cost_[rank] += problem_.cost[document];
  rank_of_[document] = static_cast<int>(rank);
}

void Buckets::distribute(std::size_t document) {
  distributed_tokens_ += problem_.tokens[document];
}

bool Buckets::roll_back() {
  std::size_t rank = least_room();
  do {
    std::size_t& at = oldest_[rank];
    while (at < rank_of_.size() && rank_of_[at] != static_cast<int>(rank)) ++at;
    if (at == rank_of_.size()) return false;
    local_tokens_[rank] -= problem_.tokens[at];
    local_cost_[rank] -= problem_.cost[at];
    rank_of_[at] = kDistributed;
    distribute(at);
    rank = least_room();
  } while (room(rank) < 0);
  return true;
}

Placement Buckets::finish(bool failed) {
  return {std::move(rank_of_), failed, !failed && room(least_room()) >= 0};
}

}  // namespace equipoise::skrull

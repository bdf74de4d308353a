// HBP's group selection: which pack lengths, at which CP degree, with how many checkpointed layers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policies/options.h"

namespace equipoise {

// Algorithm 1: from the fastest candidate (l_best) and the longest (l_max), shortest group first.
std::vector<Group> select_groups(std::span<const GroupCandidate> candidates);

// Algorithm 4: fewest layers to checkpoint so that a step fits, from two probes: free memory m1 with c_min
// checkpointed layers, m2 with c_max. Any unit of memory; negative = over. Clipped to [0, layers].
int checkpointed_layers(int c_min, double m1, int c_max, double m2, int layers);

// The groups the options ask for, shortest first: `groups` as given, else selected from `candidates`, else
// one of pack_length at the study's CP degree. Throws UserError for groups that cannot run.
std::vector<Group> hbp_groups(const PackOptions& options);

}  // namespace equipoise

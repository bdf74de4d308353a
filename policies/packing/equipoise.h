// What equipoise and its search over options share: the start, and what to try.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "policies/packing/step_packer.h"

namespace equipoise {

// Whether no micro-batch exceeds L_max at its lane's degree.
bool within(const Step& step, const PackOptions& options);

// Whether gather.cpp chooses the documents of the start's steps.
bool is_gathered(Start start);
// The policy that the options start from. Throws UserError where it cannot place a document.
const Policy& policy_of_start(const PackingProblem& problem);
// The unchanged start. Throws UserError where it cannot run.
Plan plan_start(const PackingProblem& problem);
// The plan of a start, and each of its steps packed by the options.
struct PackedStart {
  explicit PackedStart(Plan from) : start(std::move(from)), plan(start) {}
  Plan start, plan;
};
PackedStart pack_start(const PackingProblem& problem, LaneShapes& lanes);
// Packs some of the steps.
void pack_steps(const PackingProblem& problem, LaneShapes& lanes, std::span<const std::size_t> steps,
                PackedStart& packed);

// Thresholds for wlb: queues of equal width, or one queue for the longest documents.
std::vector<std::vector<std::int64_t>> outlier_thresholds(const PackOptions& options);
// The numbers of micro-batches per step to try: as given, else the number of windows or the fewest that fit,
// and more.
std::vector<std::int64_t> counts_of(const PackOptions& options, double tokens_of_batch);
// The rising widths of pack windows and of look-ahead to try.
std::vector<std::int64_t> windows_of(const PackOptions& options, std::size_t batches);

}  // namespace equipoise

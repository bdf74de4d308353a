// How much faster a run is than the baseline, and how much of that may be the luck of these documents.
//
// `speedup` is the baseline's seconds per token over this run's, both over the same documents run to the end.
// Its interval comes from a paired bootstrap. Policies make other numbers of steps of other sizes (pack
// windows, whole-set packers, tails), so steps have no partners. Both runs are therefore cut at the same
// fractions of their tokens into as many blocks as there are global batches, 20 at most, where the time of a
// step is spread evenly over its tokens: block i of both runs holds (about) the documents of the same
// consecutive batches, so that a batch of long documents, slow for both, is drawn for both or for neither.
// Policies that shuffle the whole set have other documents in a block; their interval is only wider for it.
// All blocks together are the whole runs: the ratio of their sums is `speedup` itself, and two equal runs
// have the interval [1, 1] exactly. Block times are whole picoseconds and draws are SplitMix64's: the same
// bits on every machine.
#pragma once

#include <cstddef>
#include <span>

#include "sim/metrics/metrics.h"

namespace equipoise {

// Fills speedup, speedup_low and speedup_high of `metrics`, which `steps` led to; leaves them null where one
// of the runs has no time. `batches`: global batches that the loader made; fewer than 4 give no interval.
void compare(const Metrics& baseline, std::span<const StepResult> baseline_steps, std::size_t batches,
             std::span<const StepResult> steps, Metrics& metrics);

// Picoseconds of each of `blocks` parts of a run that hold equally many tokens.
std::vector<Picoseconds> block_times(std::span<const StepResult> steps, std::size_t blocks);

}  // namespace equipoise

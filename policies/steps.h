// Steps of a plan: what one looks like, derived from the options in one place, and how packs become steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "policies/base/random.h"
#include "policies/options.h"
#include "policies/parameter.h"
#include "policies/plan.h"
#include "policies/policy.h"

namespace equipoise {

// The shape of a step: how many micro-batches, over how many lanes, how long a pack. Every function throws
// UserError where the options make no step at all.

// Options of policies that fill packs of one length.
enum class PackOrder { shuffled, created };  // of finished packs, before iterations are cut
inline constexpr std::string_view kPackOrderNames[] = {"shuffled", "created"};
struct PackLengthOptions {
  std::int64_t pack_length = 0;  // 0: context_window
  PackOrder pack_order = PackOrder::shuffled;
};
inline constexpr PackParameter kPackLength = parameter::integer<&PackLengthOptions::pack_length>(
    "pack_length", 1, kLongestSize, "Tokens of a pack; the window by default");
inline constexpr PackParameter kPackOrder = parameter::choice<&PackLengthOptions::pack_order>(
    "pack_order", kPackOrderNames,
    "of finished packs before iterations are cut; shuffled: drawn once; created: as they were made");

// N: micro-batches of a step over all lanes. As given, else sequences_per_step / micro_batch_size; with
// documents_per_step, where batches are of any size, as many on every lane as hold a mean batch (in windows,
// micro_batch_size each) and leave room, and no fewer than those.
std::int64_t micro_batches_of_step(const PackOptions& options);

// Tokens of a window.
std::int64_t window_tokens(const PackOptions& options);

// Tokens that fit in one micro-batch of a fixed-length policy: micro_batch_size windows.
std::int64_t micro_batch_capacity(const PackOptions& options);

// Length a pack-length packer fills.
std::int64_t pack_length(const PackOptions& options);

// Tokens of one iteration of a policy that sees the whole set.
std::int64_t tokens_of_iteration(const PackOptions& options);

// What documents_per_step of these documents hold on the mean.
std::int64_t mean_global_tokens(std::span<const GlobalBatch> batches, const PackOptions& options);

// Packs of length `length` in one iteration on `lanes` lanes: at least 1. With documents_per_step the number
// of packs that holds the mean global batch, so that all rows of a study train as much a step: `tokens` is
// what a pack holds on the mean. A multiple of the lanes where that is within kEqualBatch, else the nearest
// number; with options.lane_round above 1 always a multiple of both.
std::int64_t packs_of_iteration(const PackOptions& options, std::int64_t length, std::int64_t lanes,
                                double tokens);

// Tokens a step of two rows are equal within this share.
inline constexpr double kEqualBatch = 0.02;

// Why iterations of so many packs of `tokens` are not the mean global batch; empty where they are, or where
// batches are of windows.
std::string unequal_batch(const PackOptions& options, std::int64_t packs, double tokens);

// GPUs of the DP x CP grid.
std::int64_t grid_gpus(const PackOptions& options);

// Neighbouring lanes that wait for each other with every micro-batch; all where they make no whole groups.
std::size_t waiting_lanes(const PackOptions& options);

// A step of `options.lanes` empty lanes with the study's CP degree.
Step empty_step(const PackOptions& options);

// Packs as flat arrays, and how they become steps. Packers work on positions in one list of lengths and know
// nothing of plans; the nested Plan is built once, at the end, from what they return.

// Pack p holds the documents item[begin[p]] .. item[begin[p + 1] - 1], in the order they were put in.
struct Packs {
  std::vector<std::uint32_t> begin{0};
  std::vector<std::uint32_t> item;

  [[nodiscard]] std::size_t size() const { return begin.size() - 1; }
  [[nodiscard]] std::span<const std::uint32_t> of(std::size_t pack) const {
    return std::span(item).subspan(begin[pack], begin[pack + 1] - begin[pack]);
  }
  // Ends the open pack: what was appended to `item` since the last close.
  void close() { begin.push_back(static_cast<std::uint32_t>(item.size())); }
};

// Packs from one decision a document: order[i] went into pack pack_of[i]; packs are 0 .. count - 1. O(n).
Packs gather_packs(std::span<const std::uint32_t> order, std::span<const std::uint32_t> pack_of,
                   std::size_t count);

// All slices of the set, in arrival order, and their lengths: what a policy that sees the whole set packs.
struct SliceList {
  std::vector<Slice> slices;
  std::vector<std::int64_t> lengths;
};
SliceList whole_set(const PackingProblem& problem);

// How the micro-batches of a step made of packs run.
struct PackStep {
  int lanes = 1;
  int context = 1;
  int recompute_layers = kStudyRecompute;
  std::int64_t length = 0;  // pack length: what `pr` counts padding against
};

// One step of the packs `chosen`: the i-th goes to lane i mod lanes.
Step step_of_packs(std::span<const Slice> slices, const Packs& packs, std::span<const std::uint32_t> chosen,
                   const PackStep& shape);

// Steps of consecutive packs, as many as fill the tokens of an iteration; a short last one is a tail. Notes
// where they cannot.
Plan plan_of_packs(std::span<const Slice> slices, const Packs& packs, const PackOptions& options);

// The same of packs that are mixed first, as training mixes them before it batches: one shuffle of the list,
// drawn from the packer's own stream after its last draw. Packs of decreasing documents stand in order of
// their longest, so iterations of neighbours would be balanced by accident. options.pack_order `created` and
// options.shuffle = false leave them as they were made.
Plan plan_of_mixed_packs(std::span<const Slice> slices, const Packs& packs, const PackOptions& options,
                         SplitMix64& random);

// Of the policies that fill such packs: the pack length that a document needs.
Room room_by_pack_length(const PackOptions& options, std::int64_t tokens);

// Token budget (verl's use_dynamic_bsz, TRL, slime): a step has the fewest micro-batches that stay within a
// budget instead of a given number. A document above it is alone.
struct TokenBudget {
  std::int64_t tokens_per_micro_batch = 0;  // 0: micro-batches by number
  // What a document of L tokens takes of the budget, and weighs: linear * L + quadratic * L^2. Both 0: its
  // tokens fill the budget, and W balances.
  double linear_cost = 0, quadratic_cost = 0;
};
inline constexpr PackParameter kTokensPerMicroBatch =
    parameter::integer<&TokenBudget::tokens_per_micro_batch>(
        "tokens_per_micro_batch", 1, kLongestSize,
        "the fewest micro-batches of at most so many tokens, instead of a given number");
inline constexpr PackParameter kTokenBudget[] = {
    kTokensPerMicroBatch,
    parameter::number<&TokenBudget::linear_cost>(
        "linear_cost", 0, 1e12, "a document of L tokens weighs linear_cost * L + quadratic_cost * L^2"),
    parameter::number<&TokenBudget::quadratic_cost>("quadratic_cost", 0, 1e12, "see linear_cost")};

using Bins = std::vector<std::vector<Slice>>;
// What each slice takes of the budget.
std::vector<double> budget_use(std::span<const Slice> slices, const PackOptions& options);
// The bins of a balancer in one step: as many as the step has micro-batches, or the fewest, in multiples of
// the lanes, that it fills within the budget. `fill`: weights of the slices and a number of bins to bins.
Bins bins_of_step(const GlobalBatch& batch, const PackingProblem& problem,
                  const std::function<Bins(std::span<const double> weights, std::size_t bins)>& fill);

// A step of N bins in the study's lanes: bin j goes to lane j mod lanes.
Step step_of_bins(std::vector<std::vector<Slice>>&& bins, const PackOptions& options);
// The same where bins weigh differently: heaviest first, each to the least loaded lane with a free place
// (bins are as even over the lanes as can be); inside a lane they keep their order.
Step step_of_bins_by_weight(std::vector<std::vector<Slice>>&& bins, std::span<const double> weights,
                            const PackOptions& options);

}  // namespace equipoise

// The steps of a plan: their shape, derived from the options in one place, and how packs become steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/random.h"
#include "policies/options.h"
#include "policies/parameter.h"
#include "policies/plan.h"
#include "policies/policy.h"

namespace equipoise {

// The shape of a step: micro-batches, lanes and pack length. Every function throws UserError where the
// options give no valid step.

// Options of policies whose packs have one length.
enum class PackOrder { shuffled, created };  // order of finished packs before iterations are cut
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

// N, the micro-batches of a step over all lanes: as given, else sequences_per_step / micro_batch_size. With
// documents_per_step, batches vary in size. Every lane then gets as many micro-batches (of micro_batch_size
// windows) as hold a mean batch with room to spare, but at least sequences_per_step / micro_batch_size in
// all.
std::int64_t micro_batches_of_step(const PackOptions& options);

std::int64_t window_tokens(const PackOptions& options);

// The capacity of a fixed-length policy's micro-batch in tokens: micro_batch_size windows.
std::int64_t micro_batch_capacity(const PackOptions& options);

std::int64_t pack_length(const PackOptions& options);

// The tokens of one iteration of a policy that sees the whole set.
std::int64_t tokens_of_iteration(const PackOptions& options);

// The mean tokens of documents_per_step of these documents.
std::int64_t mean_global_tokens(const Batches& batches, const PackOptions& options);

// The packs of length `length` in one iteration on `lanes` lanes, at least 1. With documents_per_step it is
// the number of packs that hold the mean global batch, so that all rows of a study train equally many tokens
// per step; `tokens` is the mean content of a pack. The number is a multiple of the lanes where that is
// within kEqualBatch, else the nearest number; with options.lane_round above 1 it is always a multiple of
// both.
std::int64_t packs_of_iteration(const PackOptions& options, std::int64_t length, std::int64_t lanes,
                                double tokens);

// Two rows train equally many tokens per step if these differ by at most this share.
inline constexpr double kEqualBatch = 0.02;

// Notes that iterations of so many packs of `tokens` differ from the mean global batch. None where they do
// not, or for window batches.
std::optional<Note> unequal_batch(const PackOptions& options, std::int64_t packs, double tokens);

// The number of GPUs in the DP x CP grid.
std::int64_t grid_gpus(const PackOptions& options);

// The neighbouring lanes that wait for each other in every micro-batch; all lanes where these make no whole
// groups.
std::size_t waiting_lanes(const PackOptions& options);

// Makes a step of `options.lanes` empty lanes with the study's CP degree.
Step empty_step(const PackOptions& options);

// Runs `append`, which appends a step of what the plan's last step carried, until nothing is carried. The
// loop ends, since a document of at most `limit` tokens fits into an empty micro-batch, so that each step
// places the longest one at least. Throws UnplaceableDocument where a step places none.
void pack_carried(std::string_view policy, std::int64_t limit, Plan& plan,
                  const std::function<void()>& append);

// Packs as flat arrays, and how they become steps. Packers work on indices into one list of lengths,
// independently of plans. The nested Plan is built once at the end from their result.

// Pack p holds the documents item[begin[p]] .. item[begin[p + 1] - 1], in the order of their addition.
struct Packs {
  std::vector<std::uint32_t> begin{0};
  std::vector<std::uint32_t> item;

  [[nodiscard]] std::size_t size() const { return begin.size() - 1; }
  [[nodiscard]] std::span<const std::uint32_t> of(std::size_t pack) const {
    return std::span(item).subspan(begin[pack], begin[pack + 1] - begin[pack]);
  }
  // Ends the open pack, which holds the items appended since the last close.
  void close() { begin.push_back(static_cast<std::uint32_t>(item.size())); }
};

// Makes packs 0 .. count - 1 from one decision per document: order[i] goes into pack pack_of[i]. O(n).
Packs gather_packs(std::span<const std::uint32_t> order, std::span<const std::uint32_t> pack_of,
                   std::size_t count);

// All slices of the set in arrival order, with their lengths, as a policy that sees the whole set packs them.
struct SliceList {
  std::vector<Slice> slices;
  std::vector<std::int64_t> lengths;
};
SliceList whole_set(const PackingProblem& problem);

// How the micro-batches of a step that is made of packs run.
struct PackStep {
  int lanes = 1;
  int context = 1;
  int recompute_layers = kStudyRecompute;
  std::int64_t length = 0;  // pack length, against which `pr` counts padding
};

// Makes one step of the packs `chosen`, of which the i-th goes to lane i mod lanes.
Step step_of_packs(std::span<const Slice> slices, const Packs& packs, std::span<const std::uint32_t> chosen,
                   const PackStep& shape);

// Makes steps of consecutive packs, each with as many as fill the tokens of an iteration. A short last step
// is a tail. Adds a note where no number of packs gives the tokens of an iteration.
Plan plan_of_packs(std::span<const Slice> slices, const Packs& packs, const PackOptions& options);

// The same for packs in shuffled order, since training mixes packs before it batches them. The list is
// shuffled once with the packer's own stream after its last draw. Sorted packers create packs in order of
// their longest document, so consecutive packs would be balanced by accident. options.pack_order `created`
// and options.shuffle = false keep the order of creation.
Plan plan_of_mixed_packs(std::span<const Slice> slices, const Packs& packs, const PackOptions& options,
                         SplitMix64& random);

// For policies that fill such packs: the pack length that a document needs.
Room room_by_pack_length(const PackOptions& options, std::int64_t tokens);

// Token budget (verl's use_dynamic_bsz, TRL, slime): instead of a given number, a step has the fewest
// micro-batches that stay within a budget. A document above the budget is alone in its micro-batch.
struct TokenBudget {
  std::int64_t tokens_per_micro_batch = 0;  // 0: micro-batches by number
  // The share of the budget and the weight of a document of L tokens: linear * L + quadratic * L^2. Both 0:
  // tokens fill the budget, and W is the weight.
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
// Each pack as a bin of its slices.
Bins bins_of(std::span<const Slice> slices, const Packs& packs);
// The share of the budget that each slice takes.
std::vector<double> budget_use(std::span<const Slice> slices, const PackOptions& options);
// The bins of a balancer in one step: as many as the step has micro-batches, or the fewest multiple of the
// lanes that stays within the budget. `fill` distributes slices with given weights over a number of bins.
Bins bins_of_step(const GlobalBatch& batch, const PackingProblem& problem,
                  const std::function<Bins(std::span<const double> weights, std::size_t bins)>& fill);

// Adds a step to a plan of which nobody needs more than the last step again. The problem's sink takes a full
// block of the others.
void add_step(const PackingProblem& problem, Step step, Plan& plan);

// Makes a step of N bins in the study's lanes. Bin j goes to lane j mod lanes.
Step step_of_bins(std::vector<std::vector<Slice>>&& bins, const PackOptions& options);
// The same for bins of different weight: the heaviest first, each goes to the least loaded lane with a free
// place, so that lanes differ by at most one bin. Bins of a lane keep their order.
Step step_of_bins_by_weight(std::vector<std::vector<Slice>>&& bins, std::span<const double> weights,
                            const PackOptions& options);

}  // namespace equipoise

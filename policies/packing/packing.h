// The packing policies, most of them in the file of their name, and the options of those with few;
// registry.cpp gives them their names. wlb and hbp have their own headers, and the packers of one length
// pack_length.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policies/parameter.h"
#include "policies/plan.h"
#include "policies/policy.h"

namespace equipoise {

Plan plan_plain(const PackingProblem& problem);

// Options of the policies padded and sorted.
struct PaddedOptions {
  bool padding = true;
};
inline constexpr PackParameter kPadding = parameter::flag<&PaddedOptions::padding>(
    "padding", "false leaves the documents of a micro-batch as they are, not each padded to the longest");

Plan plan_padded(const PackingProblem& problem);
Plan plan_sorted(const PackingProblem& problem);
Plan plan_lpt(const PackingProblem& problem);

// WLB-LLM 4.1: fixed-length packing, and its placement rule as a bare function; fixed-solver starts from it.

// Of fixed-greedy and fixed-solver.
struct FixedLengthOptions {
  std::int64_t pack_window = 1;
};
inline constexpr PackParameter kPackWindow = parameter::integer<&FixedLengthOptions::pack_window>(
    "pack_window", 1, 1 << 20, "global batches packed together");

// A bin is micro_batch_size windows: the window that a document needs.
Room room_by_window(const PackOptions& options, std::int64_t tokens);

Plan plan_fixed_greedy(const PackingProblem& problem);

inline constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

// Bin of each document, or kNowhere: each to the bin with the least sum of len^2 that has room, ties to the
// lowest. `lengths` come longest first.
std::vector<std::size_t> place_by_attention(std::span<const std::int64_t> lengths, std::size_t bins,
                                            std::int64_t capacity);

// ChunkFlow Algorithm 1: chunks of one size.

struct ChunkflowOptions {
  std::int64_t chunk_size = 8192;
};
inline constexpr PackParameter kChunkflow[] = {
    parameter::integer<&ChunkflowOptions::chunk_size>("chunk_size", 1, kLongestSize, "tokens of a chunk"),
    kKeep, kStrictKeep};

std::int64_t chunk_tokens(const PackOptions& options);  // chunk_size

Plan plan_chunkflow(const PackingProblem& problem);

// What goes to a lane as a whole: a standalone micro-batch, or the dependent chunks of one document.
struct Unit {
  std::vector<MicroBatch> chunks;
  double weight = 0;  // tokens or work
};

// Documents of at most `capacity` tokens in the fewest micro-batches of so many that longest-to-least-loaded
// fits (Algorithm 1), in the order of the lowest slice that each holds. They weigh their tokens.
std::vector<Unit> standalone_units(std::span<const Slice> slices, std::int64_t capacity);

// A document as chunks, each of which attends back to the first: chunk i ends at token ends[i] of the slice.
Unit dependent_unit(const Slice& slice, std::span<const std::int64_t> ends);

// Units go to lanes heaviest first, each to the least loaded; inside a lane they keep their order. The first
// `in_rows`, where lanes wait for each other, go to them in rows: one of as many chunks to each.
Step step_of_units(std::vector<Unit>&& units, const PackOptions& options, std::size_t in_rows = 0);

// Sequence slices (Seq1F1B, SlimPipe, InfiniPipe): long documents cut into slices of equal work.

enum class SliceBy { work, tokens };
inline constexpr std::string_view kSliceByNames[] = {"work", "tokens"};
struct SequenceSlicesOptions {
  std::int64_t slices = 4;
  SliceBy slice_by = SliceBy::work;
};
inline constexpr PackParameter kSequenceSlices[] = {
    parameter::integer<&SequenceSlicesOptions::slices>(
        "slices", 1, 1024, "slices of a step's longest document; shorter ones get as many of that size"),
    parameter::choice<&SequenceSlicesOptions::slice_by>(
        "slice_by", kSliceByNames,
        "what slices have equal; work: their work by `cost` (Seq1F1B); tokens: their tokens (SlimPipe)")};

Plan plan_sequence_slices(const PackingProblem& problem);

// Karmarkar and Karp's largest differencing method: as a policy, and as a bare function.

struct KarmarkarKarpOptions {
  bool equal_size = false;
};
inline constexpr PackParameter kKarmarkarKarp[] = {
    parameter::flag<&KarmarkarKarpOptions::equal_size>("equal_size", "parts of equal size")};

Plan plan_karmarkar_karp(const PackingProblem& problem);

// Positions of `weights` in k parts of nearly equal sums, the part with the largest sum first, positions
// rising inside a part. `equal_size`: parts differ by at most one in how many they hold.
std::vector<std::vector<std::uint32_t>> karmarkar_karp(std::span<const double> weights, std::size_t k,
                                                       bool equal_size);

// equipoise: packs for the time of the step (equipoise.cpp).

// Whose steps it packs anew: what arrived together, or what another policy lets wait.
enum class Start { best, plain, fixed_greedy, lpt, karmarkar_karp, wlb, chunkflow, gather, sequence_slices };
inline constexpr std::string_view kStartNames[] = {"best",      "plain",          "fixed-greedy",
                                                   "lpt",       "karmarkar-karp", "wlb",
                                                   "chunkflow", "gather",         "sequence-slices"};

// Documents of a step above `border` tokens run in lanes of `wide` ranks, the others after them in lanes of
// `narrow`; wide 0: all in lanes of the layout's CP degree.
struct StepDegrees {
  int wide = 0, narrow = 0;
  std::int64_t border = 0;
  int times = 1;        // of the wide lanes: so many times the micro-batches of the layout's
  bool spread = false;  // no document stays whole on one rank
  friend constexpr bool operator==(const StepDegrees&, const StepDegrees&) = default;
};

struct EquipoiseOptions {
  Start start = Start::best;
  std::int64_t moves = 40000;    // of a global batch
  double max_delay = 0.5;        // mean token delay, iterations
  std::int64_t look_ahead = 16;  // global batches
  bool place = true;
  bool taper = true;
  bool own_degrees = true;
  // By step of the start: where its own packing stays. Empty: where that is faster by the policy's own clock.
  std::vector<char> keeps;
  std::vector<std::int64_t> chunk_sizes;  // of chunkflow, by step; empty: one for all
  std::vector<StepDegrees> degrees;       // by step of the start; empty: those of the layout
  // Of gather, by document: its step. Empty: searched anew.
  std::vector<std::uint32_t> step_of;
  // By CP degree, most tokens of a micro-batch that recomputes 0, 1, ... layers; none: all recompute what the
  // study says.
  std::map<int, std::vector<std::int64_t>> recompute;
};
constexpr PackParameter acting_where_contents_are_chosen(PackParameter parameter) {
  parameter.acts_when = "where the start is best, gather or sequence-slices";
  parameter.acts = [](const PackOptions& o) {
    const Start start = o.of<EquipoiseOptions>().start;
    return start == Start::best || start == Start::gather || start == Start::sequence_slices;
  };
  return parameter;
}
constexpr PackParameter max_delay_parameter() {
  PackParameter bound = parameter::number<&EquipoiseOptions::max_delay>(
      "max_delay", 0, 1e9, "bound on the mean token delay, in iterations");
  return acting_where_contents_are_chosen(bound);
}
constexpr PackParameter look_ahead_parameter() {
  return acting_where_contents_are_chosen(parameter::integer<&EquipoiseOptions::look_ahead>(
      "look_ahead", 1, 64, "global batches that long documents may move over; start best tries 2 to 16"));
}
inline constexpr PackParameter kEquipoise[] = {
    parameter::choice<&EquipoiseOptions::start>(
        "start", kStartNames,
        "whose steps are packed anew, best by default; best: those of the one that ends fastest; plain: "
        "windows as they came; fixed-greedy: those of fixed-greedy; lpt: of lpt; karmarkar-karp: of "
        "karmarkar-karp; wlb: of wlb; chunkflow: of chunkflow; gather: long documents beside their like; "
        "sequence-slices: those, cut as sequence-slices does"),
    parameter::integer<&EquipoiseOptions::moves>("moves", 0, 1'000'000'000,
                                                 "moves tried for a global batch, 0.3 to 1 us each"),
    max_delay_parameter(),
    look_ahead_parameter(),
    parameter::flag<&EquipoiseOptions::place>("place", "false spreads every document over all CP ranks"),
    parameter::flag<&EquipoiseOptions::taper>("taper", "false makes the micro-batches of a lane equal"),
    parameter::flag<&EquipoiseOptions::own_degrees>(
        "own_degrees", "false leaves all lanes the layout's CP degree; else steps may have others"),
    kMaxTokens};

Plan plan_equipoise(const PackingProblem& problem);

// Its own start (gather.cpp): the step of each document, in the order of arrival, and those steps by lpt.
std::vector<std::uint32_t> gathered_steps(const PackingProblem& problem);
Plan plan_gathered(const PackingProblem& problem);

// L_max; 0 where the start cuts what is longer.
std::int64_t equipoise_limit(const PackOptions& options);

// The search of a start, of the number of micro-batches where the options leave it open, and of what stays of
// the start (OptionSearch).
bool equipoise_searches(const PackOptions& options);
std::vector<std::string> find_equipoise_start(const PackingProblem& problem, const PlanPrices& prices,
                                              PackOptions& found);

}  // namespace equipoise

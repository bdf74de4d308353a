// The packing policies, most of them in the file of their name, and the options of those that have few.
// registry.cpp gives the policies their names. wlb, hbp and skrull have their own headers, and pack_length.h
// has the packers of one length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
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

// Fixed-length packing (WLB-LLM 4.1), and its placement rule as a function, from which fixed-solver starts.

struct FixedLengthOptions {
  std::int64_t pack_window = 1;
};
inline constexpr PackParameter kPackWindow = parameter::integer<&FixedLengthOptions::pack_window>(
    "pack_window", 1, 1 << 20, "global batches packed together");

// A bin is micro_batch_size windows, which gives the window that a document needs.
Room room_by_window(const PackOptions& options, std::int64_t tokens);

Plan plan_fixed_greedy(const PackingProblem& problem);

inline constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

// The bin of each document, or kNowhere. A document goes to the bin with room that has the least sum of
// len^2, ties to the lowest. `lengths` come longest first.
std::vector<std::size_t> place_by_attention(std::span<const std::int64_t> lengths, std::size_t bins,
                                            std::int64_t capacity);

// ChunkFlow's Algorithm 1, which makes chunks of one size.

struct ChunkflowOptions {
  std::int64_t chunk_size = 8192;
};
inline constexpr PackParameter kChunkflow[] = {or_auto(parameter::integer<&ChunkflowOptions::chunk_size>(
                                                   "chunk_size", 1, kLongestSize,
                                                   "tokens of a chunk; auto: the fastest that fits of 1/16, "
                                                   "1/8 .. 1 window; 8K by default, auto in a study "
                                                   "whose row has no keep either")),
                                               kKeep, kStrictKeep};

std::int64_t chunk_tokens(const PackOptions& options);  // chunk_size

// What is tried where they are auto: windows cut into 16, 8 .. 1 chunks, and up to all chunks of the longest
// document kept. What is not kept is computed again, so that more is never slower.
std::vector<std::int64_t> tried_chunk_sizes(const PackOptions& options, std::int64_t longest);
std::vector<std::int64_t> tried_keeps(const PackOptions& options, std::int64_t longest);
inline constexpr TriedSize kTriedOfChunkflow[] = {{"chunk_size", tried_chunk_sizes},
                                                  {"keep", tried_keeps, true}};

Plan plan_chunkflow(const PackingProblem& problem);

// A unit that goes to one lane: a standalone micro-batch, or the dependent chunks of one document.
struct Unit {
  std::vector<MicroBatch> chunks;
  double weight = 0;  // tokens or work
};

// Packs documents of at most `capacity` tokens into the fewest micro-batches of `capacity` tokens into which
// LPT fits (Algorithm 1), ordered by their lowest slice. Weights are tokens.
std::vector<Unit> standalone_units(std::span<const Slice> slices, std::int64_t capacity);

// Cuts a document into chunks, each of which attends to all chunks before it. Chunk i ends at token ends[i]
// of the slice.
Unit dependent_unit(const Slice& slice, std::span<const std::int64_t> ends);

// Distributes units over lanes, heaviest first to the least loaded; inside a lane they keep their order.
// Where lanes wait for each other, the first `in_rows` units go to them in rows, with one unit of equally
// many chunks for each lane.
Step step_of_units(std::vector<Unit>&& units, const PackOptions& options, std::size_t in_rows = 0);

// Sequence slices (Seq1F1B, SlimPipe, InfiniPipe) cut long documents into slices of equal work.

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

// Karmarkar and Karp's largest differencing method, as a policy and as a function.

struct KarmarkarKarpOptions {
  bool equal_size = false;
};
inline constexpr PackParameter kKarmarkarKarp[] = {
    parameter::flag<&KarmarkarKarpOptions::equal_size>("equal_size", "parts of equal size")};

Plan plan_karmarkar_karp(const PackingProblem& problem);

// The indices of `weights` in k parts of nearly equal sums. The part with the largest sum comes first, and
// indices rise inside a part. `equal_size`: parts differ by at most one in size.
std::vector<std::vector<std::uint32_t>> karmarkar_karp(std::span<const double> weights, std::size_t k,
                                                       bool equal_size);

// equipoise packs for the time of the step (equipoise.cpp).

// The policy whose steps it packs anew.
enum class Start { best, plain, fixed_greedy, lpt, karmarkar_karp, wlb, chunkflow, gather, sequence_slices };
inline constexpr std::string_view kStartNames[] = {"best",      "plain",          "fixed-greedy",
                                                   "lpt",       "karmarkar-karp", "wlb",
                                                   "chunkflow", "gather",         "sequence-slices"};

// Documents of a step above `border` tokens run in lanes of `wide` ranks, then the others in lanes of
// `narrow` ranks. wide 0: all run in lanes of the layout's CP degree.
struct StepDegrees {
  int wide = 0, narrow = 0;
  std::int64_t border = 0;
  int times = 1;        // the wide lanes have so many times the micro-batches of the layout's lanes
  bool spread = false;  // whether no document stays whole on one rank
  friend constexpr bool operator==(const StepDegrees&, const StepDegrees&) = default;
};

struct EquipoiseOptions {
  Start start = Start::best;
  std::int64_t moves = 40000;    // moves per global batch
  double max_delay = 0.5;        // mean token delay, iterations
  std::int64_t look_ahead = 16;  // global batches
  bool place = true;
  bool taper = true;
  bool own_degrees = true;
  bool searched = false;  // whether a search found these options, by its prices
  // By step of the start: whether its packing is kept. Empty: it is kept where it is faster by the policy's
  // own clock.
  std::vector<char> keeps;
  std::vector<std::int64_t> chunk_sizes;  // chunk sizes of chunkflow by step; empty: one for all
  std::vector<StepDegrees> degrees;       // CP degrees by step of the start; empty: the layout's
  // The step of each document in gather. Empty: gather searches it.
  std::vector<std::uint32_t> step_of;
  // By CP degree: the most tokens of a micro-batch that recomputes 0, 1, ... layers. Empty: all recompute as
  // the study states.
  std::map<int, std::vector<std::int64_t>> recompute;
  // The plan by which a search found these options. Null: it is made again.
  std::shared_ptr<const Plan> made;
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
        "karmarkar-karp; wlb: of wlb; chunkflow: of chunkflow; gather: long documents gathered in few "
        "steps; "
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

// The start of gather.cpp: the step of each document in arrival order, and these steps packed by lpt.
std::vector<std::uint32_t> gathered_steps(const PackingProblem& problem);
Plan plan_gathered(const PackingProblem& problem);

// Whether the start cuts long documents.
bool equipoise_cuts_long(const PackOptions& options);
// Whether it cuts any, as plain does at its windows.
bool equipoise_cuts(const PackOptions& options);
// L_max; 0 where the start cuts longer documents.
std::int64_t equipoise_limit(const PackOptions& options);

// Searches the start, the number of micro-batches where the options leave it open, and the steps that keep
// the start's packing (OptionSearch).
bool equipoise_searches(const PackOptions& options);
Notes find_equipoise_start(const PackingProblem& problem, const PlanPrices& prices, PackOptions& found);

}  // namespace equipoise

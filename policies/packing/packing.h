// The packing policies without options of their own, those of padded batches, and equipoise with its options.
// Every other policy has a header of its name, and pack_length.h has the packers of one length. registry.cpp
// gives the policies their names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
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

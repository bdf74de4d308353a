// The definition of a packing policy, the table of all policies, and which keys of a study each of them uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policies/batches.h"
#include "policies/options.h"
#include "policies/parameter.h"
#include "policies/plan.h"
#include "policies/workload.h"

namespace equipoise {

struct ShardPolicy;  // policies/sharding/sharding.h

// Takes the steps of a plan while the policy makes them, so that a long plan is never whole in memory.
struct StepSink {
  std::size_t block = 1;  // steps that it takes at a time
  // Called with the next steps in their order, which it may move from. The list is empty afterwards.
  std::function<void(std::vector<Step>&)> take;
};

struct PackingProblem {
  Batches batches;
  const PackOptions& options;
  const Workload& workload;
  const StepSink* sink = nullptr;  // null: the plan has all steps
};

enum class BatchKind { windows, documents };  // the loader's default; every policy accepts both

// What a study derives from its models where its file does not give it.
enum class Derives {
  nothing,
  max_tokens,   // L_max: the largest micro-batch that fits
  bucket_size,  // BucketSize: the most tokens that fit on a CP rank
  groups        // pack lengths with CP degrees and checkpointed layers
};

// The key of the derived value; empty for none.
constexpr std::string_view key_of(Derives derives) {
  switch (derives) {
    case Derives::max_tokens:
      return "max_tokens";
    case Derives::bucket_size:
      return "bucket_size";
    case Derives::groups:
      return "groups";
    case Derives::nothing:
      break;
  }
  return {};
}

// The prices that a search for options needs. The caller computes them by simulation or by a formula.
struct PlanPrices {
  std::function<double(const Plan&)> seconds;  // seconds of all steps of a plan
  // The functions below are empty where there is no memory model.
  std::function<double(const Plan&)>
      seconds_that_fit;  // the same; infinite where a step does not fit in memory
  // The seconds of each step; infinite where it does not fit in memory.
  std::function<std::vector<double>(const Plan&)> steps_that_fit;
  // The fewest checkpointed layers with which packs of `length` tokens fit in memory on `degree` ranks.
  // Negative: they never fit, or the layout has no groups of that degree.
  std::function<int(std::int64_t length, int degree)> layers;
  std::vector<int> degrees;  // rising CP degrees that a lane may have; empty: only the layout's
};

// A search for options by the prices of whole plans, which runs before the policy packs.
struct OptionSearch {
  bool (*is_open)(const PackOptions&) = nullptr;  // whether the options ask for a search
  bool by_memory = false;                         // whether it needs a memory model
  // Returns why nothing can be found with these prices, or nothing. Null: the search always finds something.
  std::optional<Note> (*hopeless)(const PackOptions&, const PlanPrices&) = nullptr;
  // Writes the options into `found`, which may be problem.options. Returns notes for the user.
  Notes (*find)(const PackingProblem& problem, const PlanPrices& prices, PackOptions& found) = nullptr;

  [[nodiscard]] bool is_open_in(const PackOptions& options) const {
    return is_open != nullptr && is_open(options);
  }
};

// A size that a study finds by trials where its value is auto.
struct TriedSize {
  std::string_view key;
  // Rising values. `longest`: tokens of the longest document; 0: unknown.
  std::vector<std::int64_t> (*values)(const PackOptions&, std::int64_t longest) = nullptr;
  bool most_is_fastest = false;  // of the values that fit, so that no other needs a trial
};

// A change of the options that makes room for a document of some length.
struct Room {
  std::string_view key;  // the key that changes
  Note change;           // "pack_length 131072"
  PackOptions options;
};

// A Room made by a larger value of one member.
template <auto Member>
Room room_by(std::string_view key, std::int64_t value, PackOptions options) {
  parameter::field<Member>(options) = value;
  return {key, change_note(key, value), std::move(options)};
}

// A policy as the registry defines it. Members that a definition does not name have the defaults below.
struct Policy {
  std::string_view name;     // the name typed after --policy
  std::string_view paper;    // source of the policy
  std::string_view summary;  // one line for `list policies`
  BatchKind batches = BatchKind::windows;
  bool sees_whole_set =
      false;  // whether it packs the whole document set at once, so that token delay is null
  Plan (*plan)(const PackingProblem&) =
      nullptr;  // the algorithm alone; make_plan adds what all policies share
  std::span<const PackParameter> parameters =
      {};  // keys of a study's entry, in addition to those of every policy
  // Shared keys that have an effect on the policy: context_window and sequences_per_step of the study (also
  // for document batches), and cost of its entry where it prices documents.
  std::span<const std::string_view> study_keys = {};
  // The longest document that the policy can place, for --oversize; null or 0: any length.
  std::int64_t (*hard_limit)(const PackOptions&) = nullptr;
  // Changes of options that make room for a document of so many tokens; null: no document is too long.
  Room (*room_for)(const PackOptions&, std::int64_t tokens) = nullptr;

  // Defaults of a study that does not set them.
  std::string_view shard = "per-sequence";
  std::string_view schedule = {};  // empty: the study's
  CostKind cost = CostKind::profiled;
  Derives derives = Derives::nothing;
  OptionSearch search = {};

  // Properties of its plans.
  // The most tokens of a micro-batch under the given options; 0: they set no bound. Null: they never set one.
  std::int64_t (*micro_batch_tokens)(const PackOptions&) = nullptr;
  // Whether it cuts documents under the given options. Null: it leaves them whole.
  bool (*cuts)(const PackOptions&) = nullptr;
  bool places_documents = false;  // places documents on CP ranks (Skrull)
  bool chooses_degrees = false;   // chooses a CP degree for each lane
  bool packs_for_time = false;    // its row shows the gap to a lower bound on the time of any plan
  bool pads_documents = false;    // pads each document to the longest of its micro-batch
  bool streams = false;           // makes its steps one after the other (add_step), not all at the end
  bool solves = false;            // runs a solver, which takes far longer than a heuristic
  // Sizes that may be auto, each tried inside those before it. All are where a study gives none of them.
  std::span<const TriedSize> tried = {};
  // Options that size micro-batches, in the order in which smaller values should be tried to save memory.
  std::span<const std::string_view> sizes = {};

  // Whether its plans may cut documents, by the policy itself or by Oversize::split before it.
  [[nodiscard]] bool cuts_documents(const PackOptions& options) const {
    return (cuts != nullptr && cuts(options)) ||
           (hard_limit != nullptr && options.oversize == Oversize::split);
  }
};

// All packing policies, in help order.
std::span<const Policy> packing_policies();

// Finds a policy by name. Throws UserError with the nearest known name.
const Policy& packing_policy(std::string_view name);

// Queries on the definitions of all policies and rules: the keys, and the users of a key.

// The distinct keys of all packing policies in the registry's order; those of every policy come last.
std::span<const PackParameter> pack_parameters();
// The distinct keys of all sharding rules.
std::span<const ShardParameter> shard_parameters();

// The definition of a key; null where no policy has it.
const PackParameter* pack_parameter(std::string_view key);
// The policy's own definition, which says when the key acts on it; null where it has none.
const PackParameter* pack_parameter(const Policy& policy, std::string_view key);

// Whether `key` belongs to certain policies or rules. Other keys (order, verify, schedule) apply to all.
bool is_policy_key(std::string_view key);

// Whether `key` has an effect on this policy or sharding rule, as a key that applies to all has.
bool uses_key(const Policy& policy, std::string_view key);
bool uses_key(const ShardPolicy& rule, std::string_view key);
// Whether `key` is one of the policy's own.
bool has_key(const Policy& policy, std::string_view key);
bool has_key(const ShardPolicy& rule, std::string_view key);

// Whether only rules have the key, as remainder, pad and block.
bool is_shard_key(std::string_view key);

// The help of a key as users see it. It names the users of the key where they are few.
std::string help_of_key(std::string_view key, std::string_view help);

// Names of the packing policies and sharding rules that have the key, in the registry's order.
std::vector<std::string_view> users_of_key(std::string_view key);

}  // namespace equipoise

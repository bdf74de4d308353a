// What a packing policy is, the one table of all of them, and what their definitions say of the keys of a
// study.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policies/options.h"
#include "policies/parameter.h"
#include "policies/plan.h"
#include "policies/workload.h"

namespace equipoise {

struct ShardPolicy;  // policies/sharding/sharding.h

// What the loader hands to a policy for one optimizer step (policies/loader.h makes it).
struct GlobalBatch {
  std::vector<Slice> slices;              // in arrival order
  std::vector<std::size_t> window_begin;  // window batches: first slice of each window, and slices.size()
};

struct PackingProblem {
  std::span<const GlobalBatch> batches;
  const PackOptions& options;
  const Workload& workload;
};

enum class BatchKind { windows, documents };  // what the loader gives by default; both are accepted

// What a study derives from its models where its file is silent.
enum class Derives {
  nothing,
  max_tokens,   // L_max: the largest micro-batch that fits
  bucket_size,  // BucketSize: the most tokens that fit on a CP rank
  groups        // pack lengths with their CP degrees and checkpointed layers
};

// The key that gives what is derived; empty for nothing.
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

// What a search for options asks of the machine; the caller answers by simulation or by a formula.
struct PlanPrices {
  std::function<double(const Plan&)> seconds;  // of all steps
  // Those below are empty where there is no memory model.
  std::function<double(const Plan&)> seconds_that_fit;  // the same, infinite where a step does not fit
  // The seconds of each step, infinite where it does not fit.
  std::function<std::vector<double>(const Plan&)> steps_that_fit;
  // Fewest layers to checkpoint with which packs of `length` tokens on `degree` ranks fit; negative: they
  // never do, or the layout has no groups of that degree.
  std::function<int(std::int64_t length, int degree)> layers;
  std::vector<int>
      degrees;  // CP degrees that a lane may have, rising; empty: only the layout's is known to be one
};

// Options that a policy finds by the prices of whole plans, before it packs.
struct OptionSearch {
  bool (*is_open)(const PackOptions&) = nullptr;  // whether the options leave them to a search
  bool by_memory = false;                         // it needs a memory model
  // Why nothing can be found with these prices, else nothing; null: something always is.
  std::string (*hopeless)(const PackOptions&, const PlanPrices&) = nullptr;
  // Puts what it found into `found`, which may be problem.options. Returns notes for the user.
  std::vector<std::string> (*find)(const PackingProblem& problem, const PlanPrices& prices,
                                   PackOptions& found) = nullptr;

  [[nodiscard]] bool is_open_in(const PackOptions& options) const {
    return is_open != nullptr && is_open(options);
  }
};

// A change of the options with which a document of some length could be placed.
struct Room {
  std::string_view key;  // the one that changes
  std::string text;      // "pack_length 131072"
  PackOptions options;
};

// A Room by a larger value of one member.
template <auto Member>
Room room_by(std::string_view key, std::int64_t value, PackOptions options) {
  parameter::field<Member>(options) = value;
  return {key, std::string(key) + ' ' + std::to_string(value), std::move(options)};
}

// A policy as the registry defines it; what is not named is as below.
struct Policy {
  std::string_view name;     // as typed after --policy
  std::string_view paper;    // where it comes from
  std::string_view summary;  // one line for `list policies`
  BatchKind batches = BatchKind::windows;
  bool sees_whole_set = false;                    // packs the whole document set at once: token delay is null
  Plan (*plan)(const PackingProblem&) = nullptr;  // the bare algorithm; make_plan adds what all share
  std::span<const PackParameter> parameters = {};  // keys of a study's entry, beside those of every policy
  // Keys of the study that mean something to it: context_window, sequences_per_step (where batches are of
  // documents, too), and of its entry: cost, where it prices documents.
  std::span<const std::string_view> study_keys = {};
  // Most tokens of one document that the policy can place, for --oversize; null or 0: any length.
  std::int64_t (*hard_limit)(const PackOptions&) = nullptr;
  // How to place a document of so many tokens; null: nothing is ever too long.
  Room (*room_for)(const PackOptions&, std::int64_t tokens) = nullptr;

  // What a study takes where its file is silent.
  std::string_view shard = "per-sequence";
  std::string_view schedule = {};  // empty: the study's
  CostKind cost = CostKind::profiled;
  Derives derives = Derives::nothing;
  OptionSearch search = {};

  // What is known of its plans:
  // Most tokens of a micro-batch where the options as given bound it, 0 where they do not; null: they never
  // do.
  std::int64_t (*micro_batch_tokens)(const PackOptions&) = nullptr;
  bool places_documents = false;  // on CP ranks (Skrull)
  bool chooses_degrees = false;   // a CP degree for each lane
  bool packs_for_time = false;    // its row says how far it is from the least time of any plan
  bool pads_documents = false;    // each to the longest of its micro-batch
  // Sizes of micro-batches, in the order in which a smaller one is worth trying to save memory.
  std::span<const std::string_view> sizes = {};
};

// All packing policies, in help order.
std::span<const Policy> packing_policies();

// The policy of that name. Throws UserError with the nearest known name.
const Policy& packing_policy(std::string_view name);

// Runs the policy with what all policies share: documents above its hard limit go the way of
// options.oversize (UserError by default), lanes are put into options.order, the time is measured into
// Step::pack_ms, and in debug builds or with options.verify the validator checks the plan.
Plan make_plan(const Policy& policy, const PackingProblem& problem);

// The order of micro-batches in a lane, an option of every policy.
//
// as_packed leaves the plan alone. descending: by W (sum over the slices), stable. bell: that order's even
// positions reversed, then its odd ones, so work rises to the largest and falls again (ranks 4 2 0 1 3).
// Chunks of dependent groups keep their places: the schedule needs them in order, after the others.
// O(m log m) for m micro-batches of a lane, plus one W for each slice.
void order_micro_batches(Plan& plan, Order order, const Workload& workload);

// Questions to the definitions of all policies and rules: which keys there are, and who uses one.

// Every key that a study's entry can say to some packing policy, each once, in the order of the registry;
// those of every policy last.
std::span<const PackParameter> pack_parameters();
// The same of sharding rules.
std::span<const ShardParameter> shard_parameters();

// The definition of a key; null if no policy has it.
const PackParameter* pack_parameter(std::string_view key);

// Whether `key` is some policy's or rule's own. Keys of none (order, verify, schedule ...) concern
// all.
bool is_policy_key(std::string_view key);

// Whether `key` means something to this policy, or to this sharding rule. True for keys that concern all.
bool uses_key(const Policy& policy, std::string_view key);
bool uses_key(const ShardPolicy& rule, std::string_view key);
// Whether it is its own.
bool has_key(const Policy& policy, std::string_view key);
bool has_key(const ShardPolicy& rule, std::string_view key);

// Keys of rules only (remainder, pad, block ...).
bool is_shard_key(std::string_view key);

// The help of a key as users see it: who uses it, where few do, and what it says.
std::string help_of_key(std::string_view key, std::string_view help);

// Names of the packing policies and sharding rules that have the key, in the registry's order.
std::vector<std::string_view> users_of_key(std::string_view key);

}  // namespace equipoise

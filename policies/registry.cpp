// The one table of packing policies, in help order. To add a policy, write its file in packing/, its options
// and their keys in packing/packing.h if it has any, its definition here, and tests of its laws in
// tests/policies/.
#include <algorithm>

#include "policies/base/text.h"
#include "policies/cp_degree/cp_grid.h"
#include "policies/packing/chunkflow.h"
#include "policies/packing/fixed_greedy.h"
#include "policies/packing/hbp.h"
#include "policies/packing/karmarkar_karp.h"
#include "policies/packing/pack_length.h"
#include "policies/packing/packing.h"
#include "policies/packing/sequence_slices.h"
#include "policies/packing/skrull.h"
#include "policies/packing/wlb.h"
#include "policies/parameter.h"
#include "policies/policy.h"
#include "policies/sharding/sharding.h"
#include "policies/solver/skrull_solver.h"
#include "policies/solver/solvers.h"
#include "policies/steps.h"

namespace equipoise {
namespace {

using Name = std::string_view;
constexpr Name kBatch[] = {"context_window", "sequences_per_step"};
constexpr Name kBatchCost[] = {"context_window", "sequences_per_step", "cost"};
constexpr Name kWindow[] = {"context_window"};
constexpr Name kWindowCost[] = {"context_window", "cost"};
constexpr Name kCost[] = {"cost"};

constexpr Name kMaxTokensSize[] = {"max_tokens"};
constexpr Name kChunkflowSizes[] = {"keep", "chunk_size"};
constexpr Name kBucketSizes[] = {"bucket_size"};

constexpr PackParameter kBins[] = {kMicroBatches};
constexpr PackParameter kBinsOversize[] = {kMicroBatches, kOversize};
constexpr PackParameter kOnlyOversize[] = {kOversize};
constexpr PackParameter with_budget(PackParameter cost) {
  cost.acts_when = "with tokens_per_micro_batch";
  cost.acts = [](const PackOptions& o) { return o.of<TokenBudget>().tokens_per_micro_batch > 0; };
  return cost;
}
// Policies in arrival order have only the budget's keys.
constexpr PackParameter kArrivalBudget[] = {kTokenBudget[0], with_budget(kTokenBudget[1]),
                                            with_budget(kTokenBudget[2])};
constexpr PackParameter kPadded[] = {kPadding, kTokensPerMicroBatch};
constexpr PackParameter kDrawn[] = {kSeed, kShuffle};
constexpr PackParameter kLength[] = {kPackLength, kOversize};
constexpr PackParameter kOrdered[] = {kPackOrder};
constexpr PackParameter kWindowed[] = {kPackWindow};
constexpr PackParameter kRank[] = {kTokensPerRank, kBucketSize, kOversize};

constexpr auto kSortedKeys = join(kPadded, kDrawn);
constexpr auto kDrawnLengthKeys = join(kLength, kDrawn);
constexpr auto kFixedGreedyKeys = join(kBinsOversize, kWindowed);
constexpr auto kFixedSolverKeys = join(kBinsOversize, kWindowed, kSolver);
constexpr auto kVarlenSolverKeys = join(kBinsOversize, kWlbQueues, kSolver);
constexpr auto kWlbKeys = join(kBinsOversize, kWlbQueues, kWlbSearch);
constexpr auto kEquipoiseKeys = join(kBinsOversize, kEquipoise);
constexpr auto kPackerKeys = join(kLength, kOrdered, kDrawn);
constexpr auto kIsfKeys = join(kLength, kOrdered, kDrawn, kIsf);
constexpr auto kHbpKeys = join(kLength, kDrawn, kIsf, kHbp);
constexpr auto kSkrullKeys = join(kSkrull, kOnlyOversize);
constexpr PackParameter kBucket[] = {kBucketSize};
constexpr auto kSkrullSolverKeys = join(kBucket, kOnlyOversize, kSolver);
constexpr auto kRoundRobinKeys = join(kSkrull, kOnlyOversize, kRoundRobin);
constexpr auto kPlainKeys = join(kBins, kArrivalBudget);
constexpr auto kBudgetKeys = join(kBins, kTokenBudget);
constexpr auto kKarmarkarKarpKeys = join(kBins, kTokenBudget, kKarmarkarKarp);
constexpr auto kFlexspKeys = join(kRank, kFlexsp);
constexpr auto kDegreeKeys = join(kRank, kGroupDegrees);

using Keys = std::span<const PackParameter>;
using Algorithm = Plan (*)(const PackingProblem&);

constexpr Policy policy_of(Name name, Name paper, Name summary, Algorithm plan, Keys parameters) {
  Policy policy;
  policy.name = name;
  policy.paper = paper;
  policy.summary = summary;
  policy.plan = plan;
  policy.parameters = parameters;
  return policy;
}

// Families whose policies differ only in the arguments.
constexpr Policy packer(Name name, Name paper, Name summary, Algorithm plan, Keys parameters) {
  Policy policy = policy_of(name, paper, summary, plan, parameters);
  policy.sees_whole_set = true;
  policy.study_keys = kWindow;
  policy.hard_limit = pack_length;
  policy.room_for = room_by_pack_length;
  policy.micro_batch_tokens = pack_length;
  return policy;
}
template <Algorithm plan>
constexpr Policy skrull(Name name, Name paper, Name summary, Keys parameters) {
  Policy policy = policy_of(name, paper, summary, plan, parameters);
  policy.search = {.is_open = searches_bucket, .by_memory = true, .find = find_bucket_of<plan>};
  policy.batches = BatchKind::documents;
  policy.study_keys = kCost;
  policy.hard_limit = skrull_hard_limit;
  policy.room_for = room_by_bucket;
  policy.derives = Derives::bucket_size;
  policy.micro_batch_tokens = skrull_micro_batch_tokens;
  policy.streams = true;
  policy.sizes = kBucketSizes;
  return policy;
}
constexpr Policy by_degree(Name name, Name paper, Name summary, Algorithm plan, Keys parameters,
                           std::span<const Name> study_keys) {
  Policy policy = policy_of(name, paper, summary, plan, parameters);
  policy.batches = BatchKind::documents;
  policy.study_keys = study_keys;
  policy.hard_limit = cp_grid_hard_limit;
  policy.room_for = room_by_rank;
  policy.micro_batch_tokens = cp_grid_micro_batch_tokens;
  policy.sizes = kBucketSizes;
  policy.chooses_degrees = true;
  policy.streams = true;
  return policy;
}
template <std::int64_t (*limit)(const PackOptions&)>
constexpr Policy limited_to(Policy policy) {
  policy.hard_limit = limit;
  return policy;
}
constexpr Policy fixed_length(Name name, Name summary, Algorithm plan, Keys parameters) {
  Policy policy = policy_of(name, "WLB-LLM 4.1", summary, plan, parameters);
  policy.study_keys = kBatch;
  policy.hard_limit = micro_batch_capacity;
  policy.room_for = room_by_window;
  return policy;
}
constexpr Policy variable_length(Name name, Name paper, Name summary, Algorithm plan, Keys parameters) {
  Policy policy = policy_of(name, paper, summary, plan, parameters);
  policy.study_keys = kBatchCost;
  policy.hard_limit = max_tokens;
  policy.room_for = room_by_max_tokens;
  policy.derives = Derives::max_tokens;
  policy.micro_batch_tokens = given_max_tokens;
  policy.sizes = kMaxTokensSize;
  return policy;
}
constexpr Policy placing(Policy policy) {
  policy.shard = "per-document";
  policy.places_documents = true;
  return policy;
}
constexpr Policy packing_for_time(Policy policy) {
  policy.shard = "adaptive";
  policy.places_documents = policy.packs_for_time = true;
  return policy;
}
constexpr Policy streaming(Policy policy) {
  policy.streams = true;
  return policy;
}
template <bool (*cuts)(const PackOptions&)>
constexpr Policy cutting(Policy policy) {
  policy.cuts = cuts;
  return policy;
}
constexpr bool always(const PackOptions&) {
  return true;
}
constexpr Policy costing_flops(Policy policy) {
  policy.cost = CostKind::flops;
  return policy;
}

constexpr Policy solving(Policy policy) {
  policy.solves = true;
  return policy;
}

// It takes the bucket with which the simpler policies are fastest.
constexpr Policy skrull_solved(Policy policy) {
  policy.plan = plan_skrull_solver;
  policy.hard_limit = skrull_solver_hard_limit;
  policy.streams = false;
  return solving(policy);
}

constexpr Policy searching(Policy policy, const OptionSearch& search) {
  policy.search = search;
  return policy;
}

constexpr Policy kPolicies[] = {
    // In arrival order.
    {.name = "plain",
     .paper = "WLB-LLM (Plain-4D)",
     .summary = "The loader's windows as they are",
     .plan = plan_plain,
     .parameters = kPlainKeys,
     .study_keys = kBatch,
     .cuts = always,
     .streams = true},
    packer("random", "HBP", "Shuffled, next-fit to the pack length", plan_in_order<pack_random>,
           kDrawnLengthKeys),
    {.name = "padded",
     .paper = "Skrull, HBP",
     .summary = "One document a sequence, padded to the longest of its micro-batch",
     .batches = BatchKind::documents,
     .plan = plan_padded,
     .parameters = kPadded,
     .pads_documents = true,
     .streams = true},
    {.name = "sorted",
     .paper = "LongAlign",
     .summary = "Padded batches of documents of like length, in shuffled order",
     .batches = BatchKind::documents,
     .sees_whole_set = true,
     .plan = plan_sorted,
     .parameters = kSortedKeys,
     .pads_documents = true},
    packer("longalign-packing", "LongAlign", "Next-fit to the pack length in data order",
           plan_in_order<pack_next_fit>, kLength),
    // WLB-LLM.
    streaming(fixed_length("fixed-greedy", "Fixed-length: longest first to the least sum of len^2 with room",
                           plan_fixed_greedy, kFixedGreedyKeys)),
    solving(fixed_length("fixed-solver", "The same as an integer program: least largest sum of len^2",
                         plan_fixed_solver, kFixedSolverKeys)),
    solving(variable_length("varlen-solver", "WLB-LLM 4.2", "An integer program on work, started from wlb",
                            plan_varlen_solver, kVarlenSolverKeys)),
    searching(
        streaming(variable_length("wlb", "WLB-LLM Alg. 1",
                                  "Variable-length by work, outliers delayed in queues", plan_wlb, kWlbKeys)),
        {.is_open = wlb_searches, .find = find_wlb_thresholds}),
    searching(packing_for_time(cutting<equipoise_cuts>(limited_to<equipoise_limit>(variable_length(
                  "equipoise", "this project", "Packs, orders and places documents for the time of the step",
                  plan_equipoise, kEquipoiseKeys)))),
              {.is_open = equipoise_searches, .find = find_equipoise_start}),
    // ChunkFlow.
    {.name = "chunkflow",
     .paper = "ChunkFlow Alg. 1",
     .summary = "Chunks of one size: short documents packed, long ones cut",
     .batches = BatchKind::documents,
     .plan = plan_chunkflow,
     .parameters = kChunkflow,
     .schedule = "state-aware-1f1b",
     .micro_batch_tokens = chunk_tokens,
     .cuts = always,
     .streams = true,
     .tried = kTriedOfChunkflow,
     .sizes = kChunkflowSizes},
    // Seq1F1B, SlimPipe, InfiniPipe.
    {.name = "sequence-slices",
     .paper = "Seq1F1B; InfiniPipe",
     .summary = "Long documents cut into slices of equal work, short ones packed to a slice's size",
     .batches = BatchKind::documents,
     .plan = plan_sequence_slices,
     .parameters = kSequenceSlices,
     .study_keys = kCost,
     .schedule = "seq1f1b",
     .cuts = always,
     .streams = true},
    // Packers of one length, and HBP.
    packer("ffd", "HBP", "First-fit decreasing", plan_mixed<pack_ffd>, kPackerKeys),
    packer("ffs", "HBP", "First-fit in shuffled order", plan_mixed<pack_ffs>, kPackerKeys),
    packer("bfs", "HBP", "Best-fit in shuffled order", plan_mixed<pack_bfs>, kPackerKeys),
    packer("bfd", "classic", "Best-fit decreasing", plan_mixed<pack_bfd>, kPackerKeys),
    packer("spfhp", "Krell et al.", "Shortest pack first, on the histogram of lengths",
           plan_mixed<pack_spfhp>, kPackerKeys),
    packer("isf", "HBP", "Shuffle, next-fit, keep full packs; ten rounds", plan_isf, kIsfKeys),
    {.name = "hbp",
     .paper = "HBP",
     .summary = "Groups of pack lengths with their own CP degree, balanced iterations",
     .sees_whole_set = true,
     .plan = plan_hbp,
     .parameters = kHbpKeys,
     .study_keys = kWindow,
     .hard_limit = hbp_hard_limit,
     .room_for = room_by_groups,
     .derives = Derives::groups,
     .search = {hbp_searches, true, no_hbp_group, find_hbp_groups},
     .micro_batch_tokens = shortest_group},
    // Skrull.
    costing_flops(skrull<plan_gds>(
        "gds", "Skrull Alg. 2", "Documents to lanes by cost, then interleaved by length into micro-batches",
        kSkrullKeys)),
    costing_flops(
        placing(skrull<plan_skrull>("skrull", "Skrull Alg. 1 + 2",
                                    "gds, with short documents whole on one CP rank (DACP)", kSkrullKeys))),
    skrull_solved(placing(skrull<plan_skrull>(
        "skrull-solver", "Skrull Eq. 8-11",
        "What gds and DACP decide as one integer program: the fastest slowest lane", kSkrullSolverKeys))),
    placing(skrull<plan_round_robin>("round-robin", "Skrull Alg. 4",
                                     "gds, with documents dealt to the CP rank with the most room",
                                     kRoundRobinKeys)),
    // Further balancers.
    {.name = "lpt",
     .paper = "Graham",
     .summary = "Largest cost first to the least loaded micro-batch",
     .plan = plan_lpt,
     .parameters = kBudgetKeys,
     .study_keys = kBatchCost,
     .streams = true},
    {.name = "karmarkar-karp",
     .paper = "Karmarkar and Karp; verl",
     .summary = "k-way largest differencing over the micro-batches",
     .plan = plan_karmarkar_karp,
     .parameters = kKarmarkarKarpKeys,
     .study_keys = kBatchCost,
     .streams = true},
    packer("multipack", "OpenChat", "Longest prefix that LPT fits into one pack a lane",
           plan_in_order<pack_multipack>, kLength),
    packer("dp-balanced", "Megatron-Core", "Next-fit, packs raised to a multiple of the lanes",
           plan_in_order<pack_dp_balanced>, kLength),
    // A CP degree for each document.
    by_degree("hybrid-cp", "Megatron-Core", "CP degree by length, rounds of groups balanced within 5%",
              plan_hybrid_cp, kDegreeKeys, kWindow),
    by_degree("dynamic-cp", "Megatron-Core", "CP degree by load, documents packed a group, in rounds",
              plan_dynamic_cp, kDegreeKeys, kWindowCost),
    solving(limited_to<flexsp_hard_limit>(
        by_degree("flexsp", "FlexSP", "One layout of CP groups a step, the slowest as fast as can be",
                  plan_flexsp, kFlexspKeys, kWindowCost))),
};

template <class List>
bool holds(const List& keys, std::string_view key) {
  return std::any_of(keys.begin(), keys.end(), [&](const auto& own) { return own.key == key; });
}

template <class Parameter, class List>
void append_new(const List& keys, std::vector<Parameter>& all) {
  for (const Parameter& key : keys)
    if (!holds(all, key.key)) all.push_back(key);
}

}  // namespace

std::span<const Policy> packing_policies() {
  return kPolicies;
}

const Policy& packing_policy(std::string_view name) {
  return find_named(kPolicies, name, "policy");
}

std::span<const PackParameter> pack_parameters() {
  static const std::vector<PackParameter> kAll = [] {
    std::vector<PackParameter> all;
    for (const Policy& policy : packing_policies()) append_new(policy.parameters, all);
    append_new(kOfEveryPolicy, all);
    return all;
  }();
  return kAll;
}

std::span<const ShardParameter> shard_parameters() {
  static const std::vector<ShardParameter> kAll = [] {
    std::vector<ShardParameter> all;
    for (const ShardPolicy& rule : sharding_policies()) append_new(rule.parameters, all);
    return all;
  }();
  return kAll;
}

static const PackParameter* found(std::span<const PackParameter> parameters, std::string_view key) {
  const auto it = std::ranges::find(parameters, key, &PackParameter::key);
  return it == parameters.end() ? nullptr : &*it;
}

const PackParameter* pack_parameter(std::string_view key) {
  return found(pack_parameters(), key);
}

const PackParameter* pack_parameter(const Policy& policy, std::string_view key) {
  return found(policy.parameters, key);
}

bool has_key(const Policy& policy, std::string_view key) {
  return holds(policy.parameters, key) ||
         std::find(policy.study_keys.begin(), policy.study_keys.end(), key) != policy.study_keys.end();
}

bool has_key(const ShardPolicy& rule, std::string_view key) {
  return holds(rule.parameters, key) || (rule.places_documents && key == "cost");
}

bool is_policy_key(std::string_view key) {
  return !users_of_key(key).empty();
}

bool uses_key(const Policy& policy, std::string_view key) {
  return has_key(policy, key) || !is_policy_key(key);
}

bool uses_key(const ShardPolicy& rule, std::string_view key) {
  return has_key(rule, key) || !is_policy_key(key);
}

bool is_shard_key(std::string_view key) {
  return holds(shard_parameters(), key) && !holds(pack_parameters(), key);
}

std::vector<std::string_view> users_of_key(std::string_view key) {
  std::vector<std::string_view> names;
  for (const Policy& policy : packing_policies())
    if (has_key(policy, key)) names.push_back(policy.name);
  for (const ShardPolicy& rule : sharding_policies())
    if (has_key(rule, key)) names.push_back(rule.name);
  return names;
}

std::string help_of_key(std::string_view key, std::string_view help) {
  constexpr std::size_t kMostNamed = 7;
  const std::vector<std::string_view> users = users_of_key(key);
  if (users.empty() || users.size() > kMostNamed) return std::string(help);
  return joined(users) + ": " + std::string(help);
}

}  // namespace equipoise

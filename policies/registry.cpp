// The one table of packing policies, in help order. To add one: a file in packing/, its line in
// packing/packing.h and in CMakeLists.txt, a row here with the keys that it uses, a test.
#include <array>
#include <string>

#include "policies/base/names.h"
#include "policies/cp_degree/cp_grid.h"
#include "policies/packing/hbp.h"
#include "policies/packing/packing.h"
#include "policies/policy.h"
#include "policies/skrull/gds.h"
#include "policies/solver/solved_steps.h"
#include "policies/step_shape.h"

namespace equipoise {
namespace {

constexpr auto kWindows = BatchKind::windows;
constexpr auto kDocuments = BatchKind::documents;

// The longest group of hbp: what it can place at most.
std::int64_t longest_group(const PackOptions& options) {
  return hbp_groups(options).back().length;
}

using Key = std::string_view;
constexpr std::span<const Key> kNoKeys;
constexpr Key kPlainKeys[] = {"context_window", "sequences_per_step", "micro_batches"};
constexpr Key kRandomKeys[] = {"context_window", "sequences_per_step", "pack_length", "oversize", "seed",
                               "shuffle"};
constexpr Key kSortedKeys[] = {"seed", "shuffle"};
constexpr Key kNextFitKeys[] = {"context_window", "sequences_per_step", "pack_length", "oversize"};
constexpr Key kFixedGreedyKeys[] = {"context_window", "sequences_per_step", "micro_batches", "oversize",
                                    "pack_window"};
constexpr Key kFixedSolverKeys[] = {"context_window", "sequences_per_step", "micro_batches",
                                    "oversize",       "pack_window",        "solver",
                                    "time_limit",     "node_limit"};
constexpr Key kVarlenSolverKeys[] = {"context_window", "sequences_per_step", "micro_batches", "oversize",
                                     "queues",         "thresholds",         "max_tokens",    "cost",
                                     "solver",         "time_limit",         "node_limit"};
constexpr Key kWlbKeys[] = {"context_window", "sequences_per_step", "micro_batches", "oversize",
                            "queues",         "thresholds",         "max_tokens",    "cost",
                            "search",         "delay_bound"};
constexpr Key kChunkflowKeys[] = {"chunk_size", "keep", "strict_keep"};
constexpr Key kPackerKeys[] = {
    "context_window", "sequences_per_step", "pack_length", "pack_order", "oversize", "seed", "shuffle"};
constexpr Key kIsfKeys[] = {
    "context_window", "sequences_per_step", "pack_length", "pack_order", "oversize", "seed", "shuffle",
    "rounds",         "threshold"};
constexpr Key kHbpKeys[] = {"context_window",   "sequences_per_step", "pack_length", "groups", "candidates",
                            "curriculum_steps", "balance_batching",   "oversize",    "seed",   "shuffle",
                            "rounds",           "threshold"};
constexpr Key kBucketKeys[] = {"bucket_size", "rollback", "oversize", "cost"};
constexpr Key kRoundRobinKeys[] = {"bucket_size", "rollback", "oversize", "cost", "placement_order"};
constexpr Key kLptKeys[] = {"sequences_per_step", "micro_batches", "cost"};
constexpr Key kKarmarkarKarpKeys[] = {"sequences_per_step", "micro_batches", "cost", "equal_size"};
constexpr Key kHybridCpKeys[] = {"context_window", "tokens_per_rank", "bucket_size", "oversize"};
constexpr Key kDynamicCpKeys[] = {"context_window", "tokens_per_rank", "bucket_size", "oversize", "cost"};
constexpr Key kFlexspKeys[] = {"context_window", "tokens_per_rank", "bucket_size", "oversize", "cost",
                               "exact"};

const Policy kPolicies[] = {
    // In arrival order.
    {"plain", "WLB-LLM (Plain-4D)", "The loader's windows as they are", kWindows, false, plan_plain,
     kPlainKeys},
    {"random", "HBP", "Shuffled, next-fit to the pack length", kWindows, true, plan_random, kRandomKeys,
     pack_length},
    {"padded", "Skrull, HBP", "One document a sequence, padded to the longest of its micro-batch", kDocuments,
     false, plan_padded, kNoKeys},
    {"sorted", "LongAlign", "Padded batches of documents of like length, in shuffled order", kDocuments, true,
     plan_sorted, kSortedKeys},
    {"longalign-packing", "LongAlign", "Next-fit to the pack length in data order", kWindows, true,
     plan_longalign_packing, kNextFitKeys, pack_length},
    // WLB-LLM.
    {"fixed-greedy", "WLB-LLM 4.1", "Fixed-length: longest first to the least sum of len^2 with room",
     kWindows, false, plan_fixed_greedy, kFixedGreedyKeys, micro_batch_capacity},
    {"fixed-solver", "WLB-LLM 4.1", "The same as an integer program: least largest sum of len^2", kWindows,
     false, plan_fixed_solver, kFixedSolverKeys, micro_batch_capacity},
    {"varlen-solver", "WLB-LLM 4.2", "An integer program on work, started from wlb", kWindows, false,
     plan_varlen_solver, kVarlenSolverKeys, max_tokens},
    {"wlb", "WLB-LLM Alg. 1", "Variable-length by work, outliers delayed in queues", kWindows, false,
     plan_wlb, kWlbKeys, max_tokens},
    // ChunkFlow.
    {"chunkflow", "ChunkFlow Alg. 1", "Chunks of one size: short documents packed, long ones cut", kDocuments,
     false, plan_chunkflow, kChunkflowKeys},
    // Packers of one length, and HBP.
    {"ffd", "HBP", "First-fit decreasing", kWindows, true, plan_ffd, kPackerKeys, pack_length},
    {"ffs", "HBP", "First-fit in shuffled order", kWindows, true, plan_ffs, kPackerKeys, pack_length},
    {"bfs", "HBP", "Best-fit in shuffled order", kWindows, true, plan_bfs, kPackerKeys, pack_length},
    {"bfd", "classic", "Best-fit decreasing", kWindows, true, plan_bfd, kPackerKeys, pack_length},
    {"spfhp", "Krell et al.", "Shortest pack first, on the histogram of lengths", kWindows, true, plan_spfhp,
     kPackerKeys, pack_length},
    {"isf", "HBP", "Shuffle, next-fit, keep full packs; ten rounds", kWindows, true, plan_isf, kIsfKeys,
     pack_length},
    {"hbp", "HBP", "Groups of pack lengths with their own CP degree, balanced iterations", kWindows, true,
     plan_hbp, kHbpKeys, longest_group},
    // Skrull.
    {"gds", "Skrull Alg. 2", "Documents to lanes by cost, then interleaved by length into micro-batches",
     kDocuments, false, plan_gds, kBucketKeys, skrull_hard_limit},
    {"skrull", "Skrull Alg. 1 + 2", "gds, with short documents whole on one CP rank (DACP)", kDocuments,
     false, plan_skrull, kBucketKeys, skrull_hard_limit},
    {"round-robin", "Skrull Alg. 4", "gds, with documents dealt to the CP rank with the most room",
     kDocuments, false, plan_round_robin, kRoundRobinKeys, skrull_hard_limit},
    // Further balancers.
    {"lpt", "Graham", "Largest cost first to the least loaded micro-batch", kWindows, false, plan_lpt,
     kLptKeys},
    {"karmarkar-karp", "Karmarkar and Karp; verl", "k-way largest differencing over the micro-batches",
     kWindows, false, plan_karmarkar_karp, kKarmarkarKarpKeys},
    {"multipack", "OpenChat", "Longest prefix that LPT fits into one pack a lane", kWindows, true,
     plan_multipack, kNextFitKeys, pack_length},
    {"dp-balanced", "Megatron-Core", "Next-fit, packs raised to a multiple of the lanes", kWindows, true,
     plan_dp_balanced, kNextFitKeys, pack_length},
    // A CP degree for each document.
    {"hybrid-cp", "Megatron-Core", "CP degree by length, rounds of groups balanced within 5%", kDocuments,
     false, plan_hybrid_cp, kHybridCpKeys, cp_grid_hard_limit},
    {"dynamic-cp", "Megatron-Core", "CP degree by load, documents packed a group, in rounds", kDocuments,
     false, plan_dynamic_cp, kDynamicCpKeys, cp_grid_hard_limit},
    {"flexsp", "FlexSP", "One layout of CP groups a step, the slowest as fast as can be", kDocuments, false,
     plan_flexsp, kFlexspKeys, cp_grid_hard_limit},
};

}  // namespace

std::span<const Policy> packing_policies() {
  return kPolicies;
}

const Policy& packing_policy(std::string_view name) {
  return find_named(kPolicies, name, "policy");
}

}  // namespace equipoise

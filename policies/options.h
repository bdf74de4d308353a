// Everything a user can say to a packing policy. Names are the study's JSON keys (dashes on the command
// line).
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace equipoise {

enum class Oversize { error, drop, truncate, split };  // what happens above the policy's hard limit
enum class Order { as_packed, descending, bell };      // of the micro-batches in a lane
enum class LoaderTail { carry, drop };                 // the rest of a document cut at a window border
enum class MilpSolver { automatic, cbc, highs };       // automatic: CBC if it is there, else HiGHS
enum class PackOrder { shuffled, created };            // of finished packs, before iterations are cut
enum class PlacementOrder { as_grouped, arrival };     // of a micro-batch's documents (round-robin)

// HBP: a pack length with the CP degree and the checkpointed layers it runs with.
struct Group {
  std::int64_t length = 0;
  int context = 1;
  int recompute_layers = -1;  // kStudyRecompute
  friend constexpr bool operator==(const Group&, const Group&) = default;
};

// HBP Algorithm 1's input: the best strategy of one candidate length under the memory model, with the
// predicted time of the same global token count for every candidate.
struct GroupCandidate {
  std::int64_t length = 0;
  int context = 1;                 // best degree
  int recompute_layers = 0;        // at that degree
  int recompute_layers_alone = 0;  // checkpointed layers at degree 1 for length / degree tokens
  double seconds = 0;
};

struct PackOptions {
  // Shape of a step.
  std::int64_t context_window = 131072;
  std::int64_t sequences_per_step = 4;
  std::int64_t documents_per_step = 0;  // 0: window batches
  std::int64_t micro_batch_size = 1;    // sequences a micro-batch
  std::int64_t micro_batches = 0;  // N of a step over all lanes; 0: sequences_per_step / micro_batch_size
  int lanes = 1;                   // data parallel degree
  int context = 1;                 // CP degree of every lane, unless the policy decides
  std::int64_t gpus = 0;           // CP groups are built from these; 0: lanes * context
  int stages = 1;                  // pipeline stages, for policies whose objective is the pipeline's

  std::int64_t pack_length = 0;  // 0: context_window
  Order order = Order::as_packed;
  Oversize oversize = Oversize::error;
  std::uint64_t seed = 0;
  bool shuffle = true;
  double time_limit_seconds = 10;             // of a solver, a step
  std::int64_t node_limit = 0;                // of a solver, a step; > 0: instead of the time limit
  MilpSolver solver = MilpSolver::automatic;  // fixed-solver, varlen-solver
  const std::atomic<bool>* cancel = nullptr;  // set by another thread: a solver stops and keeps what it has
  bool verify = false;                        // run the validator on the finished plan

  // wlb, fixed-greedy, the solvers
  std::int64_t pack_window = 1;
  int queues = 0;
  std::vector<std::int64_t> thresholds;  // empty: from `queues`
  std::int64_t max_tokens = 0;           // L_max; 0: 2 x window
  // chunkflow
  std::int64_t chunk_size = 8192;
  int keep = 1;
  // hbp and pack-length packers
  std::vector<Group> groups;               // given: no selection
  std::vector<GroupCandidate> candidates;  // for the selection
  std::int64_t global_tokens = 0;          // tokens of an iteration; 0: context_window * sequences_per_step
  PackOrder pack_order = PackOrder::shuffled;  // ffd, ffs, bfd, bfs, spfhp, isf; `shuffle` false: created
  int rounds = 10;                             // isf
  std::int64_t threshold = -1;                 // isf; -1: pack length - 128
  std::int64_t curriculum_steps = 0;
  bool balance_batching = true;  // hbp; false: packs in creation order ("+ hierarchical" of its table)
  // gds, dacp, skrull, round-robin
  std::int64_t bucket_size = 0;  // tokens a CP rank; 0 is refused by the policies that need it
  bool rollback = true;
  PlacementOrder placement_order = PlacementOrder::as_grouped;  // round-robin
  // hybrid-cp, dynamic-cp, flexsp
  std::int64_t tokens_per_rank = 0;  // what one rank can hold; 0: bucket_size, else window / context
  int max_degree = 0;                // largest CP group they may form; 0: all GPUs
  bool exact = false;                // flexsp: the exact solver instead of the heuristic
  // karmarkar-karp
  bool equal_size = false;
};

}  // namespace equipoise

// The inputs of every packing policy (the shape of a step, the limits of memory, and what make_plan does
// around the policy) and of a sharding rule. A policy's own options are declared with its code (WlbOptions in
// packing/wlb.h) and travel in PackOptions::of.
#pragma once

#include <any>
#include <cstdint>
#include <list>
#include <string_view>
#include <vector>

namespace equipoise {

enum class Oversize { error, drop, truncate, split };  // treatment of documents above the policy's hard limit
inline constexpr std::string_view kOversizeNames[] = {"error", "drop", "truncate", "split"};
enum class LongerThan { truncate, drop };  // treatment of documents above max_length
inline constexpr std::string_view kLongerThanNames[] = {"truncate", "drop"};
enum class Order { as_packed, descending, bell };  // order of the micro-batches in a lane
inline constexpr std::string_view kOrderNames[] = {"as-packed", "descending", "bell"};
enum class LoaderTail { carry, drop };  // treatment of the rest of a document that a window border cuts
inline constexpr std::string_view kLoaderTailNames[] = {"carry", "drop"};

// A pack length with its CP degree and number of checkpointed layers (HBP).
struct Group {
  std::int64_t length = 0;
  int context = 1;
  int recompute_layers = -1;  // kStudyRecompute
  friend constexpr bool operator==(const Group&, const Group&) = default;
};

// The best strategy for one candidate length under the memory model. Times of all candidates are for the same
// number of global tokens.
struct GroupCandidate {
  std::int64_t length = 0;
  int context = 1;                 // best degree
  int recompute_layers = 0;        // checkpointed layers at that degree
  int recompute_layers_alone = 0;  // checkpointed layers at degree 1 for length / degree tokens
  double seconds = 0;
};

struct PackOptions {
  // The shape of a step.
  std::int64_t context_window = 131072;
  std::int64_t sequences_per_step = 4;
  std::int64_t documents_per_step = 0;  // 0: window batches
  // Longer documents are truncated or dropped before any policy sees them; 0: no limit.
  std::int64_t max_length = 0;
  LongerThan longer = LongerThan::truncate;
  std::int64_t micro_batch_size = 1;  // sequences per micro-batch
  std::int64_t micro_batches = 0;     // N per step over all lanes; 0: micro_batches_of_step
  int lanes = 1;                      // data parallel degree
  int context = 1;                    // CP degree of every lane, unless the policy decides
  // Tokens of a global batch. 0: with documents_per_step the mean of so many documents, which make_plan
  // computes from the batches; else context_window * sequences_per_step.
  std::int64_t global_tokens = 0;
  int lane_round = 1;  // a lane has a multiple of so many micro-batches (the stages of interleaved schedules)
  std::int64_t gpus = 0;  // GPUs from which CP groups are built; 0: lanes * context
  // Used by policies that minimise the time of the pipeline: its stages, the model chunks of each stage, and
  // how many neighbouring lanes wait for each other in every micro-batch (for exchanges of experts, ZeRO-2
  // and 3).
  int stages = 1;
  int chunks = 1;
  int waiting_lanes = 1;

  // The limits of memory. A study derives those that its file does not give and the policy needs
  // (Policy::derives).
  std::int64_t max_tokens = 0;             // L_max, the most tokens of a micro-batch; 0: 2 x window
  std::int64_t bucket_size = 0;            // the most tokens of a CP rank; 0: not given
  bool best_bucket = true;                 // bucket_size is an upper bound for the search of the fastest size
  bool rollback = true;                    // false: a rank may hold more than its bucket
  std::vector<Group> groups;               // groups of pack lengths; empty: selected from the candidates
  std::vector<GroupCandidate> candidates;  // empty: one group of the pack length

  // How the schedule runs the dependent chunks of a document.
  int keep = 1;              // K, the chunks that keep their activations
  bool strict_keep = false;  // whether never K + 1 of them are kept

  // What make_plan does around the policy, and the seed of policies that draw.
  Order order = Order::as_packed;
  Oversize oversize = Oversize::error;
  std::uint64_t seed = 0;
  bool shuffle = true;
  bool verify = false;  // run the validator on the finished plan

  // The options of one policy, by default those of its type. The lookup is slow, so hot loops keep the
  // reference.
  template <class T>
  [[nodiscard]] const T& of() const {
    for (const std::any& own : own_)
      if (const T* options = std::any_cast<T>(&own)) return *options;
    static const T kDefaults{};
    return kDefaults;
  }
  template <class T>
  [[nodiscard]] T& of() {
    for (std::any& own : own_)
      if (T* options = std::any_cast<T>(&own)) return *options;
    return own_.emplace_back().template emplace<T>();
  }

 private:
  std::list<std::any> own_;  // a list, so that references stay valid when others are added
};

class Workload;

enum class Remainder { slots, tail, pad };  // where per-document puts L mod 2c extra tokens
inline constexpr std::string_view kRemainderNames[] = {"slots", "tail", "pad"};
// What per-sequence does with a length that 2c does not divide. adaptive always compares with `tail`, which
// can run.
enum class Pad { error, tail };
inline constexpr std::string_view kPadNames[] = {"error", "tail"};

// The inputs of a sharding rule.
struct ShardOptions {
  Remainder remainder = Remainder::slots;
  Pad pad = Pad::error;
  std::int64_t block = 128;  // heap-dispatch, snake, block-placement: query block
  double top_p = 0;          // heap-dispatch: share of the ranks that are considered
  double tolerance =
      0.02;  // block-placement: allowed excess of a rank's pairs over the mean, as a share of the mean
  std::int64_t tile = 128;             // query tile of the attention kernel
  std::int64_t bucket_size = 0;        // dacp: tokens per CP rank
  bool rollback = true;                // dacp
  const Workload* workload = nullptr;  // dacp: cost(s), which must not be null
};

}  // namespace equipoise

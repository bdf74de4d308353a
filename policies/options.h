// What every packing policy is told: the shape of a step, what memory allows, and what make_plan does around
// the policy. A policy's own options stand beside its code (WlbOptions in packing/wlb.h ...) and travel here
// as PackOptions::of. And what a sharding rule is told.
#pragma once

#include <any>
#include <cstdint>
#include <list>
#include <string_view>
#include <vector>

namespace equipoise {

enum class Oversize { error, drop, truncate, split };  // what happens above the policy's hard limit
inline constexpr std::string_view kOversizeNames[] = {"error", "drop", "truncate", "split"};
enum class LongerThan { truncate, drop };  // what happens above max_length
inline constexpr std::string_view kLongerThanNames[] = {"truncate", "drop"};
enum class Order { as_packed, descending, bell };  // of the micro-batches in a lane
inline constexpr std::string_view kOrderNames[] = {"as-packed", "descending", "bell"};
enum class LoaderTail { carry, drop };  // the rest of a document cut at a window border
inline constexpr std::string_view kLoaderTailNames[] = {"carry", "drop"};

// A pack length with the CP degree and the checkpointed layers it runs with (HBP).
struct Group {
  std::int64_t length = 0;
  int context = 1;
  int recompute_layers = -1;  // kStudyRecompute
  friend constexpr bool operator==(const Group&, const Group&) = default;
};

// The best strategy of one candidate length under the memory model, with the predicted time of the same
// global token count for every candidate.
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
  // Documents are cut to so many tokens, or left out, before any policy sees them; 0: as they are.
  std::int64_t max_length = 0;
  LongerThan longer = LongerThan::truncate;
  std::int64_t micro_batch_size = 1;  // sequences a micro-batch
  std::int64_t micro_batches = 0;     // N of a step over all lanes; 0: micro_batches_of_step
  int lanes = 1;                      // data parallel degree
  int context = 1;                    // CP degree of every lane, unless the policy decides
  // Of a global batch; 0: with documents_per_step the mean of so many documents, which make_plan takes from
  // the batches, else context_window * sequences_per_step.
  std::int64_t global_tokens = 0;
  int lane_round = 1;     // micro-batches of a lane come in multiples of it (interleaved schedules: stages)
  std::int64_t gpus = 0;  // CP groups are built from these; 0: lanes * context
  // For policies whose objective is the pipeline's: its stages, the model chunks of each, and how many
  // neighbouring lanes wait for each other with every micro-batch (exchanges of experts, ZeRO-2 and 3).
  int stages = 1;
  int chunks = 1;
  int waiting_lanes = 1;

  // What memory allows. A study derives what its file does not give and the policy asks for
  // (Policy::derives).
  std::int64_t max_tokens = 0;             // L_max, most tokens of a micro-batch; 0: 2 x window
  std::int64_t bucket_size = 0;            // most tokens of a CP rank; 0: not given
  bool best_bucket = true;                 // it is a bound, below which the fastest size is searched
  bool rollback = true;                    // false: a rank may hold more than its bucket
  std::vector<Group> groups;               // of pack lengths; empty: selected from the candidates
  std::vector<GroupCandidate> candidates;  // empty: one group of the pack length

  // How a schedule runs the dependent chunks of a document.
  int keep = 1;              // K, chunks that keep their activations
  bool strict_keep = false;  // never hold K + 1 of them

  // Around the policy (make_plan.cpp), and the randomness of those that draw.
  Order order = Order::as_packed;
  Oversize oversize = Oversize::error;
  std::uint64_t seed = 0;
  bool shuffle = true;
  bool verify = false;  // run the validator on the finished plan

  // The options of one policy; their defaults where nobody set any. Not for hot loops: take the reference
  // once.
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
  std::list<std::any> own_;  // references stay good when others are added
};

class Workload;

enum class Remainder { slots, tail, pad };  // per-document: where L mod 2c extra tokens go
inline constexpr std::string_view kRemainderNames[] = {"slots", "tail", "pad"};
// per-sequence: a length that 2c does not divide. adaptive always compares with `tail`, which could run.
enum class Pad { error, tail };
inline constexpr std::string_view kPadNames[] = {"error", "tail"};

// What a sharding rule is told.
struct ShardOptions {
  Remainder remainder = Remainder::slots;
  Pad pad = Pad::error;
  std::int64_t block = 128;            // heap-dispatch, snake, block-placement: query block
  double top_p = 0;                    // heap-dispatch: share of the ranks that are asked
  double tolerance = 0.02;             // block-placement: pairs of a rank above the mean, as a share of it
  std::int64_t tile = 128;             // query tile of the attention kernel
  std::int64_t bucket_size = 0;        // dacp: tokens a CP rank
  bool rollback = true;                // dacp
  const Workload* workload = nullptr;  // dacp: cost(s); null is refused there
};

}  // namespace equipoise

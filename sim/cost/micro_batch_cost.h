// What one micro-batch costs on every CP rank of its lane: sharded, then costed op by op.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "policies/plan.h"
#include "policies/sharding/sharding.h"
#include "sim/cost/context_exchange/context_form.h"
#include "sim/cost/held.h"
#include "sim/cost/layer_costs.h"
#include "sim/cost/layer_timeline.h"

namespace equipoise {

// How micro-batches are sharded in a run. `adaptive` and `optimal` decide per micro-batch; `static_best` is
// the caller's choice between two runs.
struct ShardRule {
  ShardChoice choice = ShardChoice::fixed;
  const ShardPolicy* fixed = nullptr;
  ShardOptions options;
};

// The embedding on the first stage or the head on the last: by rank, all of it and its compute alone.
struct EndCost {
  std::vector<Picoseconds> total, compute;
  std::array<Picoseconds, kStreams> exposed{};  // mean over ranks
  friend bool operator==(const EndCost&, const EndCost&) = default;
};

struct MicroBatchCost {
  // Resets it to a micro-batch that does nothing. A result is reused, and not every micro-batch fills all of
  // it (one without CP exchange sends no K and V). Kinds of layers that the model lacks have no ranks.
  void begin(int context, const LayerCounts& layers);

  int ranks = 1;
  Sharding sharding;
  Sharding chunks;  // the same cut into chunks, for a model whose sliding layers attend to chunks
  [[nodiscard]] const Sharding& seen_by(std::int64_t window) const {
    return window > 0 && !chunks.rank_begin.empty() ? chunks : sharding;
  }
  EvenedAttention evened{};               // an input, as the sharding is
  std::shared_ptr<const StagePool> pool;  // an input, if stages pool their CP ranks
  std::vector<ExpertArrivals> arriving;   // by rank

  // By layer kind. `backward` includes selective recompute if the layout has it; `full` is recompute of the
  // whole layer (`again`) followed by its backward; `input_gradient` is the backward without weight
  // gradients.
  std::array<LayerTimeline, kLayerKinds> forward;
  std::array<LayerTimeline, kLayerKinds> again;
  std::array<LayerTimeline, kLayerKinds> backward;
  std::array<LayerTimeline, kLayerKinds> full;
  std::array<LayerTimeline, kLayerKinds> input_gradient;
  std::array<std::vector<Picoseconds>, kLayerKinds> weight_gradient;  // per rank

  EndCost embed_forward, embed_backward, head_forward, head_backward;
  std::vector<Picoseconds> send_next, send_previous;  // by rank, for a hop between neighbouring stages
  std::vector<Picoseconds> send_wrap;                 // from the last stage to the first (virtual stages)

  // The figures below are per rank and layer.
  std::array<std::vector<Picoseconds>, kLayerKinds> compute_forward, compute_again,
      compute_backward;  // busy time of the compute stream
  // One layer's attention by mixer, and the recurrence of any layer that has one; the backward includes the
  // forward that selective recompute repeats.
  std::array<std::vector<Picoseconds>, kMixers> attention_forward, attention_backward;
  std::array<Picoseconds, kLayerKinds> recomputed{};  // selective recompute, on the slowest rank
  std::array<std::array<Picoseconds, kStreams>, kLayerKinds> exposed_forward{}, exposed_again{},
      exposed_backward{};        // mean over ranks
  double kv_sent_tokens = 0;     // received by all ranks together, mean over layers
  double kv_useful_tokens = 0;   // part of it that a query of the receiver attends to
  std::int64_t cast_tokens = 0;  // as if K and V: what a rank holds, if the plan says what arrives
  RangeUse use;
  friend bool operator==(const MicroBatchCost&, const MicroBatchCost&) = default;
};

// Whether both have the same slices in the same arrangement. Then the costs of one serve the other if as much
// arrives at the experts.
bool costs_alike(const MicroBatch& a, const MicroBatch& b);

// The expert-parallel exchanges in a list of local ops: what runs before the first and between the two, how
// long they take, and what runs under them. All are zero on a rank that neither sends nor receives tokens but
// still takes part.
inline constexpr std::size_t kMostExchanges = 4;  // for a backward that repeats its layer's forward
struct ExchangeSplit {
  std::array<Picoseconds, kMostExchanges> lead{}, duration{}, under{}, taken{};
};

// Local work of one layer on a rank with some number of tokens: everything but attention and CP.
struct LocalWork {
  Held held{-1};
  ExpertArrivals arriving;
  RunTime forward_before, forward_after, backward_before, backward_after;
  RunTime once_before, once_after;  // parts of the forward that a recomputation skips
  Picoseconds recomputed = 0;       // part of the backward: named parts of the forward that run again
  Picoseconds input_before = 0, input_after = 0, weight = 0;             // the two halves of a split backward
  ExchangeSplit forward_exchanges, backward_exchanges, input_exchanges;  // for MoE layers
  Issued before_launches, forward_launches, backward_launches;  // the first one belongs to forward_before
  Issued behind_lengths;                                        // part of forward_before
  Issued until_routed;  // part of the forward after its attention, if the host then waits for the counts
  RangeUse use;
};

// The place of that work in a pass. With two nano-batches `before` belongs to the one whose exchange comes
// first and `after` to the other. The rest of their work runs during the first and the last exchange.
struct PassWork {
  Picoseconds before = 0, under_first = 0, under_last = 0, after = 0;
};
struct LayerWork {
  const LocalWork* all = nullptr;
  PassWork forward, backward, input;  // `input` is a backward without weight gradients
};

// The embedding and the head on a rank with some number of tokens, and what it sends.
struct EndWork {
  std::int64_t tokens = -1;
  std::array<RunTime, 4> times;   // in the order of MicroBatchCost's ends
  Picoseconds hop = 0, wrap = 0;  // to a neighbouring stage; from the last stage to the first
  RangeUse use;
};

// Reusable costing of micro-batches: one per thread; keeps its buffers.
class MicroBatchCoster {
 public:
  MicroBatchCoster(const LayerCosts& costs, const ShardRule& rule);
  // Bytes of what a coster remembers, by number of tokens, of a model with layers of so many kinds.
  [[nodiscard]] static double remembered_bytes(int layer_kinds);

  // Fills `out` for the micro-batch on `context` CP ranks, at whose experts as much arrives as they send.
  // Throws UserError if the sharding rule refuses it, or so many ranks cannot share the heads (Ulysses).
  void cost(const MicroBatch& micro_batch, int context, MicroBatchCost& out);
  // The same in two steps, for ranks whose experts also work for other lanes: the first fills out.sharding,
  // the second everything else. `arriving` is by CP rank. `counts` has the attention calls counted for that
  // sharding, which may have moved; it may be empty.
  void shard(const MicroBatch& micro_batch, int context, MicroBatchCost& out, AttentionCounts& counts);
  void cost_sharded(const MicroBatch& micro_batch, int context, std::span<const ExpertArrivals> arriving,
                    const AttentionCounts& counts, MicroBatchCost& out);
  // Times of the whole model with all ranks starting together: until the forward ends, and for both passes.
  struct ModelTimes {
    Picoseconds forward = 0, both = 0;
  };
  [[nodiscard]] ModelTimes model_times(const MicroBatch& micro_batch, const MicroBatchCost& cost) const;

 private:
  void shard(const MicroBatch& micro_batch, int context, MicroBatchCost& out);
  void cost_sharded(const MicroBatch& micro_batch, int context, std::span<const ExpertArrivals> arriving,
                    MicroBatchCost& out);
  void cost_sharded(const MicroBatch& micro_batch, int context, MicroBatchCost& out);
  // The exchanges of a layer with the mixer and its work between them: of attention, then of a recurrence.
  void cost_mixer(Mixer mixer, const MicroBatch& micro_batch, int context, MicroBatchCost& out);
  void exchange(const ContextForm& form, const ContextCase& of, const ContextGroup& group, RangeUse& use);
  void cost_attention(const ContextCase& of, Mixer mixer, RangeUse& use, MicroBatchCost& out);
  void cost_recurrence(const ContextCase& of, Mixer mixer, RangeUse& use, MicroBatchCost& out);
  const LocalWork& local_work(LayerKind kind, const Held& held, const ExpertArrivals& arriving);
  // What a rank does; valid until the next call.
  LayerWork layer_work(LayerKind kind, std::size_t rank, const MicroBatchCost& out);
  const EndWork& end_work(std::int64_t tokens);
  void build_layer(LayerKind kind, MicroBatchCost& out);
  void add_layer_exchanges(LayerKind kind, MicroBatchCost& out);
  void finish_layer(LayerKind kind, MicroBatchCost& out);
  [[nodiscard]] Picoseconds forward_stall_of(LayerKind kind, const LocalWork& work, Issued forward,
                                             Issued backward) const;
  void build_ends(MicroBatchCost& out);

  const LayerCosts& costs_;
  const ShardRule& rule_;
  ProfiledAttentionCost attention_;
  // Scratch.
  ContextExchanges exchanges_;  // of a layer, equal for all layers of a mixer, and the work between them
  ContextPasses passes_;
  Sharding merged_;  // ContextCase::merged
  OpList before_, after_;
  std::vector<ExpertArrivals> own_;
  std::vector<LayerWork> works_;  // by rank, for the layer under construction
  LocalWork both_;                // for two nano-batches
  std::vector<HeldByHalf> held_;  // by rank
  bool halves_ = false;           // whether the micro-batch has two nano-batches
  int forwards_ = 1;              // that may live on the lead of one backward: a chunk's may run twice
  // A direct-mapped cache by tokens and arrivals, for each kind of layer that the model has.
  std::array<std::vector<LocalWork>, kLayerKinds> memo_;
  std::vector<EndWork> end_memo_;
  MicroBatchCost other_;  // the second candidate of `optimal`
};

}  // namespace equipoise

// What one rank executes for one layer of one micro-batch: the op inventory with durations from a profile.
//
// A forward is `before` | CP synchronisation | attention, `after`; a backward is `before` | KV gathered again
// | attention backward | dKV reduce-scattered | `after`. Everything between two bars is local to the rank (TP
// collectives included: TP ranks do the same and arrive together). Both engines are built from these lists.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "policies/plan.h"
#include "policies/sharding/disaggregation.h"
#include "policies/sharding/sharding.h"
#include "profiler/profile/cost_models.h"
#include "profiler/profile/profile.h"
#include "sim/cost/experts.h"
#include "sim/framework/framework.h"
#include "sim/topology/rank_grid.h"
#include "sim/workload/layout.h"
#include "sim/workload/model.h"
#include "sim/workload/ops.h"

namespace equipoise {

// The sizes of the grid that a layout's ranks make.
ParallelSizes parallel_sizes(const Layout& layout);

// Throws UserError with the reason if the layout cannot run the model: `where` names the study file. The
// other functions of this room take layouts that pass.
void check_layout(const ModelShape& model, const Layout& layout, const std::string& where);

inline constexpr double kFp32Bytes = 4;

// Heads of one attention call where so many TP ranks, and CP ranks of each, share them out.
AttentionHeads attention_heads(const ModelShape& model, int tensor, int head_shares);

// Tensors that a layer's backward needs, in bytes a token on one TP rank: the two norm inputs and outputs
// (sequence-parallel), Q, K, V, the attention output with its softmax statistics, gate, up and their product.
// Named parts that are recomputed leave their inputs only. Only a trained linear layer needs its input, or an
// adapter beside a frozen one, which has it whole on every TP rank where the layer is column-parallel.
double kept_bytes(const ModelShape& model, const Layout& layout, const FrameworkOptions& framework, bool sparse);

// What no plan can beat on one rank of the layout (least_costs.cpp): seconds of a token and of a visible pair
// of a query and a key in one layer, and of a token in the head.
struct LeastCosts {
  struct Layer {
    double forward_token = 0, backward_token = 0;
    double again_token = 0;  // in a forward that is run again
    // A token that arrives at experts, whichever rank sent it; 0 where the experts are the rank's own.
    double forward_arrived = 0, backward_arrived = 0;
  };
  std::array<Layer, kLayerKinds> layers{};  // of each kind that the model has
  Layer layer;                              // of any of them
  double forward_pair = 0, backward_pair = 0;
  double head_token = 0;  // forward and backward
};

// Tokens of a rank, and of how many documents, which counts where each has kernels of its own (torch_layers.cpp):
// 1 elsewhere.
struct Held {
  std::int64_t tokens = 0, documents = 1;
  friend bool operator==(const Held&, const Held&) = default;
};
using HeldByHalf = std::array<Held, kMostNanoBatches>;

class LayerCosts {
 public:
  LayerCosts(const ModelShape& model, const Layout& layout, const Profile& profile, const RankGrid& grid,
             NetworkRates network, FrameworkOptions framework);

  // The local ops of one layer on a rank that holds `tokens` tokens of `documents` documents. A rank that
  // holds none has the same ops where tokens arrive at its experts, and only those for them take time.
  void forward_ops(LayerKind kind, std::int64_t tokens, const ExpertArrivals& arriving, OpList& before,
                   OpList& after, RangeUse& use, std::int64_t documents = 1) const;
  void backward_ops(LayerKind kind, std::int64_t tokens, const ExpertArrivals& arriving, OpList& before,
                    OpList& after, RangeUse& use, std::int64_t documents = 1) const;
  // What ranks hold of a micro-batch, by nano-batch: all of it in the first where there is but one.
  void held(const MicroBatch& micro_batch, const Sharding& sharding, std::vector<HeldByHalf>& out) const;
  // The same where as many arrive as the rank sends.
  void forward_ops(LayerKind kind, std::int64_t tokens, OpList& before, OpList& after, RangeUse& use) const {
    forward_ops(kind, tokens, sent_to_experts(tokens), before, after, use);
  }
  void backward_ops(LayerKind kind, std::int64_t tokens, OpList& before, OpList& after, RangeUse& use) const {
    backward_ops(kind, tokens, sent_to_experts(tokens), before, after, use);
  }
  // Whether ZeRO-3 gathers the weights of layers in FP8: where torchao casts them, and no experts or MLA, whose
  // linear layers are not priced as PyTorch's.
  [[nodiscard]] bool gathers_fp8_parameters() const {
    return framework_.fp8_param_gather && casts_by_torchao() && !model_.moe && !model_.mla;
  }
  // The time that compute under an exchange of this length loses to the SMs that the exchange holds. told: it
  // is launched for the others.
  [[nodiscard]] Picoseconds lost_under(Picoseconds exchange, int exchange_sms, bool told) const;
  [[nodiscard]] Op taken_sms(Picoseconds exchange) const;  // of an exchange of experts
  // Whether a ring over CP is PyTorch's, which sends K and V of all query heads (ring.cpp).
  [[nodiscard]] bool torch_ring() const {
    return torch_layers() && layout_.acting_form() == ContextComm::ring && !model_.mla;
  }
  // Whether a recomputed layer runs less than its forward: ops that are marked (Op::once) are left out.
  [[nodiscard]] bool repeats_less() const { return framework_.early_stop || torch_layers(); }
  // What a rank that holds so many tokens sends, as what would arrive if all of its group sent as many.
  [[nodiscard]] ExpertArrivals sent_to_experts(std::int64_t tokens) const;
  // The load of the busiest expert rank over the mean: for the micro-batches of one exchange, and for a
  // micro-batch whose partners in the exchange are like it.
  [[nodiscard]] double expert_load(std::span<const MicroBatch* const> together) const;
  [[nodiscard]] double expert_load(const MicroBatch& micro_batch) const;

  // Attention of one layer over the pieces of one rank.
  // `window`: keys that a query sees, 0: all up to its own.
  [[nodiscard]] Op attention_forward(std::span<const QueryKeys> pieces, RangeUse& use,
                                     std::int64_t window = 0) const;
  [[nodiscard]] Op attention_backward(std::span<const QueryKeys> pieces, RangeUse& use,
                                      std::int64_t window = 0) const;
  // The times alone of both passes of a call, counted once: for hot loops. `head_shares`: ranks that share
  // the heads.
  struct AttentionTimes {
    Picoseconds forward = 0, backward = 0;
  };
  [[nodiscard]] AttentionTimes attention_times(std::span<const QueryKeys> pieces, RangeUse& use,
                                               std::int64_t window = 0, int head_shares = 1) const;
  [[nodiscard]] Picoseconds attention_forward_time(std::span<const QueryKeys> pieces, RangeUse& use,
                                                   std::int64_t window = 0) const;
  // The same of a call that is counted already, where times follow from counts alone.
  [[nodiscard]] bool prices_counts() const { return attention_.prices_counts(); }
  [[nodiscard]] AttentionTimes attention_times(const AttentionCall& call, RangeUse& use,
                                               int head_shares = 1) const;
  [[nodiscard]] Picoseconds attention_forward_time(const AttentionCall& call, RangeUse& use) const;
  // Layers of the whole model by kind, and the window of those that are of a kind.
  [[nodiscard]] const LayerCounts& layer_counts() const { return layer_counts_; }
  [[nodiscard]] const LayerCounts& backward_counts() const { return backward_counts_; }  // ModelShape's
  [[nodiscard]] std::int64_t window_of(LayerKind kind) const {
    return slides(kind) ? model_.sliding_window : 0;
  }
  // The share of the layers whose attention slides.
  [[nodiscard]] double sliding_share() const { return sliding_share_; }

  // Matrix FLOPs of one layer's forward attention on one TP rank, over so many pairs of a query and a key.
  [[nodiscard]] double causal_attention_flops(double pairs) const {
    return 2.0 * (model_.head_dim + model_.value_dim()) * (model_.heads / layout_.tensor) * pairs;
  }

  // `near`: how close to the best size of a micro-batch, as a factor of its time; the closer, the longer it
  // takes.
  [[nodiscard]] LeastCosts least(double near) const;

  // First and last stage. Of the head's passes multi-token prediction makes as many more, each with its embedding and
  // projection: as Megatron-LM has it, all of them behind the layers.
  void embedding_ops(std::int64_t tokens, bool backward, OpList& ops, RangeUse& use) const;
  void head_forward_ops(std::int64_t tokens, OpList& ops, RangeUse& use) const;
  void head_backward_ops(std::int64_t tokens, OpList& ops, RangeUse& use) const;

  // One pipeline hop of a rank's activations (or their gradients) between two stages.
  [[nodiscard]] Op pipeline_send(std::int64_t tokens, int from_stage, int to_stage, RangeUse& use) const;

  // Exchanges of experts in a layer's forward or backward, which may repeat a forward's.
  [[nodiscard]] std::size_t exchanges(bool backward) const {
    return backward && layout_.repeats(RecomputeModule::moe) ? 4 : 2;
  }

  [[nodiscard]] const HostOptions& host() const { return framework_.host; }
  // How long the GPU waits for the host in a pass of a layer. `before`: the pass that its rank runs before
  // it.
  [[nodiscard]] Picoseconds host_stall(LayerKind kind, Issued pass, Issued before) const;

  // How long a pass of a layer that takes `spent` waits for the copies beside it, to the host's memory or back
  // (Layout::activation_offload): a copy is there before the next layer's begins.
  [[nodiscard]] Picoseconds offload_stall(LayerKind kind, std::int64_t tokens, Picoseconds spent) const {
    return std::max<Picoseconds>(0, to_picoseconds(offload_seconds_[is_moe(kind) ? 1 : 0] * as_double(tokens)) - spent);
  }

  // Whether the forward of one micro-batch and the backward of another are issued together: where each hides
  // the other's exchanges of experts, or where that is `asked` for. Not with ZeRO-3, whose gathers go part by
  // part of a single op.
  [[nodiscard]] bool pairs_micro_batches(bool asked = false) const {
    const bool hides = framework_.expert_overlap == ExpertOverlap::dualpipe && layout_.expert > 1;
    return (hides || asked) && layout_.zero < 3;
  }

  [[nodiscard]] const ModelShape& model() const { return model_; }
  [[nodiscard]] const Layout& layout() const { return layout_; }
  [[nodiscard]] const Profile& profile() const { return profile_; }
  [[nodiscard]] const RankGrid& grid() const { return grid_; }
  [[nodiscard]] const FrameworkOptions& framework() const { return framework_; }
  [[nodiscard]] const CollectiveModel& collectives() const { return collectives_; }
  [[nodiscard]] const ElementwiseModel& elementwise() const { return elementwise_; }
  // Bytes of K and V of one layer on one TP rank, as CP sends them.
  [[nodiscard]] std::int64_t kv_bytes_per_token() const { return kv_bytes_per_token_; }

  // An elementwise kernel that moves so many bytes.
  [[nodiscard]] Op moves(OpName name, Elementwise op, double bytes, RangeUse& use,
                         ElementwisePass pass = ElementwisePass::forward) const;

 private:
  // A pass through a layer on a rank, and which of its ops count: those for the rank's own tokens, those for
  // copies that arrived at its experts.
  struct CountedPass {
    LayerKind kind;
    bool backward = false, again = false;
    bool own = true, arrived = true, exchanges = true;
  };
  [[nodiscard]] double seconds_of(const CountedPass& pass, std::int64_t tokens,
                                  const ExpertArrivals& arriving) const;
  [[nodiscard]] LeastCosts::Layer least(LayerKind kind, double near) const;
  [[nodiscard]] const AttentionModel& attention_of(int head_shares) const {
    return head_shares > 1 ? shared_attention_.at(head_shares) : attention_;
  }
  [[nodiscard]] Op gemm(OpName name, std::int64_t m, std::int64_t n, std::int64_t k, RangeUse& use) const;
  // `groups` products of m x n x k in one launch. `output_bytes`: moved of an element of the result.
  [[nodiscard]] Op grouped_gemm(const GemmModel& model, OpName name, GemmRole role, std::int64_t groups, std::int64_t m,
                                std::int64_t n, std::int64_t k, RangeUse& use, double output_bytes = 2) const;
  [[nodiscard]] Op rotary(std::int64_t tokens, std::int64_t documents, ElementwisePass pass,
                          RangeUse& use) const;
  // Of an FFN whose product has `f` columns on this rank, an expert's too.
  [[nodiscard]] Op activation(std::int64_t rows, std::int64_t f, ElementwisePass pass, RangeUse& use) const;
  [[nodiscard]] Op tp_collective(OpName name, std::int64_t tokens, std::int64_t width, RangeUse& use) const;
  [[nodiscard]] Op tp_collective(OpName name, std::int64_t tokens, std::int64_t width, GroupShape group,
                                 RangeUse& use) const;
  [[nodiscard]] Op expert_collective(OpName name, std::int64_t token_copies, RangeUse& use) const;
  // Elements that a row op moves: what its own kernel does, or `usual` elsewhere.
  [[nodiscard]] double row_elements(double own, double usual) const {
    return framework_.own_kernels ? own : usual;
  }
  // ---- Gradients and adapters (adapters.cpp) ----
  // A linear layer of this rank with an adapter beside it: `experts` products of rows x out x in for `tokens`
  // in all, cut over the `ranks` of `group` by its columns or its rows.
  struct AdaptedLayer {
    std::int64_t tokens = 0, rows = 0, out = 0, in = 0;
    std::int64_t experts = 1;
    bool column = true;
    int ranks = 1;
    GroupShape group{};
    bool routed = false;  // an expert's output is summed up with its layer's
    [[nodiscard]] bool gathers_output() const { return ranks > 1 && !column && !routed; }
  };
  [[nodiscard]] AdaptedLayer dense_adapter(std::int64_t m, std::int64_t n, std::int64_t k, bool column) const;
  [[nodiscard]] Op thin_product(OpName name, const AdaptedLayer& layer, std::int64_t m, std::int64_t n,
                                std::int64_t k, RangeUse& use) const;
  [[nodiscard]] Op thin_exchange(const AdaptedLayer& layer, Collective kind, std::int64_t width,
                                 RangeUse& use) const;
  void push_adapter(const AdaptedLayer& layer, OpName name, OpList& ops, RangeUse& use) const;
  [[nodiscard]] bool adapts(OpName forward) const;  // whether the layer of this product has one
  // Behind the layer's own product, where it has one.
  void push_adapter_of(const Op& product, std::int64_t m, std::int64_t n, std::int64_t k, bool column,
                       OpList& ops, RangeUse& use) const;
  void push_adapter_gradients(const AdaptedLayer& layer, OpList& ops, RangeUse& use) const;
  void push_gradients(WeightKind weights, std::int64_t m, std::int64_t n, std::int64_t k, bool column, OpList& ops,
                      RangeUse& use) const;
  void push_gradients(WeightKind weights, Op input, Op weight, std::int64_t m, std::int64_t n, std::int64_t k,
                      bool column, OpList& ops, RangeUse& use) const;
  void push_replicated_gradients(WeightKind weights, std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                                 RangeUse& use) const;
  void push_gathered(const Op& product, std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                     RangeUse& use) const;
  void push_replicated(std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops, RangeUse& use) const;
  void push_column(OpName name, std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                   RangeUse& use) const;
  void push_row(OpName name, std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                RangeUse& use) const;
  void push_projections(std::int64_t tokens, bool backward, OpList& ops, RangeUse& use) const;
  void push_dense_ffn(std::int64_t tokens, std::int64_t width, bool backward, OpList& ops,
                      RangeUse& use) const;
  // Its halves: gate/up with the activation, and down.
  void push_ffn_up(std::int64_t tokens, std::int64_t width, bool backward, OpList& ops, RangeUse& use) const;
  void push_ffn_down(std::int64_t tokens, std::int64_t width, bool backward, OpList& ops,
                     RangeUse& use) const;
  void push_moe(std::int64_t tokens, bool backward, const ExpertArrivals& arriving, OpList& ops,
                RangeUse& use) const;
  void push_embedding(std::int64_t tokens, bool backward, OpList& ops, RangeUse& use) const;
  void push_head_forward(std::int64_t tokens, OpList& ops, RangeUse& use) const;
  void push_head_backward(std::int64_t tokens, OpList& ops, RangeUse& use) const;
  void push_prediction_input(std::int64_t tokens, bool backward, OpList& ops, RangeUse& use) const;
  void push_latent_expansion(std::int64_t tokens, OpList& ops, RangeUse& use) const;
  void push_experts(std::int64_t routed, bool backward, OpList& ops, RangeUse& use) const;  // busiest rank
  [[nodiscard]] Op expert_products(OpName name, GemmRole role, std::int64_t m, std::int64_t n, std::int64_t k,
                                   RangeUse& use) const;
  void push_permute(double rows_moved, OpList& ops, RangeUse& use) const;
  [[nodiscard]] Op routing() const;
  // ---- Linear layers as PyTorch has them (torch_layers.cpp) ----
  [[nodiscard]] bool torch_layers() const { return framework_.linear_layers != LinearLayers::fused; }
  [[nodiscard]] bool casts_by_torchao() const { return torch_layers() && layout_.precision == Precision::fp8; }
  // Norm of rows of so many bytes.
  [[nodiscard]] Op norm(double row_bytes, ElementwisePass pass, RangeUse& use) const;
  // A collective along the sequence with the copy that puts what it moves in order.
  [[nodiscard]] Op in_order(Op collective, RangeUse& use) const;
  // Whether TP's collectives run under the products of a layer, or of the head; PyTorch compiles layers only.
  [[nodiscard]] bool overlaps_tp(bool of_layer) const {
    return framework_.tp_overlap_forward && (of_layer || !torch_layers());
  }
  // Puts a collective, which is pushed next, under its product, with what that costs.
  void fuse(Op& collective, const Op& product, OpList& ops, RangeUse& use) const;
  // `products` that such a collective runs under: PyTorch cuts them into one for each TP rank's rows.
  [[nodiscard]] Op fused_products(OpName name, std::int64_t m, std::initializer_list<std::int64_t> widths,
                                  std::int64_t k, RangeUse& use) const;
  // Tokens of a TP rank outside its column- and row-parallel layers.
  [[nodiscard]] std::int64_t own_rows(std::int64_t tokens) const {
    return (tokens + layout_.tensor - 1) / layout_.tensor;
  }
  // Rows of a gradient that is gathered over TP, as it is cast: before, or behind.
  [[nodiscard]] std::int64_t cast_rows(std::int64_t tokens) const {
    return casts_by_torchao() ? own_rows(tokens) : tokens;
  }
  void push_cast(double elements, bool made_by_row_op, OpList& ops, RangeUse& use) const;
  void push_input_cast(std::int64_t tokens, OpList& ops, RangeUse& use) const;
  void push_weight_copies(bool backward, OpList& ops, RangeUse& use) const;
  void push_per_op(std::int64_t tokens, std::int64_t documents, OpList& ops, RangeUse& use) const;
  void mark_unneeded(OpList& after) const;
  // The product of m rows of k with weights of these widths side by side, or its gradient by `name`: one, or,
  // where a framework has them apart, one each, as one op.
  [[nodiscard]] Op products(OpName name, std::int64_t m, std::initializer_list<std::int64_t> widths,
                            std::int64_t k, RangeUse& use) const;
  // An all-gather over TP of what a linear layer reads: one byte of an element where it was cast to FP8
  // before.
  [[nodiscard]] Op gather_cast(std::int64_t tokens, std::int64_t width, bool is_cast, RangeUse& use) const;
  // For products with these weights.
  void push_quantize(WeightKind weights, std::int64_t rows, std::int64_t width, OpList& ops, RangeUse& use,
                     bool by_row_op = true) const;

  ModelShape model_;
  LayerCounts layer_counts_{}, backward_counts_{};
  double sliding_share_ = 0;
  Layout layout_;
  FrameworkOptions framework_;
  const Profile& profile_;
  const RankGrid& grid_;
  AttentionModel attention_;
  std::map<int, AttentionModel> shared_attention_;  // by the ranks that share the heads
  GemmModel gemm_;
  GemmModel logits_gemm_;                 // always bf16
  std::optional<GemmModel> expert_gemm_;  // framework.expert_kernel
  ElementwiseModel elementwise_;
  CollectiveModel collectives_;
  GroupShape tp_group_;
  std::int64_t kv_bytes_per_token_ = 0;
  double element_bytes_ = 2;  // of an activation or a weight
  double launch_seconds_ = 0;
  double router_load_ = 1;  // of the busiest rank of experts over the mean, by how the router was trained
  std::array<double, 2> offload_seconds_{};  // of a token and layer, without experts and with them
  Picoseconds per_launch_ = 0;  // of the host
};

}  // namespace equipoise

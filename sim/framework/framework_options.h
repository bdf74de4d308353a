// What a training framework overlaps, keeps and launches, as far as costs and memory depend on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "policies/base/index.h"
#include "profiler/profile/cost_models.h"
#include "sim/framework/host.h"
#include "sim/workload/layout.h"

namespace equipoise {

// What follows the logits. fused: a cross-entropy of two reads and a write. unfused: Megatron-LM's
// vocabulary-parallel loss, kernel by kernel. pytorch: PyTorch's loss on an fp32 copy, kernel by kernel.
// chunked: Liger Kernel's fused linear cross-entropy. The others replace a loss in benchmarks: the sum, the
// mean, or the mean of (logit - 1)^2 over the fp32 copy that Float16Module makes.
enum class LossKind : std::uint8_t { fused, unfused, sum, mean, mean_square, pytorch, chunked };
inline constexpr std::string_view kLossNames[] = {"fused",       "unfused", "sum",    "mean",
                                                  "mean-square", "pytorch", "chunked"};
// Tokens whose logits a rank holds at once: all, or a chunk of Liger Kernel's. The chunk is a power of two
// whose logits are about as large as the hidden states of all tokens (arXiv 2410.10989, section 3.2).
std::int64_t tokens_with_logits(LossKind loss, std::int64_t tokens, std::int64_t vocab, std::int64_t hidden);

// Which implementation runs linear layers. fused is Megatron-LM with Transformer Engine: Q, K and V are one
// product, gate and up another, norms write FP8. TP gathers a product's input again under the products of the
// backward. torch has one product for each, as PyTorch's DTensor and torchao's Float8Linear run them under
// torch.compile; torch_eager runs without it (sim/cost/linear_costs.h).
enum class LinearLayers : std::uint8_t { fused, torch, torch_eager };
inline constexpr std::string_view kLinearLayersNames[] = {"fused", "torch", "torch-eager"};

// How a router was trained to balance its loads, which decides how uneven they are (sim/cost/expert_load.h).
// `stated` takes expert_skew.
enum class ExpertRouter : std::uint8_t { stated, loss_free, auxiliary_loss, unbalanced };
inline constexpr std::string_view kExpertRouterNames[] = {"stated", "loss-free", "auxiliary-loss",
                                                          "unbalanced"};

// What hides the exchanges of expert parallelism. none: nothing. shared_expert: the shared expert's GEMMs run
// under them (Megatron-LM's moe_shared_expert_overlap). deepep: nothing, but the exchange is DeepEP's, which
// forwards inside a node while the network still carries. dualpipe: the forward of one micro-batch runs under
// the exchanges of another's backward, and vice versa (DualPipe, arXiv 2412.19437 section 3.2.1;
// Megatron-LM's overlap_moe_expert_parallel_comm).
enum class ExpertOverlap : std::uint8_t { none, shared_expert, deepep, dualpipe };
inline constexpr std::string_view kExpertOverlapNames[] = {"none", "shared-expert", "deepep", "dualpipe"};
constexpr std::string_view name_of(ExpertOverlap overlap) {
  return kExpertOverlapNames[at(overlap)];
}

// What moves token copies to their experts and back.
enum class ExpertDispatcher : std::uint8_t { all_to_all, deepep };
inline constexpr std::string_view kExpertDispatcherNames[] = {"alltoall", "deepep"};

inline constexpr int kMostRoutingKernels = 255, kMostExpertStreams = 255, kMostOverlapSms = 64;

// Options of real frameworks that change what is exposed and held, not what is computed. The initial values
// describe no framework: kernels run at their benchmark speed.
struct FrameworkOptions {
  bool tp_overlap_forward = true;  // Userbuffers-style: forward TP collectives under their GEMM
  int tp_overlap_sms = 0;          // SMs that a TP collective holds while a product runs; 0 slows nothing
  bool records_streams = false;    // buffers of TP collectives live until the GPU has passed them
  bool overlap_param_gather = false;  // ZeRO-1/2 parameter all-gather under the next forward
  bool reduce_gradients = true;       // over DP x CP; false: a benchmark that leaves its gradients local
  bool scatter_gradients = true;      // ZeRO-1: each rank gets its shard of the sum, layer by layer under the
                                      // backward; false: all of them get all of it, behind the last backward
  bool overlap_grad_reduce = true;    // ZeRO-0/1: layer by layer under the backward; false: all behind it
  bool optimizer_step = true;         // false: a benchmark without optimizer and parameter gather
  bool keep_gathered_kv = false;      // all-gather CP: a backward reuses what its forward gathered
  double gradient_bytes = 4;          // per gradient element in the reduction
  double optimizer_bytes = 12;        // per parameter: fp32 master weight and two moments
  double gradient_copy_bytes =
      0;  // of a gradient element that stays in addition to gradient_bytes' accumulation
  double gradient_bucket_MB = 0;  // MiB of weights that are reduced at once under the backward; 0: one layer
  double gradient_add_bytes =
      0;  // moved of a dense layer's weight where a kernel of its own adds up its gradients
  double step_end_bytes = 0;     // moved of a rank's weight by clipping and zeroing, once per step
  double allocator_slack = 0;    // share of activations, logits and buffers: holes in a caching allocator
  bool fused_activation = true;  // false: a gated FFN keeps silu(gate) in addition to gate, up and product
  bool early_stop = false;       // a recomputed layer runs only what its backward needs
  bool ring_merges = false;      // a ring over CP combines its steps in separate kernels
  bool fused_rope = true;        // false: PyTorch's own kernels, Megatron-LM without apply_rope_fusion
  bool rope_by_document = true;  // such kernels are each packed document's; false: those of a batch of
                                 // sequences
  LossKind loss = LossKind::fused;
  LinearLayers linear_layers = LinearLayers::fused;
  StageDivision stage_division = StageDivision::even;  // of layers over virtual stages
  bool fp8_param_gather = false;                       // ZeRO-3 gathers weights of FP8 products in one byte
  // How much slower kernels run in training than alone, because of the power limit, changing shapes, and
  // unfused or older kernels.
  std::string attention_kernel;   // one of the profile's; its default if empty
  Load load = Load::as_measured;  // full if a preset's slowdowns were fitted with it
  double gemm_slowdown = 1;
  double attention_slowdown = 1;
  double elementwise_slowdown = 1;
  // The slowdown of the experts' grouped products in addition to gemm_slowdown. A library's rate is that of
  // one large product.
  double expert_gemm_slowdown = 1;
  // Time of each expert's product beyond its arithmetic: its launch, its first and last wave unless
  // neighbours hide them, and a host that falls behind.
  double expert_product_seconds = 0;
  // A captured graph launches the products without a pause.
  [[nodiscard]] double product_seconds() const {
    return host.graphs >= Graphs::layer ? 0 : expert_product_seconds;
  }
  // The profile's grouped kernel that takes all experts' products in one launch ("cutlass-grouped"). If
  // empty, the library runs one GEMM per expert on `expert_streams`.
  std::string expert_kernel;
  // Experts' products are issued on so many streams, so that as many share the SMs at a time; 0 means one
  // kernel for all of a rank's.
  int expert_streams = 0;
  // Whether the experts' activation, with GPT-OSS's clamp, is in the epilogue of a product. If not, and the
  // library loops over experts, the clamp is kernels of PyTorch.
  bool fused_expert_activation = false;
  // Whether one kernel sorts tokens by expert, and one weighs and sums up what comes back. If not,
  // index_select, the product with the probabilities, scatter_add and their gradients are a kernel each.
  bool permute_fusion = true;
  // Each expert computes this factor times the mean number of copies: further tokens are dropped, empty
  // places padded. With 0 every copy is computed.
  double expert_capacity_factor = 0;
  double expert_imbalance = 1;  // busiest expert-parallel rank over the mean, in every micro-batch
  // Standard deviation over mean of an expert's share of a document's tokens, from which each micro-batch
  // draws the extra load of the busiest rank (sim/cost/expert_load.h). With 0 the balance is forced.
  double expert_skew = 0;
  std::uint64_t expert_seed = 0;
  ExpertRouter expert_router = ExpertRouter::stated;
  ExpertOverlap expert_overlap = ExpertOverlap::none;
  // DeepEP sends a token once to each node and forwards it inside; NCCL's all-to-all sends every copy.
  ExpertDispatcher expert_dispatcher = ExpertDispatcher::all_to_all;
  // SMs that an exchange's kernels hold; compute under it runs on the others (docs/explanation/experts.md).
  int exchange_sms = 0;
  // Whether that compute is launched for the remaining SMs. If it is launched for all, the blocks of the SMs
  // that the exchange holds run in a wave of their own.
  bool exchange_sm_margin = true;
  // Small kernels per pass of a layer with experts, other than those that move its tokens: softmax, choice,
  // auxiliary loss, counts and maps. Each takes the GPU its least time and the host a launch.
  int routing_kernels = 0;
  int expert_nodes = 0;       // most nodes that hold a token's experts; 0 takes the router's limit
  double dispatch_bytes = 0;  // per element sent to experts; 0 means an activation's bytes, 1 is FP8 dispatch
  HostOptions host;
  // Host time of each op of the model, in place of counted launches.
  std::optional<double> seconds_per_op;
  // Bytes that the loss holds of each logit at once. 6: fp32 logits that become their softmax and then their
  // gradient in place, and the bf16 copy that a GEMM writes or reads (Megatron-LM's vocabulary-parallel
  // loss). 10: bf16 logits, fp32 log-softmax, and an fp32 copy that makes room for the gradient (PyTorch's
  // loss under autocast). 14: the copy and the gradient stay separate (a model that keeps its fp32 logits).
  double logit_bytes = 6;
  // Bytes per element that FP8 linear layers keep. Inputs are kept for the weight gradient: one byte in
  // Transformer Engine with one scale per tensor, two if they are cast again. Attention's output is kept in
  // bf16 for its own backward and as the next layer's input. The others are what an FFN's activation reads,
  // weights that train in addition to bf16, and frozen weights in all.
  double fp8_input_bytes = 1;
  double fp8_attention_bytes = 3;
  double fp8_activation_bytes = 2;
  double fp8_weight_bytes = 2;
  double fp8_frozen_weight_bytes = 4;
  // ChunkFlow without a pipeline holds K + 1 chunks, not K, unless strict_keep (sim/memory/memory_model.h).
  bool recompute_ahead = true;
  // Kernels are those of kernels/ and ranks those of sim/execution. Row ops move the bytes of the table in
  // kernels/row_ops.h, and a copy puts keys from other ranks in order.
  bool own_kernels = false;
};

}  // namespace equipoise

// Where each rank of a 4D-parallel job sits: rank coordinates <-> GPU number, and how each axis' groups lie
// over nodes.
//
// GPU g of the job sits in node g / gpus_per_node. The order string names the axes from the innermost out:
// "tp-cp-ep-dp-pp" (Megatron's default) gives TP neighbours adjacent GPUs and puts pipeline stages furthest
// apart; Llama 3 used [TP, CP, PP, DP] = "tp-cp-ep-pp-dp".
//
// Expert parallelism takes no GPUs of its own: the experts of a pipeline stage are spread over the ranks that
// CP and DP already span. As in Megatron the expert layers read the same GPU numbers with CP folded into DP,
// sizes (tp, ep, dp*cp/ep, pp) in the same order. So ep must divide cp*dp, and an order that would move a
// rank to another pipeline stage or TP group is refused. Experts may have a tensor parallelism of their own,
// a divisor of tp (arXiv 2504.14960, "MoE parallel folding"): the sizes are then (etp, ep, tp*cp*dp/(etp*ep),
// pp), and an expert-parallel group spans TP ranks, too.
//
// CP ranks are numbered inner group by inner group (Layout::context_inner). GPUs follow that order, or, with
// outer_first, the ranks of equal number of all inner groups are neighbours.
#pragma once

#include <array>
#include <map>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/ops.h"
#include "policies/base/index.h"

namespace equipoise {

enum class Axis { tensor, context, expert, data, pipeline };
inline constexpr int kAxes = 5;

struct ParallelSizes {
  int tensor = 1;
  int context = 1;
  int expert = 1;
  int data = 1;
  int pipeline = 1;
  int expert_tensor = 0;  // 0: tensor
  int context_inner = 1;  // ranks of a CP group's inner groups, a divisor of `context`
  bool outer_first = false;
};

// Place of one GPU in the dense layers' grid; its place among the experts follows from its number.
struct RankCoordinates {
  int tensor = 0;
  int context = 0;
  int data = 0;
  int pipeline = 0;
  friend constexpr bool operator==(const RankCoordinates&, const RankCoordinates&) = default;
};

class RankGrid {
 public:
  // Throws UserError if the order is no permutation of the axes ("ep" may be missing if expert is 1), a size
  // is below 1, or expert or expert_tensor do not fit as described above.
  RankGrid(std::string_view order, const ParallelSizes& sizes, int gpus_per_node);

  [[nodiscard]] const ParallelSizes& sizes() const { return sizes_; }
  [[nodiscard]] int gpus() const { return gpus_; }
  [[nodiscard]] int gpus_per_node() const { return gpus_per_node_; }
  [[nodiscard]] int nodes() const { return (gpus_ + gpus_per_node_ - 1) / gpus_per_node_; }
  [[nodiscard]] int node(int gpu) const { return gpu / gpus_per_node_; }

  [[nodiscard]] int gpu(const RankCoordinates& at) const;
  [[nodiscard]] RankCoordinates coordinates(int gpu) const;

  // The GPUs of the axis' group that `gpu` belongs to, by rising coordinate.
  [[nodiscard]] std::vector<int> group(Axis axis, int gpu) const;
  // The ranks that hold the same parameters: DP x CP for one (tensor, pipeline). ZeRO shards over them.
  [[nodiscard]] std::vector<int> data_context_group(int gpu) const;

  // The shape of an axis's groups over nodes. If they differ, it is that of the group over the most nodes,
  // with its ranks assumed to be evenly spread: the others wait for the slowest group.
  [[nodiscard]] GroupShape shape(Axis axis) const { return shapes_[at(axis)]; }
  [[nodiscard]] GroupShape data_context_shape() const { return data_context_shape_; }
  [[nodiscard]] GroupShape expert_data_shape() const { return expert_data_shape_; }
  [[nodiscard]] GroupShape expert_tensor_shape() const { return expert_tensor_shape_; }
  // The shape of a CP group with another degree than the layout's (lanes of HBP, FlexSP, dynamic CP). It has
  // `degree` consecutive ranks of the grid that CP and DP span together, which `degree` need not divide (5
  // and 3 of 8). Throws UserError if there are not as many. Divisors are looked up; others take O(cp * dp *
  // degree).
  [[nodiscard]] GroupShape context_shape(int degree) const;
  // Ranks in an inner group of such a CP group; then the shape of equal ranks of its inner groups.
  [[nodiscard]] int inner_ranks(int degree) const { return std::gcd(sizes_.context_inner, degree); }
  [[nodiscard]] GroupShape outer_shape(int degree) const;

  // The shape of the group of these GPUs, assumed to be evenly spread over their nodes.
  [[nodiscard]] GroupShape shape_of(std::span<const int> gpus) const;

  // A pipeline transfer between two stages: {2, 2} if sender and receiver share a node in every lane, else
  // {2, 1}. It is {1, 1} from a stage to itself (virtual stages with pipeline 1).
  [[nodiscard]] GroupShape hop_shape(int from_stage, int to_stage) const;

 private:
  struct Digit {  // one axis as a digit of the GPU number
    int size = 1;
    int stride = 1;
    [[nodiscard]] int of(int gpu) const { return gpu / stride % size; }
  };
  template <class Visit>
  void each_place(const Digit& digit, const Visit& visit) const;
  [[nodiscard]] GroupShape shape_along(const Digit& digit) const;
  [[nodiscard]] int context_digit(int rank) const;
  [[nodiscard]] GroupShape merged_shape(int degree, int stride) const;
  void check_degree(int degree) const;
  [[nodiscard]] GroupShape hop_between(int from_stage, int to_stage) const;
  // The GPUs of one (tensor, pipeline), CP and DP merged, the inner axis fastest.
  [[nodiscard]] std::vector<int> merged_group(int tensor, int pipeline) const;

  ParallelSizes sizes_;
  int gpus_per_node_ = 1;
  int gpus_ = 1;
  std::array<Digit, kAxes> digits_;  // dense grid, in which expert has size 1
  Digit expert_;                     // expert grid
  bool own_expert_grid_ = false;     // whether expert layers order ranks differently from dense ones
  std::array<GroupShape, kAxes> shapes_;
  std::map<int, GroupShape> context_shapes_, outer_shapes_;  // by degree
  std::vector<GroupShape> next_hops_;  // from each stage to the next, and from the last to the first
  GroupShape data_context_shape_;
  GroupShape expert_data_shape_;
  GroupShape expert_tensor_shape_;
};

}  // namespace equipoise

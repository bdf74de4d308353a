#include "sim/topology/rank_grid.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>

#include "policies/base/error.h"

namespace equipoise {

constexpr std::array<std::string_view, kAxes> kAxisNames = {"tp", "cp", "ep", "dp", "pp"};
constexpr std::string_view kDefaultOrder = "tp-cp-ep-dp-pp";

[[noreturn]] static void bad_order(std::string_view order, const std::string& why) {
  throw UserError("parallel.order: ", why, " in \"", order,
                  "\"; expected each of tp, cp, ep, dp, pp once, e.g. \"", kDefaultOrder, "\"");
}

// The axes from the innermost out. "ep" may be missing if it has no effect.
static std::vector<Axis> parse_order(std::string_view order, bool expert_matters) {
  std::vector<Axis> axes;
  std::size_t begin = 0;
  while (begin <= order.size()) {
    const std::size_t end = std::min(order.find('-', begin), order.size());
    const std::string_view name = order.substr(begin, end - begin);
    const auto it = std::find(kAxisNames.begin(), kAxisNames.end(), name);
    if (it == kAxisNames.end()) bad_order(order, "unknown axis \"" + std::string(name) + "\"");
    const auto axis = static_cast<Axis>(it - kAxisNames.begin());
    if (std::ranges::find(axes, axis) != axes.end()) bad_order(order, "axis " + std::string(name) + " twice");
    axes.push_back(axis);
    begin = end + 1;
  }
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) continue;
    if (axis == Axis::expert && !expert_matters) continue;
    bad_order(order, "axis " + std::string(kAxisNames[at(a)]) + " missing");
  }
  return axes;
}

static void require_positive(int size, const char* key) {
  if (size < 1) throw UserError(key, ": expected an integer >= 1, found ", size);
}

// Refuses degrees that make no grid. Returns the number of GPUs.
static int gpus_of(const ParallelSizes& sizes, int gpus_per_node) {
  require_positive(sizes.tensor, "parallel.tensor");
  require_positive(sizes.context, "parallel.context");
  require_positive(sizes.expert, "parallel.expert");
  require_positive(sizes.data, "parallel.data");
  require_positive(sizes.pipeline, "parallel.pipeline");
  require_positive(sizes.expert_tensor, "parallel.expert_tensor");
  require_positive(gpus_per_node, "cluster.gpus_per_node");
  std::int64_t product = 1;
  for (const int size : {sizes.tensor, sizes.context, sizes.data, sizes.pipeline}) {
    product *= size;
    if (product > std::numeric_limits<int>::max())
      throw UserError("parallel: tensor * context * data * pipeline is more than 2147483647 GPUs");
  }
  if (sizes.tensor % sizes.expert_tensor != 0)
    throw UserError("parallel.expert_tensor: expected a divisor of tensor = ", sizes.tensor, ", found ",
                    sizes.expert_tensor);
  const int expert_ranks = sizes.tensor / sizes.expert_tensor * sizes.context * sizes.data;
  if (expert_ranks % sizes.expert != 0)
    throw UserError("parallel.expert: expected a divisor of tensor * context * data / expert_tensor = ",
                    expert_ranks, ", found ", sizes.expert);
  return static_cast<int>(product);
}

static ParallelSizes with_expert_tensor(ParallelSizes sizes) {
  if (sizes.expert_tensor == 0) sizes.expert_tensor = sizes.tensor;
  return sizes;
}

RankGrid::RankGrid(std::string_view order, const ParallelSizes& asked, int gpus_per_node)
    : sizes_(with_expert_tensor(asked)),
      gpus_per_node_(gpus_per_node),
      gpus_(gpus_of(sizes_, gpus_per_node)) {
  const ParallelSizes& sizes = sizes_;
  const int merged = sizes.context * sizes.data, expert_tensor = sizes.expert_tensor;
  const int expert_ranks = sizes.tensor / expert_tensor * merged;
  // Without experts the merged grid is plain CP x DP, whatever the order is.
  own_expert_grid_ = sizes.expert > 1 || expert_tensor < sizes.tensor;

  const std::array<int, kAxes> dense = {sizes.tensor, sizes.context, 1, sizes.data, sizes.pipeline};
  const std::array<int, kAxes> expert = {expert_tensor, 1, sizes.expert, expert_ranks / sizes.expert,
                                         sizes.pipeline};
  std::array<Digit, kAxes> expert_digits;
  int dense_stride = 1;
  int expert_stride = 1;
  for (const Axis axis : parse_order(order, sizes.expert > 1)) {
    const auto a = at(axis);
    digits_[a] = {dense[a], dense_stride};
    expert_digits[a] = {expert[a], expert_stride};
    dense_stride *= dense[a];
    expert_stride *= expert[a];
  }
  expert_ = expert_digits[at(Axis::expert)];
  for (const Axis axis : {Axis::tensor, Axis::pipeline}) {
    const auto a = at(axis);
    if (own_expert_grid_ && expert[a] > 1 && digits_[a].stride != expert_digits[a].stride)
      bad_order(order, "expert layers would move ranks between " + std::string(kAxisNames[a]) + " groups");
  }
  if (!own_expert_grid_) expert_ = {1, 1};

  for (int a = 0; a < kAxes; ++a)
    shapes_[at(a)] = shape_along(static_cast<Axis>(a) == Axis::expert ? expert_ : digits_[at(a)]);
  for (int degree = 1; degree <= merged; ++degree)
    if (merged % degree == 0) {
      context_shapes_[degree] = merged_shape(degree, 1);
      outer_shapes_[degree] = merged_shape(degree, inner_ranks(degree));
    }
  for (int stage = 0; stage < sizes.pipeline; ++stage)
    next_hops_.push_back(hop_between(stage, (stage + 1) % sizes.pipeline));
  data_context_shape_ = context_shapes_.at(merged);
  expert_data_shape_ = own_expert_grid_ ? shape_along(expert_digits[at(Axis::data)]) : data_context_shape_;
  expert_tensor_shape_ = shape_along({expert_tensor, digits_[0].stride});
}

// A CP rank's place among its group's GPUs.
int RankGrid::context_digit(int rank) const {
  if (!sizes_.outer_first) return rank;
  const int inner = sizes_.context_inner;
  return rank % inner * (sizes_.context / inner) + rank / inner;
}

int RankGrid::gpu(const RankCoordinates& at) const {
  return at.tensor * digits_[0].stride + context_digit(at.context) * digits_[1].stride +
         at.data * digits_[3].stride + at.pipeline * digits_[4].stride;
}

RankCoordinates RankGrid::coordinates(int gpu) const {
  int context = 0;
  while (context_digit(context) != digits_[1].of(gpu)) ++context;
  return {digits_[0].of(gpu), context, digits_[3].of(gpu), digits_[4].of(gpu)};
}

std::vector<int> RankGrid::group(Axis axis, int gpu) const {
  const Digit& digit = axis == Axis::expert ? expert_ : digits_[at(axis)];
  const int first = gpu - digit.of(gpu) * digit.stride;
  std::vector<int> members;
  members.reserve(at(digit.size));
  for (int i = 0; i < digit.size; ++i) members.push_back(first + i * digit.stride);
  return members;
}

std::vector<int> RankGrid::merged_group(int tensor, int pipeline) const {
  const Digit& context = digits_[at(Axis::context)];
  const Digit& data = digits_[at(Axis::data)];
  const bool context_inner = context.stride <= data.stride;
  const int inner = context_inner ? context.size : data.size;
  const int outer = context_inner ? data.size : context.size;
  std::vector<int> members;
  members.reserve(at(inner) * at(outer));
  for (int o = 0; o < outer; ++o)
    for (int i = 0; i < inner; ++i)
      members.push_back(gpu({tensor, context_inner ? i : o, context_inner ? o : i, pipeline}));
  return members;
}

std::vector<int> RankGrid::data_context_group(int gpu) const {
  const RankCoordinates at = coordinates(gpu);
  return merged_group(at.tensor, at.pipeline);
}

// Calls visit(first) with the first GPU of groups along the digit, one for each place in a node where such
// groups begin: how they lie over nodes depends on nothing else. Stops where visit returns false.
template <class Visit>
void RankGrid::each_place(const Digit& digit, const Visit& visit) const {
  std::vector<char> seen(at(std::min(gpus_per_node_, gpus_)));
  const std::int64_t block = std::int64_t{digit.size} * digit.stride;
  for (std::int64_t outer = 0; outer < gpus_; outer += block)
    for (std::int64_t first = outer; first < outer + digit.stride; ++first) {
      char& known = seen[at(first % gpus_per_node_)];
      if (known != 0) continue;
      known = 1;
      if (!visit(static_cast<int>(first))) return;
    }
}

GroupShape RankGrid::shape_along(const Digit& digit) const {
  int most_nodes = 1;
  each_place(digit, [&](int first) {
    int touched = 0;
    int last = -1;
    for (int i = 0; i < digit.size; ++i) {
      const int n = node(first + i * digit.stride);
      touched += n != last ? 1 : 0;
      last = n;
    }
    most_nodes = std::max(most_nodes, touched);
    return true;
  });
  return {digit.size, (digit.size + most_nodes - 1) / most_nodes};
}

// Every `stride`-th of `degree` consecutive ranks of each merged grid. Members may visit nodes out of order
// if DP is the inner axis, so a node counts the first time it is seen in the group. Grids that begin at the
// same place in a node have groups of the same shape.
GroupShape RankGrid::merged_shape(int degree, int stride) const {
  int most_nodes = 1;
  std::vector<char> begun(at(std::min(gpus_per_node_, gpus_)));
  std::vector<int> seen(at(nodes()), -1);
  int group = 0;
  for (int p = 0; p < sizes_.pipeline; ++p)
    for (int t = 0; t < sizes_.tensor; ++t) {
      char& known = begun[at(gpu({t, 0, 0, p}) % gpus_per_node_)];
      if (known != 0) continue;
      known = 1;
      const std::vector<int> all = merged_group(t, p);
      // Degrees that divide the grid cut it into groups. Groups of other degrees may begin after any group.
      const std::size_t next = all.size() % at(degree) == 0 ? at(degree) : 1;
      for (std::size_t begin = 0; begin + at(degree) <= all.size(); begin += next)
        for (std::size_t first = begin; first < begin + at(stride); ++first, ++group) {
          int touched = 0;
          for (std::size_t i = first; i < begin + at(degree); i += at(stride)) {
            int& last = seen[at(node(all[i]))];
            touched += last != group ? 1 : 0;
            last = group;
          }
          most_nodes = std::max(most_nodes, touched);
        }
    }
  const int ranks = degree / stride;
  return {ranks, (ranks + most_nodes - 1) / most_nodes};
}

void RankGrid::check_degree(int degree) const {
  if (const int ranks = sizes_.context * sizes_.data; degree < 1 || degree > ranks)
    throw UserError("context degree: expected 1 to context * data = ", ranks, ", found ", degree);
}

GroupShape RankGrid::context_shape(int degree) const {
  const auto found = context_shapes_.find(degree);
  if (found != context_shapes_.end()) return found->second;
  check_degree(degree);
  return merged_shape(degree, 1);
}

GroupShape RankGrid::outer_shape(int degree) const {
  const auto found = outer_shapes_.find(degree);
  if (found != outer_shapes_.end()) return found->second;
  check_degree(degree);
  return merged_shape(degree, inner_ranks(degree));
}

GroupShape RankGrid::shape_of(std::span<const int> gpus) const {
  std::set<int> nodes;
  for (const int gpu : gpus) nodes.insert(node(gpu));
  const auto ranks = static_cast<int>(gpus.size()), touched = static_cast<int>(nodes.size());
  return {ranks, (ranks + touched - 1) / touched};
}

GroupShape RankGrid::hop_shape(int from_stage, int to_stage) const {
  const int last = sizes_.pipeline - 1;
  if (to_stage == (from_stage == last ? 0 : from_stage + 1)) return next_hops_[at(from_stage)];
  if (from_stage == (to_stage == last ? 0 : to_stage + 1)) return next_hops_[at(to_stage)];
  return hop_between(from_stage, to_stage);
}

GroupShape RankGrid::hop_between(int from_stage, int to_stage) const {
  if (from_stage == to_stage) return {1, 1};
  const Digit& pipeline = digits_[at(Axis::pipeline)];
  bool together = true;
  each_place(pipeline, [&](int first) {
    return together = node(first + from_stage * pipeline.stride) == node(first + to_stage * pipeline.stride);
  });
  return {2, together ? 2 : 1};
}

}  // namespace equipoise

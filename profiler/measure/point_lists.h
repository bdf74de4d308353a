// Which points a run measures, in the order in which they tell most.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "profiler/measure/point.h"

namespace equipoise::measure {

// How large the shapes get, by device: a CPU core is four orders of magnitude slower than a Hopper GPU.
struct Scale {
  double most_flops = 0;         // of one call
  double most_bytes = 0;         // of one buffer set
  std::int64_t most_tokens = 0;  // queries, keys, GEMM rows
  std::int64_t most_copy_bytes = 0;
  std::int64_t most_collective_bytes = 0;
  bool gpu = false;
};
Scale scale_of(std::string_view backend);

struct ListOptions {
  Scale scale;
  kernels::ElementType type = kernels::ElementType::f32;
  std::vector<std::string> models;    // names from layer_shapes.h; empty: all of the device's
  std::vector<std::int64_t> lengths;  // document lengths of the packed mixes
  std::uint64_t seed = 0;
};

// Samples of a table that a fit needs at least (profiler/fit/recipe.h).
inline constexpr std::size_t kLeastOfTable = 4;

// Of each list the first points are those that no profile can do without: of row ops kLeastOfTable of every
// op.
std::vector<Point> launch_points();
std::vector<Point> copy_points(const ListOptions& options);
std::vector<Point> attention_points(const ListOptions& options);
std::vector<Point> gemm_points(const ListOptions& options);  // throws UserError for an unknown model
std::vector<Point> row_points(const ListOptions& options);
std::vector<Point> collective_points(const ListOptions& options, int ranks);

}  // namespace equipoise::measure

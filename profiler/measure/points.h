// A point is one shape to measure. Its key names it in files, so that a run can be resumed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/backend.h"
#include "kernels/ops.h"

namespace equipoise::measure {

struct LaunchPoint {};

struct CopyPoint {
  std::int64_t bytes = 0;  // copied bytes, which are read once and written once
};

struct AttentionPoint {
  kernels::AttentionShape shape;
  kernels::Pass pass = kernels::Pass::forward;
  std::vector<kernels::Piece> pieces;
  std::string what;  // "one piece", "packed", "context-parallel shard"
};

struct GemmPoint {
  kernels::GemmShape shape;
  std::string what;  // "qwen2.5-0.5b qkv forward"
};

struct RowPoint {
  std::size_t op = 0;  // index in kernels::kRowOps
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

struct CollectivePoint {
  Collective kind = Collective::all_gather;
  std::int64_t bytes = 0;  // the size by nccl-tests' convention
  int ranks = 0;           // a group of the first `ranks` ranks
};

struct Point {
  std::variant<LaunchPoint, CopyPoint, AttentionPoint, GemmPoint, RowPoint, CollectivePoint> what;
  std::vector<double> place;  // log sizes: coordinates in its family's space
};

// The family decides who fits the point: "launch", "copy", "attention", "gemm", "elementwise", "collective".
std::string_view family_of(const Point& point);

// Names the point and everything that its time depends on. Equal keys mean the same measurement.
std::string key_of(const Point& point);

// The names, its family's included, under which kernels/checks.h reports the kernels of the point. A point is
// measured only if none of their checks failed.
std::vector<std::string> checked_ops(const Point& point);

// The device memory that one buffer set of the point needs, and an estimate of its work. Points too large for
// the device are skipped.
double bytes_of(const Point& point, kernels::ElementType type);
double flops_of(const Point& point);

// The bytes of a row-wise op by the simulator's convention: each input is read once, each output written
// once.
double row_op_bytes(const RowPoint& point, kernels::ElementType type);

// Orders points so that any prefix of the list covers the family's range: it starts at the first point, and
// each next point is the farthest (in `place`) from those before it. Computes O(n^2) distances.
std::vector<Point> most_informative_first(std::vector<Point> points);

// --- The linear layers of public models, whose GEMM shapes are measured.

struct LayerShape {
  std::string_view model;
  int hidden = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int ffn = 0;
  int vocabulary = 0;
};

// GPUs measure published models, CPU ranks narrow stacks and the smallest model.
std::span<const LayerShape> gpu_layers();
std::span<const LayerShape> cpu_layers();

// The forward, input-gradient and weight-gradient GEMMs of the model's linear layers over `tokens` rows on
// one of `tensor` tensor-parallel ranks. Layers that `tensor` does not divide are skipped.
std::vector<GemmPoint> gemms_of(const LayerShape& layer, int tensor, std::int64_t tokens);

// --- The points that a run measures, the most informative first.

// The largest shapes of a device. A CPU core is four orders of magnitude slower than a Hopper GPU.
struct Scale {
  double most_flops = 0;         // most operations of one call
  double most_bytes = 0;         // most bytes of one buffer set
  std::int64_t most_tokens = 0;  // queries, keys, GEMM rows
  std::int64_t most_copy_bytes = 0;
  std::int64_t most_collective_bytes = 0;
  bool gpu = false;
};
Scale scale_of(std::string_view backend);

struct ListOptions {
  Scale scale;
  kernels::ElementType type = kernels::ElementType::f32;
  std::vector<std::string> models;    // names of the layers above; empty: all of the device's
  std::vector<std::int64_t> lengths;  // document lengths of the packed mixes
  std::uint64_t seed = 0;
};

// The fewest samples of a table that a fit accepts (profiler/fit/recipe.h).
inline constexpr std::size_t kLeastOfTable = 4;

// Each list begins with the points that every profile needs: for row ops, kLeastOfTable of every op.
std::vector<Point> launch_points();
std::vector<Point> copy_points(const ListOptions& options);
std::vector<Point> attention_points(const ListOptions& options);
std::vector<Point> gemm_points(const ListOptions& options);  // throws UserError for an unknown model
std::vector<Point> row_points(const ListOptions& options);
std::vector<Point> collective_points(const ListOptions& options, int ranks);

}  // namespace equipoise::measure

#include "profiler/measure/point.h"

#include <algorithm>
#include <cmath>

namespace equipoise::measure {
namespace {

using kernels::AttentionShape;
using kernels::ElementType;
using kernels::Piece;

std::string pieces_text(const std::vector<Piece>& pieces) {
  std::string text;
  for (const Piece& piece : pieces) {
    if (!text.empty()) text += ',';
    text += std::to_string(piece.queries);
    text += ':';
    text += std::to_string(piece.keys);
  }
  return text;
}

double elements_of(const AttentionShape& shape, const std::vector<Piece>& pieces, bool queries) {
  double rows = 0;
  for (const Piece& piece : pieces) rows += static_cast<double>(queries ? piece.queries : piece.keys);
  return rows * shape.head_dim * (queries ? shape.query_heads : shape.kv_heads);
}

const kernels::RowOp& op_of(const RowPoint& point) {
  return kernels::kRowOps[point.op];
}

std::string shape_text(const AttentionShape& shape) {
  return std::to_string(shape.head_dim) + "/" + std::to_string(shape.query_heads) + "/" +
         std::to_string(shape.kv_heads);
}

std::string key_text(const LaunchPoint&) {
  return "";
}
std::string key_text(const CopyPoint& point) {
  return std::to_string(point.bytes);
}
std::string key_text(const AttentionPoint& point) {
  return std::string(name_of(point.pass)) + " " + shape_text(point.shape) + " " + pieces_text(point.pieces);
}
std::string key_text(const GemmPoint& point) {
  return std::to_string(point.shape.m) + "x" + std::to_string(point.shape.n) + "x" +
         std::to_string(point.shape.k) + (point.shape.transpose_a ? "T" : "N") +
         (point.shape.transpose_b ? "T" : "N");
}
std::string key_text(const RowPoint& point) {
  return kernels::table_name(op_of(point)) + " " + std::to_string(point.rows) + "x" +
         std::to_string(point.columns);
}
std::string key_text(const CollectivePoint& point) {
  return std::string(name_of(point.kind)) + " " + std::to_string(point.bytes) + " over " +
         std::to_string(point.ranks);
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

}  // namespace

std::string_view family_of(const Point& point) {
  constexpr std::string_view kFamilies[] = {"launch", "copy",        "attention",
                                            "gemm",   "elementwise", "collective"};
  return kFamilies[point.what.index()];
}

std::string key_of(const Point& point) {
  return std::string(family_of(point)) + " " +
         std::visit([](const auto& what) { return key_text(what); }, point.what);
}

std::vector<std::string> checked_ops(const Point& point) {
  std::vector<std::string> ops{std::string(family_of(point))};
  if (const auto* attention = std::get_if<AttentionPoint>(&point.what)) {
    ops.emplace_back("attention_forward");  // the backward pass needs its output
    if (attention->pass == kernels::Pass::backward) ops.emplace_back("attention_backward");
  } else if (const auto* row = std::get_if<RowPoint>(&point.what)) {
    ops.emplace_back(op_of(*row).name);
  } else if (const auto* collective = std::get_if<CollectivePoint>(&point.what)) {
    const bool pair = collective->kind == Collective::send_recv;
    ops.emplace_back(pair ? "send_receive" : name_of(collective->kind));
  }
  return ops;
}

double row_op_bytes(const RowPoint& point, ElementType type) {
  const auto element = static_cast<double>(kernels::bytes_of(type));
  const double count = static_cast<double>(point.rows) * static_cast<double>(point.columns);
  return count * (op_of(point).state_bytes + op_of(point).elements * element);
}

double bytes_of(const Point& point, ElementType type) {
  const auto element = static_cast<double>(kernels::bytes_of(type));
  if (const auto* copy = std::get_if<CopyPoint>(&point.what)) return 2 * static_cast<double>(copy->bytes);
  if (const auto* attention = std::get_if<AttentionPoint>(&point.what)) {
    // Q and O (and their gradients), K and V (and theirs).
    const double both = 2 * (elements_of(attention->shape, attention->pieces, true) +
                             elements_of(attention->shape, attention->pieces, false));
    return both * element * (attention->pass == kernels::Pass::forward ? 1 : 2);
  }
  if (const auto* gemm = std::get_if<GemmPoint>(&point.what)) {
    const auto m = static_cast<double>(gemm->shape.m);
    const auto n = static_cast<double>(gemm->shape.n);
    const auto k = static_cast<double>(gemm->shape.k);
    return (m * k + k * n + m * n) * element;
  }
  if (const auto* row = std::get_if<RowPoint>(&point.what)) return row_op_bytes(*row, type);
  if (const auto* collective = std::get_if<CollectivePoint>(&point.what)) {
    return 2 * static_cast<double>(collective->bytes);
  }
  return 0;
}

double flops_of(const Point& point) {
  if (const auto* attention = std::get_if<AttentionPoint>(&point.what)) {
    double pairs = 0;
    for (const Piece& piece : attention->pieces) pairs += static_cast<double>(kernels::pairs_of(piece));
    const double forward = 4.0 * attention->shape.query_heads * attention->shape.head_dim * pairs;
    return attention->pass == kernels::Pass::forward ? forward : 2.5 * forward;
  }
  if (const auto* gemm = std::get_if<GemmPoint>(&point.what)) {
    return 2.0 * static_cast<double>(gemm->shape.m) * static_cast<double>(gemm->shape.n) *
           static_cast<double>(gemm->shape.k);
  }
  return 0;
}

std::vector<Point> most_informative_first(std::vector<Point> points) {
  std::vector<double> nearest(points.size(), 1e300);  // squared distance to the points already chosen
  for (std::size_t next = 1; next < points.size(); ++next) {
    std::size_t farthest = next;
    for (std::size_t i = next; i < points.size(); ++i) {
      nearest[i] = std::min(nearest[i], distance(points[i].place, points[next - 1].place));
      if (nearest[i] > nearest[farthest]) farthest = i;
    }
    // Rotation keeps the rest in its order, so that ties go to the earlier point.
    std::rotate(points.begin() + static_cast<std::ptrdiff_t>(next),
                points.begin() + static_cast<std::ptrdiff_t>(farthest),
                points.begin() + static_cast<std::ptrdiff_t>(farthest) + 1);
    std::rotate(nearest.begin() + static_cast<std::ptrdiff_t>(next),
                nearest.begin() + static_cast<std::ptrdiff_t>(farthest),
                nearest.begin() + static_cast<std::ptrdiff_t>(farthest) + 1);
  }
  return points;
}

}  // namespace equipoise::measure

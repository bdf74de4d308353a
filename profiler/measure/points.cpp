#include "profiler/measure/points.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/random.h"
#include "policies/base/text.h"

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
  return concatenated(shape.head_dim, "/", shape.query_heads, "/", shape.kv_heads);
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
  return concatenated(point.shape.m, "x", point.shape.n, "x", point.shape.k,
                      point.shape.transpose_a ? "T" : "N", point.shape.transpose_b ? "T" : "N");
}
std::string key_text(const RowPoint& point) {
  return concatenated(kernels::table_name(op_of(point)), " ", point.rows, "x", point.columns);
}
std::string key_text(const CollectivePoint& point) {
  return concatenated(name_of(point.kind), " ", point.bytes, " over ", point.ranks);
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
    // Counts Q, O, K and V, and in the backward pass their gradients.
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
  if (const auto* collective = std::get_if<CollectivePoint>(&point.what))
    return 2 * static_cast<double>(collective->bytes);
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

namespace {

// Shapes are from the models' published config.json files. DeepSeek-V2 contributes its routed experts (two of
// them have a width of 3072) and its attention output; its low-rank projections are near Qwen2.5's shapes.
constexpr std::array<LayerShape, 10> kGpu{{{"llama2-7b", 4096, 32, 32, 128, 11008, 32000},
                                           {"llama3.1-8b", 4096, 32, 8, 128, 14336, 128256},
                                           {"llama3.1-70b", 8192, 64, 8, 128, 28672, 128256},
                                           {"llama3.1-405b", 16384, 128, 8, 128, 53248, 128256},
                                           {"qwen2.5-0.5b", 896, 14, 2, 64, 4864, 151936},
                                           {"qwen2.5-7b", 3584, 28, 4, 128, 18944, 152064},
                                           {"qwen2.5-14b", 5120, 40, 8, 128, 13824, 152064},
                                           {"qwen2.5-32b", 5120, 40, 8, 128, 27648, 152064},
                                           {"qwen2.5-72b", 8192, 64, 8, 128, 29568, 152064},
                                           {"deepseek-v2", 5120, 128, 128, 128, 1536, 102400}}};

constexpr std::array<LayerShape, 5> kCpu{{{"narrow-128", 128, 4, 2, 32, 352, 1024},
                                          {"narrow-256", 256, 4, 2, 64, 704, 2048},
                                          {"narrow-512", 512, 8, 4, 64, 1408, 4096},
                                          {"narrow-768", 768, 6, 2, 128, 2048, 8192},
                                          {"qwen2.5-0.5b", 896, 14, 2, 64, 4864, 16384}}};

struct Linear {
  const char* name;
  std::int64_t outputs;
  std::int64_t inputs;
};

}  // namespace

std::span<const LayerShape> gpu_layers() {
  return kGpu;
}
std::span<const LayerShape> cpu_layers() {
  return kCpu;
}

std::vector<GemmPoint> gemms_of(const LayerShape& layer, int tensor, std::int64_t tokens) {
  std::vector<GemmPoint> points;
  if (layer.query_heads % tensor != 0 || layer.kv_heads % tensor != 0 || layer.ffn % tensor != 0 ||
      layer.vocabulary % tensor != 0)
    return points;
  const std::int64_t attention = layer.query_heads * layer.head_dim / tensor;
  const std::int64_t qkv = attention + 2 * layer.kv_heads * layer.head_dim / tensor;
  const Linear linears[] = {{"qkv", qkv, layer.hidden},
                            {"attention output", layer.hidden, attention},
                            {"gate and up", 2 * layer.ffn / tensor, layer.hidden},
                            {"down", layer.hidden, layer.ffn / tensor},
                            {"logits", layer.vocabulary / tensor, layer.hidden}};
  for (const Linear& linear : linears) {
    const std::string what = concatenated(layer.model, " tp ", tensor, " ", linear.name);
    points.push_back({{tokens, linear.outputs, linear.inputs, false, true, false}, what + " forward"});
    points.push_back(
        {{tokens, linear.inputs, linear.outputs, false, false, false}, what + " input gradient"});
    points.push_back(
        {{linear.outputs, linear.inputs, tokens, true, false, false}, what + " weight gradient"});
  }
  return points;
}

namespace {

constexpr const char* kPublishedShape = "published shape";
constexpr double kMostRowBytes = 8e9;  // limit of a row-wise op; a GPU reaches its memory rate long before

double log2_of(std::int64_t value) {
  return std::log2(static_cast<double>(std::max<std::int64_t>(value, 1)));
}

bool fits(const Point& point, const ListOptions& options) {
  return flops_of(point) <= options.scale.most_flops &&
         bytes_of(point, options.type) <= options.scale.most_bytes;
}

// The distinct points that fit into the device, the most informative first.
std::vector<Point> ordered(std::vector<Point> points, const ListOptions& options) {
  std::set<std::string> seen;
  std::vector<Point> kept;
  for (Point& point : points)
    if (fits(point, options) && seen.insert(key_of(point)).second) kept.push_back(std::move(point));
  return most_informative_first(std::move(kept));
}

// Sizes lowest, lowest * 2^(1/steps), ... up to highest. Those between powers of two leave tiles partly
// filled.
std::vector<std::int64_t> log_grid(std::int64_t lowest, std::int64_t highest, int steps_per_octave) {
  std::vector<std::int64_t> values;
  const double octaves = std::log2(static_cast<double>(highest) / static_cast<double>(lowest));
  const int steps = static_cast<int>(std::lround(octaves * steps_per_octave));
  for (int i = 0; i <= steps; ++i) {
    const double value = static_cast<double>(lowest) * std::exp2(static_cast<double>(i) / steps_per_octave);
    values.push_back(std::min(highest, static_cast<std::int64_t>(std::llround(value))));
  }
  return values;
}

std::vector<kernels::AttentionShape> attention_shapes(bool gpu) {
  if (!gpu) {
    return {{64, 4, 2}, {128, 2, 1}, {64, 8, 8},  {128, 4, 4}, {64, 14, 2},
            {32, 4, 2}, {64, 2, 2},  {128, 1, 1}, {64, 1, 1}};
  }
  return {{128, 8, 1}, {128, 4, 4}, {128, 16, 2}, {128, 32, 8}, {128, 32, 32},
          {128, 1, 1}, {128, 8, 8}, {128, 2, 2},  {128, 16, 4}, {64, 14, 2},
          {64, 7, 1},  {64, 8, 8},  {64, 1, 1},   {64, 32, 8},  {128, 64, 8}};
}

// The place of an attention point: total queries, keys per query, number of pieces, heads, group, head dim.
std::vector<double> attention_place(const AttentionPoint& point) {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  for (const kernels::Piece& piece : point.pieces) {
    queries += piece.queries;
    keys += piece.keys;
  }
  return {log2_of(queries),
          log2_of(keys) - log2_of(queries),
          log2_of(static_cast<std::int64_t>(point.pieces.size())),
          0.5 * log2_of(point.shape.query_heads),
          0.5 * log2_of(point.shape.query_heads / point.shape.kv_heads),
          2.0 * (log2_of(point.shape.head_dim) - 6),
          point.pass == kernels::Pass::forward ? 0.0 : 1.0};
}

void add_attention(std::vector<Point>& points, const kernels::AttentionShape& shape,
                   const std::vector<kernels::Piece>& pieces, const std::string& what) {
  if (pieces.empty()) return;
  for (const kernels::Pass pass : {kernels::Pass::forward, kernels::Pass::backward}) {
    AttentionPoint point{shape, pass, pieces, what};
    std::vector<double> place = attention_place(point);
    points.push_back({std::move(point), std::move(place)});
  }
}

// Documents packed to `tokens`, drawn at random from the given lengths; the last one is cut.
std::vector<std::int64_t> packed_lengths(std::span<const std::int64_t> lengths, std::int64_t tokens,
                                         SplitMix64& random) {
  std::vector<std::int64_t> pack;
  for (std::int64_t used = 0; used < tokens;) {
    const std::int64_t length = lengths[random.next() % lengths.size()];
    pack.push_back(std::min(length, tokens - used));
    used += pack.back();
  }
  return pack;
}

// The pieces of rank `rank` of `ranks` under per-document sharding: chunks rank and 2 * ranks - 1 - rank of
// every document, with all keys before each chunk's end.
std::vector<kernels::Piece> shard_pieces(std::span<const std::int64_t> documents, int ranks, int rank) {
  std::vector<kernels::Piece> pieces;
  std::int64_t query = 0;
  std::int64_t key = 0;
  for (const std::int64_t length : documents) {
    for (const int chunk : {rank, 2 * ranks - 1 - rank}) {
      const std::int64_t begin = length * chunk / (2 * ranks);
      const std::int64_t end = length * (chunk + 1) / (2 * ranks);
      if (end == begin) continue;
      pieces.push_back({query, end - begin, key, end});
      query += end - begin;
    }
    key += length;
  }
  return pieces;
}

std::vector<kernels::Piece> whole_pieces(std::span<const std::int64_t> documents) {
  std::vector<kernels::Piece> pieces;
  std::int64_t begin = 0;
  for (const std::int64_t length : documents) {
    pieces.push_back({begin, length, begin, length});
    begin += length;
  }
  return pieces;
}

void add_mixes(std::vector<Point>& points, const ListOptions& options, const kernels::AttentionShape& shape,
               SplitMix64& random) {
  if (options.lengths.empty()) return;
  for (const std::int64_t tokens : log_grid(options.scale.gpu ? 4096 : 256, options.scale.most_tokens, 1)) {
    const std::vector<std::int64_t> documents = packed_lengths(options.lengths, tokens, random);
    add_attention(points, shape, whole_pieces(documents), "packed documents");
    for (const int ranks : {2, 4, 8}) {
      const int rank = static_cast<int>(random.next() % static_cast<std::uint64_t>(ranks));
      add_attention(points, shape, shard_pieces(documents, ranks, rank),
                    "context-parallel shard " + std::to_string(rank) + " of " + std::to_string(ranks));
    }
  }
}

// The first points of every op come first, one op after the other in turn, since a fit needs so many per
// table.
std::vector<Point> every_op_first(std::vector<Point> points) {
  std::array<std::size_t, kernels::kRowOps.size()> seen{};
  std::vector<std::pair<std::size_t, Point>> turns;
  turns.reserve(points.size());
  for (Point& point : points) {
    const std::size_t turn = seen[std::get<RowPoint>(point.what).op]++;
    turns.emplace_back(std::min(turn, kLeastOfTable), std::move(point));
  }
  std::ranges::stable_sort(turns, {}, [](const auto& x) { return x.first; });
  for (std::size_t i = 0; i < points.size(); ++i) points[i] = std::move(turns[i].second);
  return points;
}

}  // namespace

Scale scale_of(std::string_view backend) {
  constexpr double kMi = 1024.0 * 1024.0;
  if (backend == "cpu") return {1.2e10, 192 * kMi, 8192, 64 << 20, 64 << 20, false};
  return {4e14, 48e9, 262144, std::int64_t{2} << 30, std::int64_t{1} << 30, true};
}

std::vector<Point> launch_points() {
  return {{LaunchPoint{}, {}}};
}

std::vector<Point> copy_points(const ListOptions& options) {
  std::vector<Point> points;
  for (const std::int64_t bytes : log_grid(4096, options.scale.most_copy_bytes, 1))
    points.push_back({CopyPoint{bytes}, {log2_of(bytes)}});
  return ordered(std::move(points), options);
}

std::vector<Point> attention_points(const ListOptions& options) {
  std::vector<Point> points;
  SplitMix64 random(options.seed);
  if (options.scale.gpu)  // includes the shapes whose rates are published (rates.py)
    for (const std::int64_t length : {8192, 2048, 32768, 4096, 16384})
      add_attention(points, {128, 64, 8}, {{0, length, 0, length}}, kPublishedShape);
  for (const kernels::AttentionShape& shape : attention_shapes(options.scale.gpu)) {
    for (const std::int64_t queries : log_grid(16, options.scale.most_tokens, 1)) {
      // Half of the shapes lie off the powers of two.
      const auto jitter = [&](std::int64_t value) {
        const auto extra = static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(value));
        return random.next() % 2 == 0 ? value : std::min(value + extra, options.scale.most_tokens);
      };
      const std::int64_t q = jitter(queries);
      add_attention(points, shape, {{0, q, 0, q}}, "one piece");
      for (const std::int64_t factor : {2, 8, 64, 512}) {
        if (queries * factor > options.scale.most_tokens) break;
        const std::int64_t keys = std::max(q, jitter(queries * factor));
        add_attention(points, shape, {{0, q, 0, keys}}, "one piece");
      }
    }
    add_mixes(points, options, shape, random);
  }
  points = ordered(std::move(points), options);
  // These points come first, so that a run of any length can be compared with published rates.
  std::stable_partition(points.begin(), points.end(), [](const Point& point) {
    return std::get<AttentionPoint>(point.what).what == kPublishedShape;
  });
  return points;
}

std::vector<Point> gemm_points(const ListOptions& options) {
  const std::span<const LayerShape> known = options.scale.gpu ? gpu_layers() : cpu_layers();
  std::vector<Point> points;
  for (const std::string& name : options.models) {
    if (std::ranges::none_of(known, [&](const LayerShape& layer) { return layer.model == name; }))
      throw UserError("--models: unknown model '", name,
                      "'; known here: ", all_joined(known, ", ", &LayerShape::model));
  }
  for (const LayerShape& layer : known) {
    if (!options.models.empty() && std::ranges::find(options.models, layer.model) == options.models.end())
      continue;
    for (const int tensor : {1, 2, 4, 8}) {
      for (const std::int64_t tokens :
           log_grid(16, options.scale.gpu ? options.scale.most_tokens : 4096, 1)) {
        for (GemmPoint& gemm : gemms_of(layer, tensor, tokens)) {
          const kernels::GemmShape s = gemm.shape;
          points.push_back({std::move(gemm),
                            {log2_of(s.m), log2_of(s.n), log2_of(s.k), s.transpose_a ? 1.0 : 0.0,
                             s.transpose_b ? 1.0 : 0.0}});
        }
      }
    }
  }
  return ordered(std::move(points), options);
}

std::vector<Point> row_points(const ListOptions& options) {
  std::vector<Point> points;
  const std::vector<std::int64_t> widths = options.scale.gpu
                                               ? std::vector<std::int64_t>{896, 4096, 8192, 16384}
                                               : std::vector<std::int64_t>{128, 512, 896, 2048};
  for (std::size_t op = 0; op < kernels::kRowOps.size(); ++op) {
    const kernels::RowWidth kind = kernels::kRowOps[op].width;
    const bool flat = kind == kernels::RowWidth::flat;
    for (const std::int64_t width : flat ? std::vector<std::int64_t>{1} : widths) {
      const std::int64_t columns = kind == kernels::RowWidth::vocabulary ? 8 * width : width;
      const std::int64_t most = flat ? options.scale.most_copy_bytes / 32 : options.scale.most_tokens;
      for (const std::int64_t rows : log_grid(flat ? 4096 : 16, most, 1)) {
        points.push_back({RowPoint{op, rows, columns},
                          {log2_of(rows * columns), 0.5 * log2_of(columns), 4.0 * static_cast<double>(op)}});
      }
    }
  }
  ListOptions smaller = options;
  smaller.scale.most_bytes = std::min(options.scale.most_bytes, kMostRowBytes);
  return every_op_first(ordered(std::move(points), smaller));
}

// A CPU's library switches methods at some sizes above a page, and caches fill up; only a dense grid shows
// both.
static std::vector<std::int64_t> collective_sizes(const Scale& scale) {
  if (scale.gpu) return log_grid(8, scale.most_collective_bytes, 1);
  constexpr std::int64_t kPage = 4096;
  std::vector<std::int64_t> sizes = log_grid(8, kPage, 1);
  constexpr std::int64_t kFar = 4 << 20;  // beyond the cores' caches, so nothing changes at larger sizes
  for (const std::int64_t bytes : log_grid(kPage, kFar, 2)) sizes.push_back(bytes);
  for (const std::int64_t bytes : log_grid(kFar, scale.most_collective_bytes, 1)) sizes.push_back(bytes);
  return sizes;
}

std::vector<Point> collective_points(const ListOptions& options, int ranks) {
  std::vector<Point> points;
  std::vector<int> groups;
  for (int size = 2; size < ranks; size *= 2) groups.push_back(size);
  if (ranks > 1) groups.push_back(ranks);
  for (const int group : groups) {
    for (const Collective kind : {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce,
                                  Collective::all_to_all, Collective::send_recv}) {
      for (const std::int64_t bytes : collective_sizes(options.scale)) {
        // Every rank's share is a whole number of elements.
        const auto unit = static_cast<std::int64_t>(kernels::bytes_of(options.type)) * group;
        const std::int64_t whole = std::max(unit, bytes / unit * unit);
        points.push_back({CollectivePoint{kind, whole, group},
                          {log2_of(whole), 4.0 * static_cast<double>(kind), 2.0 * log2_of(group)}});
      }
    }
  }
  return ordered(std::move(points), options);
}

}  // namespace equipoise::measure

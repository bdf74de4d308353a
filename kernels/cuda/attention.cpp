#include "kernels/cuda/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <unordered_map>
#include <utility>

// CMakeLists.txt fetches the frontend's headers when the module is built, which may fail without a network.
#if defined(EQUIPOISE_CUDNN) && __has_include(<cudnn_frontend.h>)
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>
#define EQUIPOISE_CUDNN_ATTENTION
#endif

namespace equipoise::kernels::cuda {

// --- Pieces and calls.

std::vector<Piece> by_query_row(std::span<const Piece> pieces) {
  std::vector<Piece> sorted(pieces.begin(), pieces.end());
  std::ranges::stable_sort(sorted, {}, &Piece::query_begin);
  return sorted;
}

std::vector<std::vector<Piece>> by_mask(std::span<const Piece> pieces) {
  std::vector<std::vector<Piece>> kinds(2);
  for (const Piece& piece : by_query_row(pieces)) kinds[piece.full ? 1 : 0].push_back(piece);
  kinds.erase(std::remove_if(kinds.begin(), kinds.end(), [](const auto& kind) { return kind.empty(); }),
              kinds.end());
  return kinds;
}

std::vector<std::vector<Piece>> ascending_rounds(std::span<const Piece> pieces) {
  std::vector<std::vector<Piece>> rounds;
  for (const Piece& piece : by_query_row(pieces)) {
    const auto fits = [&](const std::vector<Piece>& round) {
      return round.back().full == piece.full && round.back().key_begin + round.back().keys <= piece.key_begin;
    };
    const auto round = std::find_if(rounds.begin(), rounds.end(), fits);
    if (round == rounds.end())
      rounds.push_back({piece});
    else
      round->push_back(piece);
  }
  return rounds;
}

CallRows call_rows(std::span<const Piece> pieces, std::int64_t slots) {
  const auto count = static_cast<std::size_t>(slots);
  const std::int64_t query_end = pieces.empty() ? 0 : pieces.back().query_begin + pieces.back().queries;
  const std::int64_t key_end = pieces.empty() ? 0 : pieces.back().key_begin + pieces.back().keys;
  CallRows rows{std::vector<std::int32_t>(count, 0), std::vector<std::int32_t>(count, 0),
                std::vector<std::int64_t>(count + 1, query_end),
                std::vector<std::int64_t>(count + 1, key_end)};
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    rows.query_lengths[i] = static_cast<std::int32_t>(pieces[i].queries);
    rows.key_lengths[i] = static_cast<std::int32_t>(pieces[i].keys);
    rows.query_begins[i] = pieces[i].query_begin;
    rows.key_begins[i] = pieces[i].key_begin;
  }
  return rows;
}

CallOffsets call_offsets(const AttentionShape& shape, const CallRows& rows) {
  const auto elements = [](std::vector<std::int64_t> begins, std::int64_t of_row) {
    for (std::int64_t& begin : begins) begin *= of_row;
    return begins;
  };
  return {elements(rows.query_begins, std::int64_t{shape.query_heads} * shape.head_dim),
          elements(rows.key_begins, std::int64_t{shape.kv_heads} * shape.head_dim),
          elements(rows.query_begins, shape.query_heads)};
}

bool cover_queries(std::span<const Piece> pieces, std::int64_t rows) {
  std::int64_t covered = 0;
  for (const Piece& piece : pieces) covered += piece.queries;
  return covered == rows;
}

bool cover_keys(std::span<const Piece> pieces, std::int64_t rows) {
  std::int64_t covered = 0;
  for (const Piece& piece : pieces) covered += piece.keys;
  return covered == rows;
}

// --- The graph.

// Eight sizes per octave, each a whole number of units.
static std::int64_t rounded_up(std::int64_t value, std::int64_t unit) {
  const std::int64_t units = (value + unit - 1) / unit;
  const auto octave = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(units)));
  const std::int64_t step = octave >= 8 ? octave / 8 : 1;
  return (units + step - 1) / step * step * unit;
}

DeclaredAttention declared_for(const AttentionShape& shape, Pass pass, bool full, std::int64_t pieces,
                               std::int64_t most_queries, std::int64_t most_keys, std::int64_t total_queries,
                               std::int64_t total_keys) {
  constexpr std::int64_t kTile = 128;
  return {shape,
          pass,
          full,
          false,
          rounded_up(pieces, 1),
          rounded_up(most_queries, kTile),
          rounded_up(most_keys, kTile),
          rounded_up(total_queries, kTile),
          rounded_up(total_keys, kTile)};
}

#ifdef EQUIPOISE_CUDNN_ATTENTION

namespace {

namespace fe = cudnn_frontend;
using TensorPtr = std::shared_ptr<fe::graph::Tensor_attributes>;

enum Id : std::int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kLogSum,
  kOutGradient,
  kQueryGradient,
  kKeyGradient,
  kValueGradient,
  kQueryLengths,
  kKeyLengths,
  kQueryOffsets,
  kKeyOffsets,
  kLogSumOffsets
};

void check(fe::error_t error, const char* step) {
  if (error.is_bad())
    throw std::runtime_error(std::string("cuDNN attention: ") + step + ": " + error.get_message());
}

// The tensors that both passes share.
class Tensors {
 public:
  Tensors(fe::graph::Graph& graph, const DeclaredAttention& declared) : graph_(graph), declared_(declared) {
    query_offsets_ = vector("query_offsets", kQueryOffsets, declared.pieces + 1, fe::DataType_t::INT64);
    key_offsets_ = vector("key_offsets", kKeyOffsets, declared.pieces + 1, fe::DataType_t::INT64);
    log_sum_offsets_ = vector("log_sum_offsets", kLogSumOffsets, declared.pieces + 1, fe::DataType_t::INT64);
    query_lengths = vector("query_lengths", kQueryLengths, declared.pieces, fe::DataType_t::INT32);
    key_lengths = vector("key_lengths", kKeyLengths, declared.pieces, fe::DataType_t::INT32);
  }

  TensorPtr query_side(const char* name, Id id) {
    return graph_.tensor(rows(name, id, declared_.shape.query_heads, declared_.most_queries)
                             .set_ragged_offset(query_offsets_));
  }
  TensorPtr key_side(const char* name, Id id) {
    return graph_.tensor(
        rows(name, id, declared_.shape.kv_heads, declared_.most_keys).set_ragged_offset(key_offsets_));
  }
  TensorPtr log_sum() { return graph_.tensor(log_sum_attributes().set_ragged_offset(log_sum_offsets_)); }

  void as_query_output(const TensorPtr& tensor, Id id) {
    describe(tensor, id, declared_.shape.query_heads, declared_.most_queries, query_offsets_);
  }
  void as_key_output(const TensorPtr& tensor, Id id) {
    describe(tensor, id, declared_.shape.kv_heads, declared_.most_keys, key_offsets_);
  }
  void as_log_sum_output(const TensorPtr& tensor) {
    tensor->set_output(true)
        .set_uid(kLogSum)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({declared_.pieces, heads(), declared_.most_queries, 1})
        .set_stride({heads() * declared_.most_queries, 1, heads(), 1})
        .set_ragged_offset(log_sum_offsets_);
  }

  TensorPtr query_lengths;
  TensorPtr key_lengths;

 private:
  [[nodiscard]] std::int64_t heads() const { return declared_.shape.query_heads; }

  TensorPtr vector(const char* name, Id id, std::int64_t count, fe::DataType_t type) {
    return graph_.tensor(fe::graph::Tensor_attributes()
                             .set_name(name)
                             .set_uid(id)
                             .set_dim({count, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(type));
  }

  // (pieces, heads, rows, head dim) over a buffer of (row, head, head dim).
  [[nodiscard]] fe::graph::Tensor_attributes rows(const char* name, Id id, std::int64_t head_count,
                                                  std::int64_t most) const {
    const std::int64_t d = declared_.shape.head_dim;
    return fe::graph::Tensor_attributes()
        .set_name(name)
        .set_uid(id)
        .set_data_type(fe::DataType_t::BFLOAT16)
        .set_dim({declared_.pieces, head_count, most, d})
        .set_stride({head_count * most * d, d, head_count * d, 1});
  }

  [[nodiscard]] fe::graph::Tensor_attributes log_sum_attributes() const {
    return fe::graph::Tensor_attributes()
        .set_name("log_sum")
        .set_uid(kLogSum)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({declared_.pieces, heads(), declared_.most_queries, 1})
        .set_stride({heads() * declared_.most_queries, 1, heads(), 1});
  }

  void describe(const TensorPtr& tensor, Id id, std::int64_t head_count, std::int64_t most,
                const TensorPtr& offsets) {
    const std::int64_t d = declared_.shape.head_dim;
    tensor->set_output(true)
        .set_uid(id)
        .set_data_type(fe::DataType_t::BFLOAT16)
        .set_dim({declared_.pieces, head_count, most, d})
        .set_stride({head_count * most * d, d, head_count * d, 1})
        .set_ragged_offset(offsets);
  }

  fe::graph::Graph& graph_;
  const DeclaredAttention& declared_;
  TensorPtr query_offsets_;
  TensorPtr key_offsets_;
  TensorPtr log_sum_offsets_;
};

float scale_of(const AttentionShape& shape) {
  return 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
}

template <class Attributes>
void mask(Attributes& attributes, const DeclaredAttention& declared) {
  if (declared.full) return;  // because the lengths alone limit the visible keys
  attributes
      .set_diagonal_alignment(declared.square ? fe::DiagonalAlignment_t::TOP_LEFT
                                              : fe::DiagonalAlignment_t::BOTTOM_RIGHT)
      .set_diagonal_band_right_bound(0);
}

void describe_forward(fe::graph::Graph& graph, const DeclaredAttention& declared) {
  Tensors tensors(graph, declared);
  auto attributes = fe::graph::SDPA_attributes()
                        .set_name("attention_forward")
                        .set_generate_stats(true)
                        .set_attn_scale(scale_of(declared.shape))
                        .set_padding_mask(true)
                        .set_seq_len_q(tensors.query_lengths)
                        .set_seq_len_kv(tensors.key_lengths);
  mask(attributes, declared);
  const auto [out, log_sum] = graph.sdpa(tensors.query_side("query", kQuery), tensors.key_side("key", kKey),
                                         tensors.key_side("value", kValue), std::move(attributes));
  tensors.as_query_output(out, kOut);
  tensors.as_log_sum_output(log_sum);
}

// Not the deterministic algorithm, which on Hopper needs a workspace that is quadratic in the length.
void describe_backward(fe::graph::Graph& graph, const DeclaredAttention& declared) {
  Tensors tensors(graph, declared);
  auto attributes = fe::graph::SDPA_backward_attributes()
                        .set_name("attention_backward")
                        .set_attn_scale(scale_of(declared.shape))
                        .set_padding_mask(true)
                        .set_seq_len_q(tensors.query_lengths)
                        .set_seq_len_kv(tensors.key_lengths)
                        .set_max_total_seq_len_q(declared.total_queries)
                        .set_max_total_seq_len_kv(declared.total_keys);
  mask(attributes, declared);
  const auto [dq, dk, dv] = graph.sdpa_backward(
      tensors.query_side("query", kQuery), tensors.key_side("key", kKey), tensors.key_side("value", kValue),
      tensors.query_side("out", kOut), tensors.query_side("out_gradient", kOutGradient), tensors.log_sum(),
      std::move(attributes));
  tensors.as_query_output(dq, kQueryGradient);
  tensors.as_key_output(dk, kKeyGradient);
  tensors.as_key_output(dv, kValueGradient);
}

std::unordered_map<std::int64_t, void*> pack(const AttentionPointers& p, Pass pass) {
  std::unordered_map<std::int64_t, void*> map{{kQuery, p.query},
                                              {kKey, p.key},
                                              {kValue, p.value},
                                              {kOut, p.out},
                                              {kLogSum, p.log_sum},
                                              {kQueryLengths, p.query_lengths},
                                              {kKeyLengths, p.key_lengths},
                                              {kQueryOffsets, p.query_offsets},
                                              {kKeyOffsets, p.key_offsets},
                                              {kLogSumOffsets, p.log_sum_offsets}};
  if (pass == Pass::backward) {
    map[kOutGradient] = p.out_gradient;
    map[kQueryGradient] = p.query_gradient;
    map[kKeyGradient] = p.key_gradient;
    map[kValueGradient] = p.value_gradient;
  }
  return map;
}

}  // namespace

struct AttentionGraph::Graph {
  fe::graph::Graph graph;
  Pass pass;
};

AttentionGraph::AttentionGraph(const DeclaredAttention& declared, int sm_version)
    : graph_(std::make_unique<Graph>(Graph{{}, declared.pass})) {
  graph_->graph.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT)
      .set_sm_version(sm_version);  // must come before any node, which copies it
  if (declared.pass == Pass::forward)
    describe_forward(graph_->graph, declared);
  else
    describe_backward(graph_->graph, declared);
}

AttentionGraph::~AttentionGraph() = default;

std::string AttentionGraph::validate() {
  fe::error_t error = graph_->graph.validate();
  return error.is_bad() ? error.get_message() : std::string();
}

std::map<std::string, PackedTensor> AttentionGraph::tensors() const {
  constexpr std::pair<const char*, Id> kNames[] = {{"query", kQuery},
                                                   {"key", kKey},
                                                   {"value", kValue},
                                                   {"out", kOut},
                                                   {"log_sum", kLogSum},
                                                   {"out_gradient", kOutGradient},
                                                   {"query_gradient", kQueryGradient},
                                                   {"key_gradient", kKeyGradient},
                                                   {"value_gradient", kValueGradient}};
  std::map<std::string, PackedTensor> found;
  for (const auto& [name, id] : kNames) {
    fe::graph::Tensor_attributes tensor;
    // a tensor that this pass does not have
    if (graph_->graph.query_tensor_attributes_of_uid(id, tensor).is_bad()) continue;
    PackedTensor& packed = found[name];
    std::copy_n(tensor.get_dim().begin(), 4, packed.sizes.begin());
    std::copy_n(tensor.get_stride().begin(), 4, packed.strides.begin());
    const std::int64_t offsets = tensor.get_ragged_offset()->get_uid();
    packed.offsets = offsets == kQueryOffsets ? &CallOffsets::query
                     : offsets == kKeyOffsets ? &CallOffsets::key
                                              : &CallOffsets::log_sum;
  }
  return found;
}

void AttentionGraph::build(void* cudnn_handle) {
  auto* handle = static_cast<cudnnHandle_t>(cudnn_handle);
  fe::graph::Graph& graph = graph_->graph;
  check(graph.validate(), "validate");
  check(graph.build_operation_graph(handle), "build the operation graph");
  check(graph.create_execution_plans({fe::HeurMode_t::A}), "create plans");
  check(graph.check_support(), "check support");
  check(graph.build_plans(), "build plans");
}

std::size_t AttentionGraph::workspace_bytes() const {
  std::int64_t bytes = 0;
  check(graph_->graph.get_workspace_size(bytes), "workspace size");
  return static_cast<std::size_t>(bytes);
}

void AttentionGraph::execute(void* cudnn_handle, const AttentionPointers& pointers, void* workspace) const {
  auto map = pack(pointers, graph_->pass);
  check(graph_->graph.execute(static_cast<cudnnHandle_t>(cudnn_handle), map, workspace), "execute");
}

void* make_cudnn_handle() {
  cudnnHandle_t handle = nullptr;
  const cudnnStatus_t status = cudnnCreate(&handle);
  if (status != CUDNN_STATUS_SUCCESS)
    throw std::runtime_error(std::string("cudnnCreate: ") + cudnnGetErrorString(status));
  return handle;
}

void destroy_cudnn_handle(void* handle) noexcept {
  cudnnDestroy(static_cast<cudnnHandle_t>(handle));
}

std::string cudnn_version() {
  const std::size_t version = cudnnGetVersion();  // 91900
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

#else  // cuDNN or its frontend was missing when this was compiled: every attention call says so

namespace {

constexpr const char* kReason = "this program was built without cuDNN attention";

}  // namespace

struct AttentionGraph::Graph {};

AttentionGraph::AttentionGraph(const DeclaredAttention&, int) {
  throw std::runtime_error(kReason);
}
AttentionGraph::~AttentionGraph() = default;
std::string AttentionGraph::validate() {
  return kReason;
}
std::map<std::string, PackedTensor> AttentionGraph::tensors() const {
  return {};
}
void AttentionGraph::build(void*) {}
std::size_t AttentionGraph::workspace_bytes() const {
  return 0;
}
void AttentionGraph::execute(void*, const AttentionPointers&, void*) const {}

void* make_cudnn_handle() {
  return nullptr;
}
void destroy_cudnn_handle(void*) noexcept {}
std::string cudnn_version() {
  return "absent";
}

#endif

}  // namespace equipoise::kernels::cuda

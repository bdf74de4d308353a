#include "sim/execution/reference_model.h"

#include <algorithm>
#include <cmath>

#include "policies/base/parallel.h"
#include "sim/execution/reference_ops.h"

namespace equipoise::execution {
namespace {

using reference::HeadShape;
using reference::Matrix;
using Values = ReferenceModel::Values;
using Index = Eigen::Index;

// Tokens whose logits exist at once: enough that the head's weights are rarely packed, and with a large
// vocabulary at most 256 MB.
Index logit_rows(std::int64_t vocab) {
  constexpr Index kMostRows = 512;
  constexpr std::int64_t kMostLogits = std::int64_t{1} << 25;
  return std::clamp<Index>(kMostLogits / vocab, 1, kMostRows);
}

std::size_t position(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

Values zeros(const std::vector<Tensor>& tensors) {
  Values values;
  for (const Tensor& tensor : tensors) values.emplace_back(position(tensor.elements()), 0.0);
  return values;
}

std::vector<double> initial(std::uint64_t seed, const Tensor& tensor, bool bf16) {
  std::vector<float> values(position(tensor.elements()));
  fill_initial(seed, tensor, 0, values);
  if (bf16) std::transform(values.begin(), values.end(), values.begin(), rounded_to_bf16);
  return {values.begin(), values.end()};
}

// Everything that a layer's backward needs.
struct LayerState {
  Matrix normed;  // before attention
  Matrix q;       // rotated, as k
  Matrix k;
  Matrix v;
  Matrix attended;
  Matrix middle;  // residual stream between attention and FFN
  Matrix ffn_normed;
  Matrix gate;
  Matrix up;
  Matrix activated;
};

// Runs one sequence through the model, forward and backward.
class SequenceRun {
 public:
  SequenceRun(const ModelShape& model, std::uint64_t seed, const std::vector<Tensor>& tensors,
              const Values& weights, Values& gradients)
      : model_(model),
        seed_(seed),
        tensors_(tensors),
        weights_(weights),
        gradients_(gradients),
        heads_{model.heads, model.kv_heads, model.head_dim} {}

  double run(const Sequence& sequence, double token_weight) {
    std::vector<Matrix> inputs{embed(sequence)};  // inputs of every layer, then of the final norm
    for (int layer = 0; layer < model_.layers; ++layer)
      inputs.push_back(layer_output(layer, layer_state(layer, inputs.back())));
    Matrix gradient;
    const double sum = head(sequence, inputs.back(), token_weight, gradient);
    for (int layer = model_.layers; layer-- > 0;) {
      inputs.pop_back();
      gradient = layer_backward(layer, inputs.back(), gradient);
    }
    embed_backward(sequence, gradient);
    return sum;
  }

 private:
  [[nodiscard]] Eigen::Map<const Matrix> weight(std::size_t tensor) const {
    return {weights_[tensor].data(), tensors_[tensor].rows, tensors_[tensor].columns};
  }
  [[nodiscard]] Eigen::Map<const Matrix> weight(int layer, LayerTensor tensor) const {
    return weight(layer_index(layer, tensor));
  }
  [[nodiscard]] Eigen::Map<Matrix> gradient_of(std::size_t tensor) const {
    return {gradients_[tensor].data(), tensors_[tensor].rows, tensors_[tensor].columns};
  }
  [[nodiscard]] Eigen::Map<Matrix> gradient_of(int layer, LayerTensor tensor) const {
    return gradient_of(layer_index(layer, tensor));
  }
  [[nodiscard]] std::int64_t token(const Sequence& s, std::int64_t row) const {
    return token_at(seed_, s.document, s.begin + row, model_.vocab);
  }
  [[nodiscard]] std::int64_t target(const Sequence& s, std::int64_t row) const {
    return target_at(seed_, s.document, s.begin + row, s.document_tokens, model_.vocab);
  }

  [[nodiscard]] Matrix embed(const Sequence& sequence) const {
    const auto table = weight(kEmbeddingIndex);
    Matrix x(sequence.tokens(), model_.hidden);
    for (Index row = 0; row < x.rows(); ++row) x.row(row) = table.row(token(sequence, row));
    return x;
  }
  void embed_backward(const Sequence& sequence, const Matrix& gradient) const {
    auto table = gradient_of(kEmbeddingIndex);
    for (Index row = 0; row < gradient.rows(); ++row) table.row(token(sequence, row)) += gradient.row(row);
  }

  [[nodiscard]] LayerState layer_state(int layer, const Matrix& x) const {
    LayerState s;
    s.normed = reference::rms_norm(x, weight(layer, LayerTensor::input_norm));
    s.q = reference::linear(s.normed, weight(layer, LayerTensor::q));
    s.k = reference::linear(s.normed, weight(layer, LayerTensor::k));
    s.v = reference::linear(s.normed, weight(layer, LayerTensor::v));
    reference::rope(s.q, model_.heads, model_.head_dim, reference::Turn::forward);
    reference::rope(s.k, model_.kv_heads, model_.head_dim, reference::Turn::forward);
    s.attended = reference::attention(heads_, s.q, s.k, s.v);
    s.middle = x + reference::linear(s.attended, weight(layer, LayerTensor::o));
    s.ffn_normed = reference::rms_norm(s.middle, weight(layer, LayerTensor::post_norm));
    s.gate = reference::linear(s.ffn_normed, weight(layer, LayerTensor::gate));
    s.up = reference::linear(s.ffn_normed, weight(layer, LayerTensor::up));
    s.activated = reference::swiglu(s.gate, s.up);
    return s;
  }
  [[nodiscard]] Matrix layer_output(int layer, const LayerState& s) const {
    return s.middle + reference::linear(s.activated, weight(layer, LayerTensor::down));
  }

  // Gradient of the input of y = x W^T, W being the layer's `tensor`.
  [[nodiscard]] Matrix back_through(int layer, LayerTensor tensor, const Matrix& x, const Matrix& y) const {
    return reference::linear_backward(x, weight(layer, tensor), y, gradient_of(layer, tensor));
  }
  [[nodiscard]] Matrix back_through_norm(int layer, LayerTensor tensor, const Matrix& x,
                                         const Matrix& y) const {
    return reference::rms_norm_backward(x, weight(layer, tensor), y, gradient_of(layer, tensor));
  }

  [[nodiscard]] Matrix layer_backward(int layer, const Matrix& x, const Matrix& out) const {
    const LayerState s = layer_state(layer, x);
    const Matrix middle = out + ffn_backward(layer, s, out);
    return middle + attention_backward(layer, s, x, middle);
  }
  // Both return the gradient that reaches the residual stream through their block.
  [[nodiscard]] Matrix ffn_backward(int layer, const LayerState& s, const Matrix& out) const {
    const Matrix activated = back_through(layer, LayerTensor::down, s.activated, out);
    const reference::SwigluGradient inner = reference::swiglu_backward(s.gate, s.up, activated);
    const Matrix normed = back_through(layer, LayerTensor::gate, s.ffn_normed, inner.gate) +
                          back_through(layer, LayerTensor::up, s.ffn_normed, inner.up);
    return back_through_norm(layer, LayerTensor::post_norm, s.middle, normed);
  }
  [[nodiscard]] Matrix attention_backward(int layer, const LayerState& s, const Matrix& x,
                                          const Matrix& out) const {
    const Matrix attended = back_through(layer, LayerTensor::o, s.attended, out);
    reference::AttentionGradient inner = reference::attention_backward(heads_, s.q, s.k, s.v, attended);
    reference::rope(inner.q, model_.heads, model_.head_dim, reference::Turn::back);
    reference::rope(inner.k, model_.kv_heads, model_.head_dim, reference::Turn::back);
    const Matrix normed = back_through(layer, LayerTensor::q, s.normed, inner.q) +
                          back_through(layer, LayerTensor::k, s.normed, inner.k) +
                          back_through(layer, LayerTensor::v, s.normed, inner.v);
    return back_through_norm(layer, LayerTensor::input_norm, x, normed);
  }

  // Final norm, logits and loss; `gradient` becomes that of x if there is a backward.
  double head(const Sequence& sequence, const Matrix& x, double token_weight, Matrix& gradient) const {
    const std::size_t norm = final_norm_index(model_);
    const std::size_t head = head_index(model_);
    const Index block = logit_rows(model_.vocab);
    const Matrix normed = reference::rms_norm(x, weight(norm));
    Matrix normed_gradient(x.rows(), x.cols());
    double sum = 0;
    for (Index first = 0; first < x.rows(); first += block) {
      const Index rows = std::min(block, x.rows() - first);
      Matrix logits = reference::linear(normed.middleRows(first, rows), weight(head));
      sum += cross_entropy(sequence, first, token_weight, logits);
      normed_gradient.middleRows(first, rows) =
          reference::linear_backward(normed.middleRows(first, rows), weight(head), logits, gradient_of(head));
    }
    gradient = reference::rms_norm_backward(x, weight(norm), normed_gradient, gradient_of(norm));
    return sum;
  }
  // The loss of tokens [first, first + rows). Turns their logits into the gradient of token_weight * loss:
  // softmax minus 1 at the target.
  double cross_entropy(const Sequence& sequence, Index first, double token_weight, Matrix& logits) const {
    double sum = 0;
    for (Index row = 0; row < logits.rows(); ++row) {
      const Index wanted = target(sequence, first + row);
      const double highest = logits.row(row).maxCoeff();
      const double wanted_logit = logits(row, wanted);
      logits.row(row) = (logits.row(row).array() - highest).exp();
      const double exponentials = logits.row(row).sum();
      sum += highest + std::log(exponentials) - wanted_logit;
      logits.row(row) *= token_weight / exponentials;
      logits(row, wanted) -= token_weight;
    }
    return sum;
  }

  const ModelShape& model_;
  std::uint64_t seed_;
  const std::vector<Tensor>& tensors_;
  const Values& weights_;
  Values& gradients_;
  HeadShape heads_;
};

void add_to(Values& sum, const Values& values) {
  for (std::size_t t = 0; t < sum.size(); ++t)
    for (std::size_t i = 0; i < sum[t].size(); ++i) sum[t][i] += values[t][i];
}

// Deals sequences into shares of similar work, longest first, each to the share with the least. Work is
// tokens and causal pairs, weighted by their matrix products.
std::vector<std::vector<std::size_t>> shares_of(const ModelShape& model,
                                                std::span<const WeightedSequence> sequences, int threads) {
  const auto work = [&](std::size_t i) {
    const auto tokens = static_cast<double>(sequences[i].sequence.tokens());
    return model.training_flops(tokens, causal_pairs(tokens, 0));
  };
  const auto order = positions_by(sequences.size(), [&](std::size_t i) { return -work(i); });
  std::vector<std::vector<std::size_t>> shares(position(std::max(threads, 1)));
  std::vector<double> load(shares.size(), 0.0);
  for (const std::size_t i : order) {
    const auto least = static_cast<std::size_t>(std::min_element(load.begin(), load.end()) - load.begin());
    shares[least].push_back(i);
    load[least] += work(i);
  }
  return shares;
}

}  // namespace

ReferenceModel::ReferenceModel(const ModelShape& model, std::uint64_t seed, bool bf16_weights)
    : model_(model), seed_(seed), tensors_(inventory(model)) {
  check_runnable(model);
  for (const Tensor& tensor : tensors_) weights_.push_back(initial(seed, tensor, bf16_weights));
  gradients_ = zeros(tensors_);
}

std::vector<double> ReferenceModel::add_all(std::span<const WeightedSequence> sequences, int threads) {
  const auto shares = shares_of(model_, sequences, threads);
  std::vector<double> losses(sequences.size());
  std::vector<Values> others(shares.size() - 1);  // share 0 adds to gradients_ directly
  parallel_for(threads, shares.size(), [&](int, std::size_t share) {
    if (shares[share].empty()) return;
    if (share > 0) others[share - 1] = zeros(tensors_);
    Values& gradients = share == 0 ? gradients_ : others[share - 1];
    SequenceRun run(model_, seed_, tensors_, weights_, gradients);
    for (const std::size_t i : shares[share]) losses[i] = run.run(sequences[i].sequence, sequences[i].weight);
  });
  for (const Values& values : others)
    if (!values.empty()) add_to(gradients_, values);
  return losses;
}

}  // namespace equipoise::execution

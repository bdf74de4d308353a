#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "sim/execution/parameters.h"
#include "sim/execution/reference_model.h"
#include "tests/execution/tiny_model.h"

using namespace equipoise;
using namespace equipoise::execution;
using equipoise::testing::tiny_llama;

namespace {

double add(ReferenceModel& model, const Sequence& sequence, double weight) {
  return model.add_all(std::vector<WeightedSequence>{{sequence, weight}}, 1).front();
}

// On a copy, whose gradients nobody looks at.
double loss(ReferenceModel model, const Sequence& sequence) {
  return add(model, sequence, 0);
}

// Central difference of the weighted loss in one weight: its error is about step^2 = 1e-10 of the third
// derivative, plus 1e-16 / step = 1e-11 of rounding.
double slope(ReferenceModel& model, const Sequence& sequence, std::size_t tensor, std::size_t element) {
  constexpr double kStep = 1e-5;
  double& weight = model.weight(tensor, element);
  const double before = weight;
  weight = before + kStep;
  const double above = loss(model, sequence);
  weight = before - kStep;
  const double below = loss(model, sequence);
  weight = before;
  return (above - below) / (2 * kStep);
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

double relative_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double distance = 0;
  double size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    distance += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(distance / size);
}

void check_same(const ReferenceModel& a, const ReferenceModel& b, double limit) {
  for (std::size_t t = 0; t < a.tensors().size(); ++t) {
    CAPTURE(a.tensors()[t].name);
    CHECK(relative_distance(a.gradients()[t], b.gradients()[t]) <= limit);
  }
}

}  // namespace

TEST_CASE("gradients are the slopes of the loss, for every tensor, tied and untied") {
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    const Sequence sequence{2, 3, 12, 14};
    constexpr double kWeight = 0.125;
    ReferenceModel model(tiny_llama(tied), 11);
    const double added = add(model, sequence, kWeight);
    CHECK(added == doctest::Approx(loss(model, sequence)).epsilon(1e-14));
    for (std::size_t t = 0; t < model.tensors().size(); ++t) {
      CAPTURE(model.tensors()[t].name);
      const std::vector<double>& gradient = model.gradients()[t];
      const double size = largest(gradient);
      CHECK(size > 1e-3);  // no tensor is without effect
      for (std::size_t i = 0; i < gradient.size(); i += 7) {
        CAPTURE(i);
        CHECK(std::abs(kWeight * slope(model, sequence, t, i) - gradient[i]) < 1e-7 * size);
      }
    }
  }
}

TEST_CASE("a token that nobody reads or expects moves an untied embedding by nothing") {
  ReferenceModel model(tiny_llama(), 11);
  add(model, {0, 0, 3, 8}, 1.0);
  const auto hidden = static_cast<std::size_t>(model.model().hidden);
  for (std::int64_t token = 0; token < model.model().vocab; ++token) {
    bool read = false;
    for (std::int64_t p = 0; p < 3; ++p) read = read || token_at(11, 0, p, model.model().vocab) == token;
    const auto row = model.gradients()[kEmbeddingIndex].begin() +
                     static_cast<std::ptrdiff_t>(static_cast<std::size_t>(token) * hidden);
    CHECK(read ==
          std::any_of(row, row + static_cast<std::ptrdiff_t>(hidden), [](double g) { return g != 0; }));
  }
}

TEST_CASE("a slice of one token predicts from its own embedding alone") {
  // One key: attention returns V whatever the scores, so Q and K have no gradient.
  ReferenceModel model(tiny_llama(), 5);
  add(model, {1, 4, 5, 9}, 1.0);
  for (const LayerTensor tensor : {LayerTensor::q, LayerTensor::k})
    CHECK(largest(model.gradients()[layer_index(0, tensor)]) < 1e-15);
  CHECK(largest(model.gradients()[layer_index(0, LayerTensor::v)]) > 1e-3);
}

TEST_CASE("a slice is a document of its own: a cut document is not the whole one") {
  const ReferenceModel model(tiny_llama(), 5);
  const double whole = loss(model, {0, 0, 10, 10});
  const double first = loss(model, {0, 0, 6, 10});
  const double second = loss(model, {0, 6, 10, 10});
  CHECK(std::abs(whole - first - second) > 1e-3);  // tokens 6 .. 9 see 6 keys fewer
}

TEST_CASE("gradients are the slopes of the loss beyond one block of queries and of logits") {
  // Blocks hold 256 queries and the logits of 512 tokens.
  ReferenceModel model(tiny_llama(), 5);
  constexpr double kWeight = 1.0;
  const Sequence sequence{0, 0, 521, 600};
  add(model, sequence, kWeight);
  for (const LayerTensor tensor : {LayerTensor::q, LayerTensor::k, LayerTensor::v, LayerTensor::gate}) {
    const std::size_t t = layer_index(0, tensor);
    const double size = largest(model.gradients()[t]);
    for (const std::size_t i : {0U, 50U, 101U})
      CHECK(std::abs(slope(model, sequence, t, i) - model.gradients()[t][i]) < 1e-6 * size);
  }
}

TEST_CASE("gradients add up over sequences and scale with their weights") {
  const std::vector<WeightedSequence> sequences{{{0, 0, 9, 9}, 0.5},
                                                {{1, 0, 4, 30}, 0.25},
                                                {{1, 4, 30, 30}, 0.25},
                                                {{2, 0, 1, 1}, 2.0},
                                                {{3, 0, 7, 8}, 0.5}};
  ReferenceModel one_by_one(tiny_llama(), 5);
  std::vector<double> losses;
  for (const WeightedSequence& s : sequences) losses.push_back(add(one_by_one, s.sequence, s.weight));
  for (const int threads : {1, 2, 3, 8}) {
    CAPTURE(threads);
    ReferenceModel together(tiny_llama(), 5);
    CHECK(together.add_all(sequences, threads) == losses);
    check_same(together, one_by_one, 1e-14);
    ReferenceModel again(tiny_llama(), 5);
    again.add_all(sequences, threads);
    CHECK(again.gradients() == together.gradients());  // the same bits
  }
  ReferenceModel twice(tiny_llama(), 5);
  for (const WeightedSequence& s : sequences) add(twice, s.sequence, s.weight / 2);
  for (const WeightedSequence& s : sequences) add(twice, s.sequence, s.weight / 2);
  check_same(twice, one_by_one, 1e-14);
}

TEST_CASE("rounded weights are those of bf16, and the loss moves a little") {
  const ReferenceModel exact(tiny_llama(), 5);
  const ReferenceModel rounded(tiny_llama(), 5, true);
  for (const std::vector<double>& tensor : rounded.weights())
    for (const double value : tensor)
      CHECK(static_cast<double>(rounded_to_bf16(static_cast<float>(value))) == value);
  const double difference = std::abs(loss(exact, {0, 0, 9, 9}) - loss(rounded, {0, 0, 9, 9}));
  CHECK(difference > 0);
  CHECK(difference < 0.2);
}

// Writes the dump that a right execution of two small plans would write, from the float64 reference:
//
//   dump_reference DIR tied|untied
//
// test_torch_check.py compares it with PyTorch: so the reference is judged by what is not ours at all, and
// the check by figures that are known to be right.
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/error.h"
#include "sim/execution/dump.h"
#include "sim/execution/equivalence.h"
#include "tests/execution/tiny_model.h"

using namespace equipoise;
using namespace equipoise::execution;
using nlohmann::json;

namespace {

constexpr std::uint64_t kSeed = 23;
constexpr std::int64_t kTokensOf[] = {40, 25, 300, 1, 70};

struct Case {
  std::string label;
  json lanes;
  std::vector<Sequence> sequences;  // what the lanes mean, written out by hand
};

json lane(int number, const json& micro_batches) {
  return {{"lane", number}, {"context", 1}, {"micro_batches", micro_batches}};
}
json micro_batch(const json& slices) {
  return {{"slices", slices}};
}
json chunk(std::int64_t document, std::int64_t begin, std::int64_t end, int index, int count) {
  return {{"slices", json::array({json::array({document, begin, end})})},
          {"chunk", {{"sequence", document}, {"index", index}, {"count", count}}}};
}

// Two lanes; documents cut at borders of micro-batches; the end of document 4 belongs to a later step.
Case packed() {
  const json first =
      lane(0, json::array({micro_batch({{0, 0, 40}, {1, 0, 20}}), micro_batch({{1, 20, 25}, {2, 0, 300}})}));
  const json second = lane(1, json::array({micro_batch({{3, 0, 1}, {4, 0, 50}})}));
  return {"packed",
          json::array({first, second}),
          {{0, 0, 40, 40}, {1, 0, 20, 25}, {1, 20, 25, 25}, {2, 0, 300, 300}, {3, 0, 1, 1}, {4, 0, 50, 70}}};
}

// Document 2 is cut into two groups of dependent chunks; a chunk alone in its group is packed.
Case chunked() {
  const json chunks =
      json::array({chunk(2, 0, 64, 0, 3), chunk(2, 64, 128, 1, 3), chunk(2, 128, 200, 2, 3),
                   chunk(2, 200, 260, 0, 2), chunk(2, 260, 300, 1, 2), micro_batch({{0, 0, 40}, {3, 0, 1}})});
  return {"chunked",
          json::array({lane(0, chunks)}),
          {{2, 0, 200, 300}, {2, 200, 300, 300}, {0, 0, 40, 40}, {3, 0, 1, 1}}};
}

std::vector<float> narrowed(const std::vector<double>& values) {
  std::vector<float> result;
  for (const double value : values) result.push_back(static_cast<float>(value));
  return result;
}

void write(const Dump& dump, const ModelShape& model, const Case& plan) {
  std::int64_t tokens = 0;
  for (const Sequence& s : plan.sequences) tokens += s.tokens();
  ReferenceModel reference(model, kSeed);
  std::vector<WeightedSequence> sequences;
  for (const Sequence& s : plan.sequences) sequences.push_back({s, 1.0 / static_cast<double>(tokens)});
  const std::vector<double> losses = reference.add_all(sequences, 1);
  const double loss = std::accumulate(losses.begin(), losses.end(), 0.0);
  for (std::size_t t = 0; t < reference.tensors().size(); ++t) {
    dump.write_weights(plan.label, reference.tensors()[t], narrowed(reference.weights()[t]));
    dump.write_gradients(plan.label, reference.tensors()[t], narrowed(reference.gradients()[t]));
  }
  dump.write_loss(plan.label, loss / static_cast<double>(tokens), tokens);
  dump.write_plan(plan.label, {{"schema", "equipoise.plan/1"},
                               {"policy", plan.label},
                               {"steps", json::array({{{"step", 0}, {"lanes", plan.lanes}}})}});
}

void write_all(const std::string& folder, const ModelShape& model) {
  const Dump dump(folder);
  dump.write_config(model);
  std::vector<DumpedDocument> documents;
  for (const std::int64_t tokens : kTokensOf)
    documents.push_back({static_cast<std::int64_t>(documents.size()), tokens});
  dump.write_documents(documents, kSeed, model.vocab);
  write(dump, model, packed());
  write(dump, model, chunked());
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: dump_reference DIR tied|untied\n");
    return 2;
  }
  try {
    write_all(arguments[1], equipoise::testing::tiny_llama(std::string_view(arguments[2]) == "tied"));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

#include "sim/tune/default_space.h"

#include <algorithm>
#include <cstdint>

#include "sim/study/study.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr std::int64_t kFewestChunkTokens = 1024;

std::vector<json> divisors(std::int64_t number, std::int64_t most) {
  std::vector<json> found;
  for (std::int64_t d = 1; d <= std::min(number, most); ++d)
    if (number % d == 0) found.emplace_back(d);
  return found;
}

// What the model keeps: nothing again, a quarter, half, three quarters or all of the layers. Selective
// recompute is not among them: with FlashAttention it costs time and frees nothing.
std::vector<json> recompute_modes(int layers) {
  std::vector<json> modes = {"none"};
  for (int quarter = 1; quarter < 4; ++quarter)
    if (const int some = layers * quarter / 4; some > 0 && modes.back() != json{{"layers", some}})
      modes.push_back({{"layers", some}});
  modes.emplace_back("full");
  return modes;
}

void add_policies(const Study& study, Space& space) {
  const std::int64_t window = study.batch.context_window;
  space.policies.push_back(
      {{"name", {"fixed-greedy"}}, {"pack_window", {1, 2, 4, 8}}, {"shard", {"adaptive"}}});
  // L_max: what memory allows, and less, since the largest micro-batch is what other stages wait for.
  space.policies.push_back({{"name", {"wlb"}}, {"queues", {1, 2, 3, 4}}, {"shard", {"adaptive"}}});
  space.policies.push_back({{"name", {"wlb"}},
                            {"queues", {1, 2, 3, 4}},
                            {"max_tokens", {window, window + window / 4, window + window / 2}},
                            {"shard", {"adaptive"}}});
  std::vector<json> chunks;
  for (const std::int64_t parts : {32, 16, 8, 4, 2})
    if (window / parts >= kFewestChunkTokens) chunks.emplace_back(window / parts);
  if (!chunks.empty())
    space.policies.push_back({{"name", {"chunkflow"}}, {"chunk_size", chunks}, {"keep", {1, 2, 4}}});
  space.policies.push_back({{"name", {"skrull"}}});
}

}  // namespace

Space default_space(const Study& study, const json& file, std::int64_t gpus, int gpus_per_node) {
  Space space;
  std::vector<json> tensor;
  for (const json& degree : divisors(gpus, gpus_per_node))
    if (study.model.heads % degree.get<int>() == 0) tensor.push_back(degree);
  space.shared.push_back({"parallel.tensor", tensor});
  space.shared.push_back({"parallel.context", divisors(gpus, gpus)});
  space.shared.push_back({"parallel.pipeline", divisors(gpus, study.model.layers)});
  if (study.model.layers > 1) space.shared.push_back({"parallel.virtual_pipeline", {1, 2, 4}});
  // Pricing a ring takes time with the square of its ranks: it is tried where the study has one.
  std::vector<json> forms = {"all-gather", "ulysses"};
  if (study.layout.context_comm == ContextComm::ring) forms.emplace_back("ring");
  space.shared.push_back({"parallel.context_comm", forms});
  space.shared.push_back({"parallel.recompute", recompute_modes(study.model.layers)});
  space.policies = rows_of_study(file);
  add_policies(study, space);
  return space;
}

}  // namespace equipoise

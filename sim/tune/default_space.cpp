#include "sim/tune/default_space.h"

#include <algorithm>
#include <cstdint>

#include "sim/study/read/study.h"

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

// The study's own value is tried, too.
void add_axis(const char* name, std::vector<json> values, const json& own, Space& space) {
  if (!own.is_null() && std::find(values.begin(), values.end(), own) == values.end()) values.push_back(own);
  space.shared.push_back({std::string("parallel.") + name, std::move(values)});
}

}  // namespace

Space default_space(const Study& study, const json& file, std::int64_t gpus, int gpus_per_node) {
  Space space;
  const Layout& layout = study.layout;
  std::vector<json> tensor;
  for (const json& degree : divisors(gpus, gpus_per_node))
    if (study.model.heads % degree.get<int>() == 0) tensor.push_back(degree);
  add_axis("tensor", tensor, layout.tensor, space);
  add_axis("context", divisors(gpus, gpus), layout.context, space);
  add_axis("pipeline", divisors(gpus, study.model.layers), layout.pipeline, space);
  if (study.model.moe) {
    std::vector<json> expert;
    for (const json& degree : divisors(gpus, study.model.moe->experts))
      if (study.model.moe->experts % degree.get<int>() == 0) expert.push_back(degree);
    add_axis("expert", expert, layout.expert, space);
  }
  if (study.model.layers > 1) add_axis("virtual_pipeline", {1, 2, 4}, layout.virtual_pipeline, space);
  add_axis("context_comm", {"all-gather", "ulysses", "ring"}, nullptr, space);
  const json parallel = file.value("parallel", json::object());
  add_axis("recompute", recompute_modes(study.model.layers), parallel.value("recompute", json()), space);
  space.policies = rows_of_study(file);
  add_policies(study, space);
  return space;
}

}  // namespace equipoise

#include "sim/workload/model_size.h"

#include <algorithm>
#include <sstream>

#include "policies/base/error.h"

namespace equipoise {

void check_model_size(const ModelShape& model, const std::string& where) {
  constexpr double kMostParameters = 1e15;
  constexpr double kMostWidth = 1 << 30;  // of all heads together; of experts
  const auto of = [](std::int64_t value) { return static_cast<double>(value); };
  double head = of(model.head_dim), low_rank = 0;
  if (model.mla) {
    head += of(model.mla->nope_dim) + of(model.mla->rope_dim) + of(model.mla->v_dim);
    low_rank = of(model.mla->q_lora) + of(model.mla->kv_lora);
  }
  const double width = head * of(std::max(model.heads, model.kv_heads));
  const double experts = model.moe ? of(model.moe->experts) + of(model.moe->shared) : 0;
  const double hidden = of(model.hidden);
  double layer = (4 * hidden + low_rank) * width + 2 * hidden * (1 + low_rank) + 3 * hidden * of(model.ffn);
  if (model.moe) layer += experts * hidden * (3 * of(model.moe->expert_ffn) + 1);
  const double parameters = layer * of(model.layers) + 2 * hidden * of(model.vocab);
  if (parameters <= kMostParameters && width <= kMostWidth && experts <= kMostWidth) return;
  std::ostringstream found;
  found << parameters << " parameters, heads of " << width << " in all, " << experts << " experts";
  throw UserError(where +
                  ": expected a model of at most 1e15 parameters, heads of at most 2^30 in all and 2^30 "
                  "experts, found " +
                  found.str());
}

}  // namespace equipoise

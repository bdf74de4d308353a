#include "sim/execution/rank_context.h"

namespace equipoise::execution {

void RankContext::zero(void* target, std::int64_t count) const {
  if (count > 0) backend.clear(target, static_cast<std::size_t>(count) * element_bytes());
}

void RankContext::add(void* target, const void* source, std::int64_t count) const {
  if (count > 0) backend.run(kernels::ResidualAdd{count, target, source, target});
}

}  // namespace equipoise::execution

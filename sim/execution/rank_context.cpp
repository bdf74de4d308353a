#include "sim/execution/rank_context.h"

#include <algorithm>
#include <array>

namespace equipoise::execution {

void RankContext::zero(void* target, std::int64_t count) const {
  static constexpr std::array<float, 4096> kZeros{};
  const std::size_t bytes = static_cast<std::size_t>(std::max<std::int64_t>(0, count)) * element_bytes();
  for (std::size_t done = 0; done < bytes; done += sizeof(kZeros))
    backend.to_device(static_cast<char*>(target) + done, kZeros.data(), std::min(sizeof(kZeros), bytes - done));
}

void RankContext::add(void* target, const void* source, std::int64_t count) const {
  if (count > 0) backend.run(kernels::ResidualAdd{count, target, source, target});
}

}  // namespace equipoise::execution

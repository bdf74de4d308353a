#include "sim/workload/layout.h"

#include <iterator>

namespace equipoise {

std::string names_of(RecomputeModules modules) {
  std::string text;
  for (std::size_t m = 0; m < std::size(kRecomputeModuleNames); ++m)
    if ((modules & module_bit(static_cast<RecomputeModule>(m))) != 0)
      text.append(text.empty() ? "" : "+").append(kRecomputeModuleNames[m]);
  return text;
}

}  // namespace equipoise

// The arithmetic of a linear layer's GEMMs. It stands with the kernels, below the layouts that choose it and
// the profiles that have a table for each, so that neither needs the other for it.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace equipoise {

enum class Precision { bf16, fp8 };  // attention and elementwise ops stay in bf16
// As a study writes them; also the keys of a profile's GEMM tables.
inline constexpr std::array<std::string_view, 2> kPrecisionNames{"bf16", "fp8"};

constexpr std::string_view name_of(Precision precision) {
  return kPrecisionNames[static_cast<std::size_t>(precision)];
}

}  // namespace equipoise

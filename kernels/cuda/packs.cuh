// What our kernels share. Rows of `columns` elements are read in packs of 8 (one 16-byte access) if the width
// allows it, else one by one: `pack` is a template parameter, which the launchers choose.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/ops.h"

namespace equipoise::kernels::cuda {

inline constexpr int kThreads = 256;
inline constexpr int kWarp = 32;

template <int pack>
struct alignas(2 * pack) Pack {
  bf16 value[pack];
};

template <int pack>
__device__ Pack<pack> load(const bf16* source) {
  return *reinterpret_cast<const Pack<pack>*>(source);
}

template <int pack>
__device__ void store(bf16* target, const Pack<pack>& values) {
  *reinterpret_cast<Pack<pack>*>(target) = values;
}

// Numbers that one thread alone writes, for the packs of a row, in shared memory. The same value of each
// lane's pack lies next to its neighbours', so that a warp's access meets each of the 32 banks once; pack by
// pack, in the order of columns, eight lanes would wait for one bank. The values of a pack lie four banks
// apart, so that neighbouring columns do too.
constexpr std::int64_t kValueStride = kThreads + 4;
template <int pack>
__device__ float& of_thread(float* shared, std::int64_t first_column, int i) {
  return shared[first_column / (kThreads * pack) * (kValueStride * pack) + threadIdx.x + i * kValueStride];
}
// The same number by its column, for any thread after the block has met at a barrier.
template <int pack>
__device__ float of_column(const float* shared, std::int64_t column) {
  const std::int64_t round = column / (kThreads * pack);
  const std::int64_t in_round = column % (kThreads * pack);
  return shared[round * (kValueStride * pack) + in_round / pack + in_round % pack * kValueStride];
}
inline std::size_t bytes_of_threads(std::int64_t columns, int pack) {
  const std::int64_t of_block = kThreads * pack;
  return static_cast<std::size_t>((columns + of_block - 1) / of_block * kValueStride * pack) * sizeof(float);
}

inline unsigned int blocks_for(std::int64_t threads) {
  constexpr std::int64_t kMost = 132 * 32;  // more than enough to fill a GPU; kernels stride over the rest
  return static_cast<unsigned int>(std::clamp<std::int64_t>((threads + kThreads - 1) / kThreads, 1, kMost));
}

inline void launched(const char* name) {
  check(cudaGetLastError(), name);
}

inline bool packs(std::int64_t columns) {
  return columns % 8 == 0;
}

inline const bf16* in(const void* elements) {
  return static_cast<const bf16*>(elements);
}
inline bf16* to(void* elements) {
  return static_cast<bf16*>(elements);
}

}  // namespace equipoise::kernels::cuda

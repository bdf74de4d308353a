// GEMM through cuBLASLt: bf16 in and out, f32 sums. The library's heuristic proposes algorithms; the first
// call of a shape times them and the best is kept.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "kernels/ops.h"

namespace equipoise::kernels::cuda {

class GemmLt {
 public:
  GemmLt();
  ~GemmLt();
  GemmLt(const GemmLt&) = delete;
  GemmLt& operator=(const GemmLt&) = delete;

  void operator()(const GemmShape& shape, const void* a, const void* b, void* c);
  static std::string version();  // "13.1.0"

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace equipoise::kernels::cuda

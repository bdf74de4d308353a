// oneDNN is a module (policies/base/module.h): its matrix product, under a C name.
#pragma once

#include <string>

#include "kernels/backend.h"

namespace equipoise::kernels {

struct OneDnnModule {
  void (*gemm)(const GemmShape& shape, const float* a, const float* b, float* c);
  void (*version)(std::string& text);
};
inline constexpr const char* kOneDnnFile = "libequipoise_onednn.so";
inline constexpr const char* kOneDnnModule = "equipoise_onednn_module";

}  // namespace equipoise::kernels

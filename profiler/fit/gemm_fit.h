// Fits the forms of matrix products (profiler/profile/dense_kernels.h, cpu_forms.h) to samples of one kernel.
#pragma once

#include <span>

#include "profiler/fit/fitted_table.h"
#include "profiler/fit/samples.h"

namespace equipoise {

// The time of a whole call, which may hold two products per group and moves of bytes around them.
double gemm_call_seconds(const GemmForm& form, const GemmSample& sample);

// Whole (n, k) shapes are held out, unless the samples state other shapes.
FittedTable fit_gemm(std::span<const GemmSample* const> samples, double sms, Provenance kind);
// Fits samples that this program measured on a CPU core.
FittedTable fit_panel_gemm(std::span<const GemmSample* const> samples);

}  // namespace equipoise

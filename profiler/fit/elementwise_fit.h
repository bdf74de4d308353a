// Fits a launch, a bandwidth from the cache and a bandwidth from memory to samples of one elementwise op.
#pragma once

#include <span>

#include "profiler/fit/fitted_table.h"
#include "profiler/fit/samples.h"

namespace equipoise {

FittedTable fit_elementwise(std::span<const ElementwiseSample* const> samples, Provenance kind);

}  // namespace equipoise

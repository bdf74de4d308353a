// Fits the forms of attention (profiler/profile/attention.h, cpu_forms.h) to samples of one kernel and pass.
#pragma once

#include <span>

#include "profiler/fit/fitted_table.h"
#include "profiler/fit/samples.h"

namespace equipoise {

struct PackedGrid {
  DocumentMask apart = DocumentMask::varlen;  // how the kernel separates packed documents
  // As FlashAttention 2 does, the kernel launches as many tiles for each document as the longest has, and its
  // backward pass runs passes over the queries' rows before and after the main kernel.
  bool padded = false;
};

FittedTable fit_attention(std::span<const AttentionSample* const> samples, double sms, PackedGrid grid,
                          Provenance kind);
// Fits samples that this program measured on a CPU core.
FittedTable fit_blocked_attention(std::span<const AttentionSample* const> samples);

}  // namespace equipoise

// Sequence slices (Seq1F1B, SlimPipe, InfiniPipe) cut long documents into slices of equal work.
#pragma once

#include <cstdint>
#include <string_view>

#include "policies/parameter.h"
#include "policies/plan.h"
#include "policies/policy.h"

namespace equipoise {

enum class SliceBy { work, tokens };
inline constexpr std::string_view kSliceByNames[] = {"work", "tokens"};
struct SequenceSlicesOptions {
  std::int64_t slices = 4;
  SliceBy slice_by = SliceBy::work;
};
inline constexpr PackParameter kSequenceSlices[] = {
    parameter::integer<&SequenceSlicesOptions::slices>(
        "slices", 1, 1024, "slices of a step's longest document; shorter ones get as many of that size"),
    parameter::choice<&SequenceSlicesOptions::slice_by>(
        "slice_by", kSliceByNames,
        "what slices have equal; work: their work by `cost` (Seq1F1B); tokens: their tokens (SlimPipe)")};

Plan plan_sequence_slices(const PackingProblem& problem);

}  // namespace equipoise

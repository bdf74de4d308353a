// A toy: documents dealt to the micro-batches of a step in turn, some at a time.
#pragma once

#include "policies/parameter.h"
#include "policies/policy.h"

namespace equipoise {

struct DealtOptions {
  std::int64_t run_length = 1;
};
inline constexpr PackParameter kDealt[] = {parameter::integer<&DealtOptions::run_length>(
    "run_length", 1, 1 << 20, "documents that a micro-batch gets at a time")};

Plan plan_dealt(const PackingProblem& problem);

}  // namespace equipoise

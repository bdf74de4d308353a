// What the padded batchers share.
#pragma once

#include <span>

#include "policies/options.h"
#include "policies/plan.h"

namespace equipoise {

// A step of one document a sequence: sequence i goes to lane i mod lanes; micro_batch_size consecutive
// sequences of a lane are a micro-batch, each padded to its longest.
Step padded_step(std::span<const Slice> documents, const PackOptions& options);

}  // namespace equipoise

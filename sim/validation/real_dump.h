// What `execute --dump` writes of a row's first step (sim/execution/dump.h says how).
#pragma once

#include <string>

#include "sim/execution/equivalence.h"
#include "sim/validation/real_row.h"

namespace equipoise {

// On rank 0. `gathered`: losses and gradients of the row's first step from the initial weights. Throws
// UserError where a file cannot be written.
void dump_row(const std::string& folder, const Study& study, const RealRow& row,
              const execution::Gathered& gathered, const execution::Equivalence& equivalence,
              std::uint64_t seed);

}  // namespace equipoise

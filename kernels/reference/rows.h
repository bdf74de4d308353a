// The checks of the row ops, and the calls of them that are timed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/checks.h"
#include "kernels/random_inputs.h"
#include "kernels/row_ops.h"

namespace equipoise::kernels {

// Checks the ops of row_ops.h on the given shapes, or on shapes with and without a partial vector.
std::vector<CheckResult> check_rows(Backend& backend, std::uint64_t seed);
std::vector<CheckResult> check_row_shapes(Backend& backend, std::uint64_t seed, std::span<const Rows> shapes);

// A call of the op at `op` in kRowOps on rows * columns numbers. It has no tensor that the op does not use,
// so that its footprint is that of the table.
RowCall row_call(std::size_t op, const Rows& shape, RowTensors& tensors);

// An integer below `end` for each row of a timed call, in a jumping order. The call then moves the bytes of
// the table of row ops, and no row is adjacent to the one before it.
const std::int32_t* jumping_integers(std::int64_t rows, std::int64_t end, RowTensors& tensors);

}  // namespace equipoise::kernels

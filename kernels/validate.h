// The conditions that every backend asks of an attention call, checked once when the plan is made.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops.h"

namespace equipoise::kernels {

// Throws std::invalid_argument with one line that names the piece and the rule it breaks.
void validate_attention(const AttentionShape& shape, std::span<const Piece> pieces);

// Rows of the query and of the key buffers that the pieces reach.
std::int64_t query_rows_of(std::span<const Piece> pieces);
std::int64_t key_rows_of(std::span<const Piece> pieces);

}  // namespace equipoise::kernels

// Which pieces go into one cuDNN call. The forward pass takes all at once. The backward pass writes gradients
// of keys, and two pieces of one call that share keys would overwrite each other's, so pieces are dealt into
// rounds within which no key row occurs twice; gradients of later rounds are added.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace equipoise::kernels::cuda {

// Pieces by round, in piece order inside a round; a piece goes to the first round that it fits. O(p^2) at
// worst.
std::vector<std::vector<Piece>> disjoint_rounds(std::span<const Piece> pieces);

}  // namespace equipoise::kernels::cuda

// Ring: every rank keeps its queries; blocks of K and V go round, one rank a step, and each rank attends to
// the block that it has while the next one is sent. What it finds is joined with what it found before. In the
// backward the gradients of a block follow it one step behind and come home at the end; a rank's part for its
// own block stays where it is.
//
//   step            0        1        2       ...   c - 1    (then)
//   K and V sent    yes      yes      yes           -        -
//   gradients sent  -        -        of step 1     of c-2   of c - 1
#pragma once

#include "sim/execution/context_attention.h"

namespace equipoise::execution {

MakeAttention make_ring_attention;

}  // namespace equipoise::execution

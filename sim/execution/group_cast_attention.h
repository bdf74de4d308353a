// Group-cast: every rank is sent the K and V of the blocks that its queries see and others hold (the
// simulator's CastBlocks) in stages, attends to its own rows and to each stage's, and joins what it finds.
// The gradients of what it was sent go the way back, where their owners add them up.
//
// A stage's rows lie by chunk, slice and position, so that the keys of a slice that a run of queries sees are
// its first ones there. Messages hold K rows, then V rows; who has nothing for the other sends none.
//
// With cast_once_per_node rows go to another node in one message for all ranks that need them there, to the
// rank that hands them over (cast_through), and their gradients are added up there on the way back.
#pragma once

#include "sim/execution/context_attention.h"

namespace equipoise::execution {

MakeAttention make_group_cast_attention;

}  // namespace equipoise::execution

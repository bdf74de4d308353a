// All-gather: the group gathers the K and V of the slices that it shares, and each rank attends to them with
// its own queries. The gradients of K and V return by a reduce-scatter. A rank attends to slices that it
// holds whole during the gather. A single rank does the same without any exchange.
#pragma once

#include "sim/execution/context_attention.h"

namespace equipoise::execution {

MakeAttention make_gathered_attention;

}  // namespace equipoise::execution

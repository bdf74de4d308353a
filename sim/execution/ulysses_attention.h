// Ranks that share heads: an all-to-all turns a share of the rows with all heads into all rows with a share
// of the heads, and a second one turns their output back. With fewer KV heads than ranks, several ranks get
// the same head, and its gradients are added up on return.
//
// In between, each inner group of such ranks acts as one rank with its share of the heads. A single group
// (Ulysses) attends to whole documents; several groups gather each other's K and V or form a ring.
#pragma once

#include "sim/execution/context_attention.h"

namespace equipoise::execution {

MakeAttention make_ulysses_attention;

}  // namespace equipoise::execution

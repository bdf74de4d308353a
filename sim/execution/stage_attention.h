// Attention that the stages of a pipeline share tick by tick (SlimPipe). A stage with more than the mean
// sends others Q, K and V of a part of its own (StageMove), and joins their results with its own. A backward
// sends them again with the output, its gradient and the log-sums; the gradients of Q, K and V return.
//
// All stages of a tick run equally many layers, so that the n-th layer of each exchanges with the n-th of the
// others. Without moves it is the attention of a single rank.
#pragma once

#include "sim/execution/context_attention.h"

namespace equipoise::execution {

MakeAttention make_stage_attention;

}  // namespace equipoise::execution

// Disaggregated attention: queries go to the ranks that the simulator's plan gives them to, with the keys
// that they see; the output comes home with its log-sums. A rank that computes keeps nothing for the
// backward: all of it is sent again with the output's gradient, and owners add up the gradients of K and V.
//
// The ranks are the CP ranks of a lane, or where stages pool them those of all its stages: a tick's tasks are
// planned together, and a stage without an op in the tick only computes (RankExecutor::serve).
//
// A rank lays the queries of its tasks one after the other, and the keys of each of their slices from the
// first one to the last that a task sees. Where nothing travels, there are no exchanges and all is copied;
// where only keys do, the output does not.
#pragma once

#include "sim/execution/context_attention.h"

namespace equipoise::execution {

MakeAttention make_disaggregated_attention;

}  // namespace equipoise::execution

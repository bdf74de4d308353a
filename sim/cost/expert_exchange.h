// The price of an exchange of experts, by dispatcher.
#pragma once

#include "profiler/profile/cost_models.h"
#include "sim/framework/framework_options.h"
#include "sim/workload/model.h"
#include "sim/workload/ops.h"

namespace equipoise {

// How tokens get to their experts on other ranks and back, in a mixture-of-experts layer.
//
// Each pass of a layer has two exchanges. The first takes tokens to their experts: forward the dispatch,
// backward the gradients of what came back (the transpose of the combine, which is a dispatch). The second
// brings back one vector for each copy, to be summed where the token lives: forward the combine, backward the
// transpose of the dispatch. Both move the same copies; what goes to the experts may be in FP8
// (`dispatch_bytes`), what is summed stays in the activations' type (DeepSeek-V3, arXiv 2412.19437 section
// 3.3.2).
//
// What goes over which link is the expectation under uniform routing (profiler/profile/collective.h):
// with n ranks of an expert-parallel group on N nodes, k experts per token and T tokens per rank,
//   alltoall  every copy is sent: T k / n of them to each rank, 1 / n of all stay at home
//   deepep    a token goes over the network once for each other node that has experts of it, and over NVLink
//             once for each rank there. Its nodes are at most `expert_nodes`, its own included where it is
//             one of them; where that is 0, what the model's router leaves by its groups of experts
// The rank that sends or gets the most sets the time. What arrives is alike on all ranks but for the load of
// the busiest over the mean (ExpertArrivals).
enum class ExchangeWay { to_experts, back };

// The ranks that exchange, and how the exchange is priced.
struct ExpertGroup {
  const ModelShape& model;
  const FrameworkOptions& framework;
  GroupShape ranks;          // the expert-parallel ranks
  double element_bytes = 2;  // for an activation
  const CollectiveModel& collectives;
};

// The exchange of a rank's `tokens` tokens, times `load`: what it sends, or receives, whichever is more. Its
// bytes are the buffer of an all-to-all, with each copy once, including those that stay. DeepEP's bytes are
// those of an all-to-all that loads the slower kind of link equally (the network, if there is one), for
// contention and traces. Throws UserError if the profile cannot price it.
Op expert_exchange(const ExpertGroup& group, double tokens, double load, ExchangeWay way, RangeUse& use);

}  // namespace equipoise

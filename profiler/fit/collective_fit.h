// Fits what devices send each other: collectives, with one table per kind inside a node and one per network
// between nodes, and exchanges of tokens between experts.
#pragma once

#include <span>

#include "profiler/fit/fitted_table.h"
#include "profiler/fit/samples.h"

namespace equipoise {

// The switch does all-reduces over at least `switch_from_ranks` ranks; 0 means that it does none.
FittedTable fit_node_collective(std::span<const CollectiveSample* const> samples, double switch_from_ranks,
                                Provenance kind);
// Fits collectives between processes on the CPUs of one machine.
FittedTable fit_size_table(std::span<const CollectiveSample* const> samples);
// `node` has the fitted parameters inside a node, by kind.
FittedTable fit_network(std::span<const CollectiveSample* const> samples,
                        std::span<const NodeParameters> node, double nic_GBps, Provenance kind);
// The samples are either message streams or DeepEP's kernels. `links` has the rates of their board.
FittedTable fit_exchange(std::span<const ExchangeSample* const> samples, LinkRates links, Provenance kind);

}  // namespace equipoise

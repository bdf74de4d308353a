// Checks whether a layout can run a model.
#pragma once

#include <string>

#include "sim/topology/rank_grid.h"
#include "sim/workload/layout.h"
#include "sim/workload/model.h"

namespace equipoise {

// The sizes of the grid of a layout's ranks.
ParallelSizes parallel_sizes(const Layout& layout);

// Throws UserError with the reason if the layout cannot run the model: `where` names the study file. The
// other functions of this room take layouts that pass.
void check_layout(const ModelShape& model, const Layout& layout, const std::string& where);

}  // namespace equipoise

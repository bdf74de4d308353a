// Sizes of a model that a user wrote, before anything multiplies them.
#pragma once

#include <string>

#include "sim/workload/model.h"

namespace equipoise {

// Throws UserError naming `where` for shapes whose parameters, counted exactly elsewhere, would not fit an
// integer: far above any model.
void check_model_size(const ModelShape& model, const std::string& where);

}  // namespace equipoise

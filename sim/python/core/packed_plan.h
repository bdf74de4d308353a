// `pack` turns lengths and options into a plan.
#pragma once

#include <nanobind/nanobind.h>

namespace equipoise::python {

void bind_plans(nanobind::module_& m);

}  // namespace equipoise::python

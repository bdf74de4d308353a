// `pack`: lengths and options in, a plan out.
#pragma once

#include <nanobind/nanobind.h>

namespace equipoise::python {

void bind_plans(nanobind::module_& m);

}  // namespace equipoise::python

// A study that is read and has not run, so that plans made by Python can still be put into its rows.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "policies/loader.h"
#include "sim/study/read/study.h"

namespace equipoise::python {

// What a policy written in Python receives in addition to the documents: the shape of a step, as JSON.
std::string shape_of(PackOptions batch, std::int64_t steps, const DocumentSet* documents);
// Documents as their global batches: rows of batch, document, begin, end.
nanobind::object rows_of(const DocumentSet& documents);

void bind_studies(nanobind::module_& m);

}  // namespace equipoise::python

// The kernel checks of a run: those of its families, and what the samples file says of them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/checks.h"

namespace equipoise::measure {

// Empty `families`: all. A check that throws has failed for its whole family, under whose name it is
// reported.
std::vector<kernels::CheckResult> checks_of(kernels::Backend& backend, const std::set<std::string>& families,
                                            std::uint64_t seed);

// The one nearest to its limit, or farthest beyond; null where there is none.
const kernels::CheckResult* worst_of(const std::vector<kernels::CheckResult>& results);

// {"all": every result, "summary": the worst of each op and tensor}. A run that is resumed may have checked
// other kernels before: what `earlier`, its samples file, says of ops that are not among `results` is kept
// ("": none).
nlohmann::json checks_json(const std::vector<kernels::CheckResult>& results, const std::string& earlier);

}  // namespace equipoise::measure

// Makes a whole profile: device facts and, table by table, either a fit to selected samples or a derivation.
//
// A recipe is a JSON file beside the profiles (profiler/README.md). Each table is
//   {"fit": {"gpu": "H100", "dtype": ["fp16", "bf16"], "source_has": "…"}}   samples whose labels match
//   {"derive": {"copy": "gemm/bf16", "profile": "h100-sxm", "multiply": {"memory_GBps": 1.43}, "set": {…},
//               "ranges": {…}, "rule": "why"}}                                marked derived, with the rule
// Samples that `profile` measured bring their own recipe: everything that is there is fitted.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "profiler/fit/samples.h"

namespace equipoise {

// `where`: the recipe's file name, for errors. Throws UserError; the result loads as a Profile.
nlohmann::json make_profile(const nlohmann::json& recipe, const std::string& where, const SampleSet& samples);

// Whether the labels are those that a selector asks for.
bool selects(const nlohmann::json& selector, const Labels& labels);

// The recipe of a measured samples file: `file` has device facts and `samples` its lists.
nlohmann::json recipe_of_samples(const nlohmann::json& file, const std::string& name,
                                 const SampleSet& samples);

}  // namespace equipoise

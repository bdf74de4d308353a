// Makes a whole profile: device facts and, table by table, either a fit to selected samples or a derivation.
//
// A recipe is a JSON file next to the profiles (profiler/README.md). Each of its tables is one of
//   {"fit": {"gpu": "H100", "dtype": ["fp16", "bf16"], "source_has": "..."}}
//       a fit to samples whose labels match
//   {"derive": {"copy": "gemm/bf16", "profile": "h100-sxm", "multiply": {"memory_GBps": 1.43}, "set": {...},
//               "ranges": {...}, "rule": "why"}}
//       a changed copy of a table, marked derived, with the rule
//   {"keep": {"profile": "h200-sxm", "table": "gemm/fp8"}}
//       a table of another profile, unchanged
// An "exchange" of the collectives is fitted to rows of a board whose "nvlink_GBps" and "nic_GBps" are given
// next to "fit". "all_to_all" at a network names the exchange that prices its all-to-alls; "unseen_fabrics"
// says how far such a fit was off on fabrics that it had not seen (tests/fit_fabrics.py). "document_mask" at
// a fitted attention table, or inside its "derive", says how its kernel separates packed documents
// (profile/attention.h); "padded_grid": true says that the kernel is launched as FlashAttention 2 is
// (attention_fit.h). "measured": true at a fitted table, or at the whole recipe, says that its samples are
// this program's own. "measured_facts": ["launch_seconds", ...] takes facts of the device from the samples
// file instead of the recipe. Samples that `profile` measured bring a recipe that fits all of them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "profiler/fit/samples.h"

namespace equipoise {

// `where` is the recipe's file name, for errors. Throws UserError; the result loads as a Profile.
nlohmann::json make_profile(const nlohmann::json& recipe, const std::string& where, const SampleSet& samples);

// Completes a recipe with what a samples file has in addition to its samples: measured facts of the device,
// the software that ran, and results of checks. `measured` is the file, or null.
void take_measurement(nlohmann::json& recipe, const std::string& where, const nlohmann::json& measured);

// Whether a selector selects these labels. Each of its keys is a label, or a label with "_has" for a part.
bool selects(const nlohmann::json& selector, const Labels& labels);

// The recipe of a measured samples file: `file` has device facts and `samples` its lists. `network` names the
// fabric of groups between nodes ("measured" if empty), whose NIC rate is the device's.
nlohmann::json recipe_of_samples(const nlohmann::json& file, const std::string& name,
                                 const SampleSet& samples, const std::string& network = {});

}  // namespace equipoise

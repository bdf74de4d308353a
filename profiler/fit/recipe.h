// Makes a whole profile: device facts and, table by table, either a fit to selected samples or a derivation.
//
// A recipe is a JSON file beside the profiles (profiler/README.md). Each table is
//   {"fit": {"gpu": "H100", "dtype": ["fp16", "bf16"], "source_has": "…"}}   samples whose labels match
//   {"derive": {"copy": "gemm/bf16", "profile": "h100-sxm", "multiply": {"memory_GBps": 1.43}, "set": {…},
//               "ranges": {…}, "rule": "why"}}                                marked derived, with the rule
//   {"keep": {"profile": "h200-sxm", "table": "gemm/fp8"}}                    as it is there, with its
//                                                                             provenance
// An "exchange" of the collectives is fitted to rows of a board whose "nvlink_GBps" and "nic_GBps" stand
// beside "fit"; "all_to_all" at a network names the exchange that its all-to-alls are; "unseen_fabrics" says
// how far such a fit was off on fabrics that it had not seen (tests/fit_fabrics.py). "document_mask" at a
// fitted attention table, or inside its "derive": how its kernel keeps packed documents apart
// (profile/attention.h); "padded_grid": true there: launched as FlashAttention 2 is (fit/table_fits.h).
// "measured": true at a fitted table (or at the whole recipe) says that its samples are this program's own.
// "measured_facts": ["launch_seconds", …] takes facts of the device from the samples file instead of the
// recipe. Samples that `profile` measured bring their own recipe: everything that is there is fitted.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "profiler/fit/samples.h"
#include "profiler/profile/profile.h"

namespace equipoise {

// `where`: the recipe's file name, for errors. Throws UserError; the result loads as a Profile.
nlohmann::json make_profile(const nlohmann::json& recipe, const std::string& where, const SampleSet& samples);

// Completes a recipe with what a samples file says beside its samples: the facts that the recipe leaves to
// the measurement, what ran, and how its checks came out. `measured`: the file, null where there is none.
void take_measurement(nlohmann::json& recipe, const std::string& where, const nlohmann::json& measured);

// Whether the labels are those that a selector asks for.
bool selects(const nlohmann::json& selector, const Labels& labels);

// The recipe of a measured samples file: `file` has device facts and `samples` its lists. `network`: what to
// call the fabric of groups between nodes ("measured" if empty), whose NIC rate is the device's.
nlohmann::json recipe_of_samples(const nlohmann::json& file, const std::string& name,
                                 const SampleSet& samples, const std::string& network = {});

// --- A profile of one's own from a shipped one and a few samples.
//
// The tables of the base are where the search begins and what it is drawn back to: a parameter moves as far
// as the samples ask for, against a prior around the base's value. Parameters that rise and fall together
// from one machine to the next (all latencies of a network, all rates of a GEMM's tiles) share a factor
// beside their own, so that one point already moves them all. What no sample speaks of stays the base's, and
// the provenance says so:
//   kind "mended"        the profile's word for it: parameters of the base, moved by so many samples of such
//   a day "borrowed_from"      at every other table: it is the base's, as it was
// Samples of groups inside a node adapt the node's tables, those between nodes one network, which becomes the
// default; so does the attention kernel, where samples of forward and backward are of one that is not.
// Errors: `cross_validated` leaves out one shape after the other; `base_error` is the base's own on the same
// samples.

struct AdaptOptions {
  std::string name;          // of the new profile
  std::string network;       // of the fabric that samples between nodes are of; empty: "measured"
  std::string base_network;  // of the base, to begin with; empty: its default
  double nic_GBps = 0;       // of one GPU, one direction; 0: the base's
  std::string date;          // of the samples, YYYY-MM-DD
  std::string measured_on;   // the GPU as the samples' files name it; may be empty
};

// `notes`: what each group of samples did, and which no table of the base is for. Throws UserError where
// no sample fits a table.
nlohmann::json adapt_profile(const Profile& base, const AdaptOptions& options, const SampleSet& samples,
                             std::vector<std::string>& notes);

}  // namespace equipoise

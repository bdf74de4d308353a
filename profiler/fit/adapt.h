// A profile of one's own from a shipped one and a few samples.
//
// The tables of the base are where the search begins and what it is drawn back to: a parameter moves as far
// as the samples ask for, against a prior around the base's value. Parameters that rise and fall together
// from one machine to the next (all latencies of a network, all rates of a GEMM's tiles) share a factor
// beside their own, so that one point already moves them all. What no sample speaks of stays the base's, and
// the provenance says so:
//   kind "mended"        the profile's word for it: parameters of the base, moved by so many samples of such
//   a day "borrowed_from"      at every other table: it is the base's, as it was
// Samples of groups inside a node adapt the node's tables, those between nodes one network, which becomes the
// default. Errors: `cross_validated` leaves out one shape after the other; `base_error` is the base's own on
// the same samples.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "profiler/fit/samples.h"
#include "profiler/profile/profile.h"

namespace equipoise {

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

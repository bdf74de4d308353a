// Makes a profile of one's own machine from a shipped one and a few samples.
//
// The base's tables are the start of the search and the centre of its prior: a parameter moves as far as the
// samples ask for against a prior around the base's value. Parameters that rise and fall together from one
// machine to the next (all latencies of a network, all rates of a GEMM's tiles) share a factor in addition to
// their own, so that a single point already moves all of them. Tables without samples stay the base's. The
// provenance records both cases:
//   kind "calibrated"  parameters of the base, moved by so many samples of such a day
//   "borrowed_from"    on every other table: it is the base's, unchanged
// Samples of groups inside a node adapt the node's tables. Those between nodes adapt one network, which
// becomes the default; so does an attention kernel where samples of both its passes were given.
// `cross_validated` are errors with one shape held out after the other; `base_error` is the error of the
// unchanged base on the same samples, `base_errors` the same by group.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "policies/base/note.h"
#include "profiler/fit/samples.h"
#include "profiler/profile/profile.h"

namespace equipoise {

struct AdaptOptions {
  std::string name;          // name of the new profile
  std::string network;       // name for the fabric of samples between nodes; "measured" if empty
  std::string base_network;  // the base's network to start from; its default if empty
  double nic_GBps = 0;       // rate of one GPU's NIC in one direction; the base's if 0
  std::string date;          // date of the samples, YYYY-MM-DD
  std::string measured_on;   // the GPU as the samples' files name it; may be empty
};

// `notes` says what each group of samples did, and which samples no table of the base covers. The result is
// null if no sample fits any of its tables.
nlohmann::json adapt_profile(const Profile& base, const AdaptOptions& options, const SampleSet& samples,
                             Notes& notes);

}  // namespace equipoise

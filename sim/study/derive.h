// What a policy needs and the user need not type: L_max, BucketSize and HBP's candidates from the memory and
// cost models.
#pragma once

#include <string>
#include <vector>

#include "sim/memory/memory_model.h"
#include "sim/study/study.h"

namespace equipoise {

// Everything that prices a run of one layout; shared by all its policies and threads.
struct RunModels {
  RunModels(const Study& study, const Layout& layout, const Profile& profile);

  Layout layout;
  Placement placement;
  LayerCosts costs;
  MemoryModel memory;
};

// The layout with the policy's own recompute mode.
Layout layout_of(const Study& study, const PolicyRun& run);

// Fills run.pack: max_tokens, bucket_size, candidates (hbp without groups). Returns why no plan can be made
// where nothing fits in memory, else nothing.
std::string derive_options(const Study& study, const RunModels& models, PolicyRun& run,
                           std::vector<std::string>& notes);

// Where nothing fits and the user wants times all the same: what the policies take without a memory model.
void derive_without_memory(const Study& study, PolicyRun& run);

}  // namespace equipoise

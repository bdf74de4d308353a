// What a policy needs and the user need not type: L_max, BucketSize and HBP's checkpointed layers, from the
// memory of the row's own schedule (sim/memory/derived_sizes.h).
#pragma once

#include <string>
#include <vector>

#include "sim/memory/memory_model.h"
#include "sim/study/read/study.h"

namespace equipoise {

// Everything that prices a run of one layout; shared by all its policies and threads.
struct RunModels {
  RunModels(const Study& study, const Layout& layout, const Profile& profile);

  Layout layout;
  RankGrid grid;
  LayerCosts costs;
  MemoryModel memory;
};

// The layout with the policy's own recompute mode, as its schedule runs it.
Layout layout_of(const Study& study, const PolicyRun& run);

// Layers of the model that packs of `length` tokens on `degree` ranks must checkpoint (HBP Algorithm 4); -1
// if they do not fit.
int layers_of_group(const Study& study, const RunModels& models, const PolicyRun& run, std::int64_t length,
                    int degree);

// Fills run.pack: max_tokens, bucket_size. Returns why no plan can be made where nothing fits in memory, else
// nothing.
std::string derive_options(const Study& study, const RunModels& models, PolicyRun& run,
                           std::vector<std::string>& notes);

// Where nothing fits and the user wants times all the same: what the policies take without a memory model.
void derive_without_memory(const Study& study, PolicyRun& run);

// Whether the row's policy is to choose its groups, and with them what each recomputes (hbp's Algorithm 1).
bool chooses_groups(const PolicyRun& run);

}  // namespace equipoise

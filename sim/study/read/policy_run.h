// An entry of a study's `policies`: its reader, its presets, and the layout and schedule with which it runs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/study/read/study.h"

namespace equipoise {

// Throws UserError, which names `where` and the key.
PolicyRun read_policy_run(const nlohmann::json& node, const std::string& where, const Study& study);

// The default sharding of a study: windows need not be multiples of 2 x CP.
ShardOptions default_sharding();

// Entries of one policy get " #2" and so on, unless the study labels them.
void make_labels_unique(std::vector<PolicyRun>& runs);

struct Preset {
  const char* name;
  const char* policy;
  const char* shard;
  const char* key;  // a key of the policy with its value, or null
  std::int64_t value;
  const char* paper;
  const char* summary;
  std::optional<ContextComm> context_comm = {};
  bool stage_attention_exchange = false;
};
// The papers' systems by name, such as plain-4d, fixed-4d, wlb-llm, seq1f1b, slimpipe and disaggregated.
std::span<const Preset> presets();

// Why a row's stages cannot even out their attention, with `where` in front; empty if they can, or do not.
std::string exchange_fault(const Study& study, const PolicyRun& run, const std::string& where);
// Removes the exchange that a row's preset has and its file does not name, if it has this fault.
bool leaves_out_exchange(PolicyRun& run, const std::string& fault);

// The layout with the policy's own recompute mode, as its schedule runs it.
Layout layout_of(const Study& study, const PolicyRun& run);

// 1f1b, or interleaved-1f1b with model chunks.
std::string default_schedule(int chunks);
// Sets the parts of a step's shape that follow from the stages and their model chunks.
void shape_chunks(int stages, int chunks, PackOptions& pack);
// Gives the row so many model chunks instead of the layout's.
void set_virtual_pipeline(const Study& study, int chunks, PolicyRun& run);

// The schedule of its policy, else the study's; of the two forms of 1F1B the one for the row's chunks.
const SchedulePolicy& schedule_policy_of(const Study& study, const PolicyRun& run);

}  // namespace equipoise

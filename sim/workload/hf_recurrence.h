// Which layers of a config.json mix tokens by a linear recurrence, and of which shape.
#pragma once

#include <string>

#include "policies/base/note.h"
#include "sim/workload/hf_config.h"
#include "sim/workload/model.h"

namespace equipoise {

// Whether models of the type may have recurrences. The config's lists of layers say whether this one has any.
bool may_recur(const std::string& model_type);

// How many blocks a pattern of them lists (Nemotron-H); 0 without one.
int blocks_listed(HfConfig& config);

// Reads them into a shape whose heads, layers and experts are read. A pattern of blocks that are each a mixer
// or an FFN (Nemotron-H) becomes layers of a mixer and the FFN that follows it, if one does. `listed` is the
// number of layers or blocks in the config. `asked`: how many of its first layers a study asks for; 0: all.
// Throws UserError.
void read_recurrence(HfConfig& config, const std::string& model_type, int listed, int asked,
                     ModelShape& model, Notes& notes);

}  // namespace equipoise

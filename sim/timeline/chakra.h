// One simulated step as a Chakra execution trace, for ASTRA-sim and other tools that replay one: a file
// per GPU with a node per kernel, collective, send and receive of that GPU, and what each waits for.
//
// A file is a sequence of protobuf messages, each behind its length as a varint: GlobalMetadata, then one
// Node after another (the public schema et_def.proto of MLCommons Chakra). Kernels carry their duration,
// FLOPs (num_ops) and bytes (tensor_size); collectives their type, the bytes that a rank puts in (comm_size)
// and their process group (pg_name), whose members comm_groups.json lists; sends and receives their peers,
// bytes and a tag that is equal on both sides. Durations are the profile's, without jitter and stragglers:
// waiting is the replayer's to find. They are whole microseconds in this format, so each is the difference of
// two rounded sums: a rank's total stays right.
//
// The dependencies are those of the op program: a rank's ops follow each other, a pair runs side by side,
// gradient buckets and ZeRO-3's collectives run alongside the rest in their own order.
#pragma once

#include <string>

#include "sim/step/op_program.h"
#include "sim/topology/rank_grid.h"

namespace equipoise {

// Writes folder/step.GPU.et for every GPU, and folder/comm_groups.json. With folded TP every rank of a TP
// group gets the group's nodes. Throws UserError if a file cannot be written.
void write_chakra(const std::string& folder, const OpProgram& program, const RankGrid& grid,
                  bool gradients_all_reduced);

}  // namespace equipoise

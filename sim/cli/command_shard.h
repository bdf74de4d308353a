// `equipoise shard`: where the queries of one micro-batch sit, and what each CP rank computes.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/commands.h"
#include "sim/limits/memory_limit.h"

namespace equipoise {

struct ShardCommandOptions {
  std::vector<std::int64_t> lengths;  // documents of the micro-batch
  int ranks = 1;                      // CP degree
  std::string policy = "per-sequence";
  std::string remainder = "slots";  // slots, tail, pad
  std::string pad = "error";        // error, tail
  std::int64_t tile = 128;
  std::int64_t block = 128;
  double top_p = 0, tolerance = 0.02;
  std::int64_t bucket_size = 0;
  std::string cost;     // of a document, for dacp: quadratic, flops, profiled; empty: flops
  std::string profile;  // empty: no seconds
  std::string model;    // built-in name or a Hugging Face config.json
  MemoryLimit memory = default_memory_limit();
  Format format = Format::table;
};

// Seconds are those of one layer's attention forward with all heads of the model, null without a profile.
void shard_command(const ShardCommandOptions&, std::ostream& out);

}  // namespace equipoise

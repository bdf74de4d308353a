// Measurements that other tools wrote: what a file gave, and what of it could not be used.
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace equipoise {

struct ForeignFile {
  std::string tool;                             // "nccl-tests", "torch.profiler"
  std::string what;                             // of what: "all_reduce over 16 GPUs on 2 nodes"
  std::string gpu;                              // as the tool names it; empty where it does not
  std::size_t used = 0;                         // samples
  std::map<std::string, std::size_t> left_out;  // rows or calls, by the reason

  void leave_out(const std::string& reason, std::size_t count = 1) { left_out[reason] += count; }
};

// One line for the user: "nccl-tests: 12 samples of all_reduce ...; left out: 1 of size 0".
std::string shown(const ForeignFile& file);

}  // namespace equipoise

// How much memory and disk a run may take, and its refusal before any work if it would take more.
//
// Estimates are made where the sizes are known (sim/study/estimate.h for plans and simulations, the commands
// for what they alone allocate) and compared with a limit here. bound_memory() stops what no estimate
// foresees: the allocation fails, and the program reports it in one line instead of being killed.
#pragma once

#include <cstdint>
#include <string>

namespace equipoise {

inline constexpr double kBytesPerGB = 1e9;
inline constexpr double kLeastMemoryGB = 0.1;
inline constexpr double kDefaultOutputGB = 1;
inline constexpr std::int64_t kDefaultCases = 100'000;

struct MemoryLimit {
  double bytes = 0;
  std::string source;  // "--max-memory-GB", "80% of the machine's memory", ...
  bool fixed = false;  // no option sets another
  bool typed = false;  // by --max-memory-GB
};

// The least of 80% of the machine's memory, the cgroup's limit and RLIMIT_AS.
MemoryLimit default_memory_limit();

// `max_memory_GB` is the value of --max-memory-GB; 0 means the default. Throws UserError for no size.
MemoryLimit memory_limit(double max_memory_GB);

// Throws UserError: "<what>: needs about 12.5 GB of memory, the limit is 2 GB (--max-memory-GB); expected
// <instead>, or --max-memory-GB 13". `instead` names another remedy, such as "a larger chunk_size"; it is the
// only one if the limit is fixed.
void require_memory(const std::string& what, double bytes, const MemoryLimit& limit,
                    const std::string& instead);

// Does the same for files, with --max-output-GB.
void require_output(const std::string& what, double bytes, double max_output_GB,
                    const std::string& instead = "");

// From now on an allocation fails with std::bad_alloc if it takes this process above the limit. What the
// process already has, the stacks of `threads` and what libraries take for theirs do not count. No effect
// under sanitizers, whose shadow memory counts.
void bound_memory(const MemoryLimit& limit, int threads = 1);

// 12.5 GB, 340 MB.
std::string bytes_text(double bytes);

}  // namespace equipoise

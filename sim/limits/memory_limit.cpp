#include "sim/limits/memory_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "policies/base/error.h"
#include "policies/base/text.h"

namespace equipoise {
namespace {

constexpr double kShareOfMachine = 0.8;

std::string number(double value) {
  return formatted("%.*g", value < 1000 ? 3 : 6, value);
}

void take_least(MemoryLimit& limit, double bytes, const char* source) {
  if (bytes > 0 && bytes < limit.bytes) limit = {bytes, source};
}

// The number in a cgroup's file; 0 if there is none ("max", no such file).
double number_in(const std::string& path) {
  std::ifstream in(path);
  double value = 0;
  return in >> value ? value : 0;
}

// Applies the limits of this process's cgroup and of those above it. Version 2 names one path for all
// controllers, version 1 one for "memory". In a container the path may not exist below the mount, whose root
// is then the group's.
void take_cgroup(MemoryLimit& limit) {
  constexpr const char* kSource = "the cgroup's memory limit";
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    if (!unified && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
    const std::string root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const char* const file = unified ? "/memory.max" : "/memory.limit_in_bytes";
    for (std::string path = line.substr(second + 1); !path.empty(); path.resize(path.rfind('/')))
      if (path != "/") take_least(limit, number_in(root + path + file), kSource);
    take_least(limit, number_in(root + file), kSource);
  }
}

// Rounded up to two digits, so that the suggested limit is enough.
std::string enough_GB(double bytes) {
  const double value = bytes / kBytesPerGB;
  const double unit = std::pow(10, std::floor(std::log10(std::max(value, 0.01))) - 1);
  return number(std::ceil(value / unit) * unit);
}

}  // namespace

std::string bytes_text(double bytes) {
  if (bytes >= kBytesPerGB) return number(bytes / kBytesPerGB) + " GB";
  return number(bytes / 1e6) + " MB";
}

MemoryLimit default_memory_limit() {
  const double machine =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  MemoryLimit limit{kShareOfMachine * machine, "80% of the machine's memory"};
  take_cgroup(limit);
  rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY)
    take_least(limit, static_cast<double>(space.rlim_cur), "RLIMIT_AS");
  return limit;
}

MemoryLimit memory_limit(double max_memory_GB) {
  constexpr double kMostGB = 1e6;
  if (max_memory_GB == 0) return default_memory_limit();
  if (!(max_memory_GB >= kLeastMemoryGB && max_memory_GB <= kMostGB))
    throw UserError("--max-memory-GB: expected a number from 0.1 to 1000000, found ", number(max_memory_GB));
  return {.bytes = max_memory_GB * kBytesPerGB, .source = "--max-memory-GB", .typed = true};
}

void require_memory(const std::string& what, double bytes, const MemoryLimit& limit,
                    const std::string& instead) {
  if (bytes <= limit.bytes) return;
  throw UserError(what, ": needs about ", bytes_text(bytes), " of memory, the limit is ",
                  bytes_text(limit.bytes), " (", limit.source, "); expected ", instead,
                  limit.fixed ? "" : ", or --max-memory-GB " + enough_GB(bytes));
}

void require_output(const std::string& what, double bytes, double max_output_GB, const std::string& instead) {
  if (bytes <= max_output_GB * kBytesPerGB) return;
  throw UserError(what, ": would write about ", bytes_text(bytes), ", the limit is ",
                  bytes_text(max_output_GB * kBytesPerGB), "; expected ",
                  (instead.empty() ? "" : instead + ", or "), "--max-output-GB ", enough_GB(bytes));
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
void bound_memory(const MemoryLimit&, int) {}
#else
void bound_memory(const MemoryLimit& limit, int threads) {
  constexpr double kStack = 8.0 * 1024 * 1024;
  // OpenBLAS's threads, which start with the program, take 128 MiB each and retry until they get it.
  constexpr double kLibraryThread = 136.0 * 1024 * 1024;
  rlimit data{};
  if (::getrlimit(RLIMIT_DATA, &data) != 0) return;
  double pages[6] = {};  // size, resident, shared, text, library, data and stack
  std::ifstream held("/proc/self/statm");
  for (double& count : pages) held >> count;
  const double now = pages[5] * static_cast<double>(::sysconf(_SC_PAGESIZE));
  const double libraries = kLibraryThread * static_cast<double>(::sysconf(_SC_NPROCESSORS_CONF));
  const auto bytes = static_cast<rlim_t>(limit.bytes + now + libraries + kStack * threads);
  if (data.rlim_cur != RLIM_INFINITY && data.rlim_cur <= bytes) return;
  data.rlim_cur = bytes;
  (void)::setrlimit(RLIMIT_DATA, &data);  // if this is refused, the user's own limits stay
}
#endif

}  // namespace equipoise

// Peak resident memory of a piece of work, for benchmarks: the work runs in a child process of its own, so
// that what ran before does not count. Linux only.
#pragma once

#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace equipoise {

// Bytes that `work` adds to the resident memory of a fresh copy of this process, at its peak; -1 on failure.
template <class Work>
double peak_bytes(const Work& work) {
  malloc_trim(0);  // what earlier work freed must not be reused unseen
  int channel[2];
  if (pipe(channel) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    const auto peak = [] {
      rusage usage{};
      getrusage(RUSAGE_SELF, &usage);
      return static_cast<double>(usage.ru_maxrss) * 1024;  // Linux counts KiB
    };
    const double before = peak();
    work();
    const double added = peak() - before;
    const bool told = write(channel[1], &added, sizeof added) == sizeof added;
    _exit(told ? 0 : 1);
  }
  double added = -1;
  if (child < 0 || read(channel[0], &added, sizeof added) != sizeof added) added = -1;
  close(channel[0]);
  close(channel[1]);
  if (child > 0) waitpid(child, nullptr, 0);
  return added;
}

}  // namespace equipoise

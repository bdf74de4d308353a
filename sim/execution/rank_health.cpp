#include "sim/execution/rank_health.h"

#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <limits>

#include "policies/base/index.h"

namespace equipoise::execution {
namespace {

// A rank that beats twice a second has missed two.
constexpr double kSuspiciousSeconds = 1.2;
constexpr double kLongestLookSeconds = 1;

bool is_here(const RankSlot& slot) {
  return slot.pid != 0 && slot.left == 0;
}

std::string seconds(double value) {
  return std::to_string(static_cast<int>(value)) + " s";
}

}  // namespace

ProcessState process_state(int pid) {
  if (kill(pid, 0) != 0 && errno == ESRCH) return ProcessState::gone;
  char name[64];
  std::snprintf(name, sizeof name, "/proc/%d/stat", pid);
  std::FILE* file = std::fopen(name, "re");
  if (file == nullptr) return ProcessState::alive;  // a /proc that hides: only silence tells
  char line[512] = {};
  const std::size_t length = std::fread(line, 1, sizeof line - 1, file);
  std::fclose(file);
  line[length] = '\0';
  const char* name_end = std::strrchr(line, ')');  // the name may hold anything
  if (name_end == nullptr || name_end[1] == '\0') return ProcessState::alive;
  const char state = name_end[2];
  if (state == 'Z' || state == 'X') return ProcessState::gone;
  return state == 'T' || state == 't' ? ProcessState::stopped : ProcessState::alive;
}

RankHealth::RankHealth(const RankTable& table, HealthLimits limits, bool all_here,
                       ProcessState (*state_of)(int))
    : table_(table),
      limits_(limits),
      all_here_(all_here),
      state_of_(state_of),
      seen_(static_cast<std::size_t>(table.slots())) {}

std::optional<Finding> RankHealth::look(int own, double elapsed_seconds) {
  update(std::min(elapsed_seconds, kLongestLookSeconds));
  if (auto found = silent(own)) return found;
  return stuck();
}

void RankHealth::update(double elapsed_seconds) {
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const RankSlot& slot = table_.slot(static_cast<int>(i));
    Seen& seen = seen_[i];
    const std::uint64_t beats = slot.beats;
    const std::uint64_t ops = slot.progress.ops;
    seen.silent_seconds = beats == seen.beats ? seen.silent_seconds + elapsed_seconds : 0;
    seen.same_op_seconds = ops == seen.ops ? seen.same_op_seconds + elapsed_seconds : 0;
    seen.beats = beats;
    seen.ops = ops;
  }
}

std::optional<Finding> RankHealth::gone(int own) const {
  for (int i = 0; i < table_.slots(); ++i) {
    const RankSlot& slot = table_.slot(i);
    if (i == own || !is_here(slot) || state_of_(slot.pid) != ProcessState::gone) continue;
    if (slot.left == 0) return Finding{name_of(slot) + " died" + doing_of(slot), slot.pid};
  }
  return std::nullopt;
}

std::optional<Finding> RankHealth::silent(int own) const {
  for (int i = 0; i < table_.slots(); ++i) {
    const RankSlot& slot = table_.slot(i);
    const double silence = seen_[at(i)].silent_seconds;
    if (i == own || !is_here(slot) || silence < kSuspiciousSeconds) continue;
    const ProcessState state = state_of_(slot.pid);
    if (slot.left != 0) continue;
    if (state == ProcessState::gone) return Finding{name_of(slot) + " died" + doing_of(slot), slot.pid};
    if (silence < limits_.silence_seconds) continue;
    const char* what = state == ProcessState::stopped ? " was stopped" : " hangs";
    return Finding{name_of(slot) + what + ": no sign of life for " + seconds(silence) + doing_of(slot),
                   slot.pid};
  }
  return std::nullopt;
}

// Somebody computes the same op for too long and all others wait, or all wait.
std::optional<Finding> RankHealth::stuck() const {
  const RankSlot* culprit = nullptr;
  const RankSlot* waiting = nullptr;
  double shortest_wait = std::numeric_limits<double>::infinity();
  for (int i = 0; i < table_.slots(); ++i) {
    const RankSlot& slot = table_.slot(i);
    if (slot.pid == 0) return std::nullopt;
    const Seen& seen = seen_[at(i)];
    if (slot.left != 0 || slot.progress.waiting != 0) {
      // It may only just have begun to wait, or be stopped, too.
      if (seen.same_op_seconds < kSuspiciousSeconds) return std::nullopt;
      if (slot.left == 0 && seen.silent_seconds > kSuspiciousSeconds) return std::nullopt;
      if (waiting == nullptr && slot.left == 0) waiting = &slot;
      if (slot.left == 0) shortest_wait = std::min(shortest_wait, seen.same_op_seconds);
      continue;
    }
    if (seen.same_op_seconds < limits_.same_op_seconds) return std::nullopt;
    if (seen.silent_seconds > kSuspiciousSeconds) return std::nullopt;  // it does not compute: see silent()
    if (culprit == nullptr) culprit = &slot;
  }
  if (waiting == nullptr) return std::nullopt;
  if (culprit != nullptr)
    return Finding{name_of(*culprit) + " hangs: the others wait, and it has not gone on for " +
                       seconds(limits_.same_op_seconds) + doing_of(*culprit),
                   culprit->pid};
  if (!all_here_ || shortest_wait < limits_.same_op_seconds) return std::nullopt;
  return Finding{"all ranks wait for each other for " + seconds(shortest_wait) + ": " + name_of(*waiting) +
                     doing_of(*waiting),
                 0};
}

}  // namespace equipoise::execution

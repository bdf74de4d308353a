// Finds ranks that died, were stopped or hang, from what all ranks of a host write into their table.
//
// Who looks counts for how long it has itself seen no change, a second a look at most. So a machine that
// sleeps, or a job that is stopped and continued as a whole, makes no rank look dead.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/execution/rank_table.h"

namespace equipoise::execution {

enum class ProcessState { alive, stopped, gone };
// From /proc. A process that has ended and waits for its parent to ask counts as gone.
ProcessState process_state(int pid);

struct HealthLimits {
  double silence_seconds = 10;  // without a sign of life
  // Of one op on one rank while all others wait, or of all ranks waiting. Long ops are no fault while others
  // go on; on a slow machine with long documents, raise it.
  double same_op_seconds = 120;
};

struct Finding {
  std::string text;  // one line that names the rank
  int culprit_pid = 0;
};

class RankHealth {
 public:
  // `all_here`: the world has no ranks on other hosts, so that all waiting for each other is a fault, too.
  RankHealth(const RankTable& table, HealthLimits limits, bool all_here,
             ProcessState (*state_of)(int) = process_state);

  // Of all slots but `own`. `elapsed_seconds` since the last look.
  std::optional<Finding> look(int own, double elapsed_seconds);
  // At once, without waiting for silence: somebody ended us, maybe because another rank died.
  [[nodiscard]] std::optional<Finding> gone(int own) const;

 private:
  struct Seen {
    std::uint64_t beats = 0, ops = 0;
    double silent_seconds = 0, same_op_seconds = 0;
  };
  void update(double elapsed_seconds);
  [[nodiscard]] std::optional<Finding> silent(int own) const;
  [[nodiscard]] std::optional<Finding> stuck() const;

  const RankTable& table_;
  HealthLimits limits_;
  bool all_here_;
  ProcessState (*state_of_)(int);
  std::vector<Seen> seen_;
};

}  // namespace equipoise::execution

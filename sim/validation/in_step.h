// How long ops take inside a step, as far as it differs from what a profile says of them alone.
//
// A profile measures a kernel on operands that come from memory, and a collective whose members do nothing
// else. Inside a step an op finds what the op before it has just written in a cache, and ranks of one machine
// share its memory. What that does to each kind of op is measured on steps of other documents in other
// windows, and taken over for the steps that are validated: fitted there, predicted here.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "sim/step/op_program.h"
#include "sim/validation/pairs.h"

namespace equipoise {

class InStepTimes {
 public:
  // Of one kind: seconds inside a step = extra_seconds + factor * seconds alone.
  struct Line {
    double extra_seconds = 0;
    double factor = 1;
    std::int64_t ops = 0;  // that it was fitted to
  };

  InStepTimes() = default;
  // Least squares of each kind's measured times over those of the profile, so that the fitted ops take as
  // long in sum as measured: ops that take several times their line are part of what a step costs, and are not
  // left out. Neither number is negative. Kinds with fewer than `kLeastOps` ops keep their price.
  explicit InStepTimes(std::span<const OpPair> ops);
  static constexpr std::int64_t kLeastOps = 8;

  [[nodiscard]] bool empty() const { return lines_.empty(); }
  [[nodiscard]] double seconds(const std::string& kind, double alone) const;
  [[nodiscard]] const std::map<std::string, Line>& lines() const { return lines_; }

 private:
  std::map<std::string, Line> lines_;
};

// The program with every op as long as it takes inside a step.
OpProgram in_step(OpProgram program, const InStepTimes& times);

}  // namespace equipoise

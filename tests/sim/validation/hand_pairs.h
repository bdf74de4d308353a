// A comparison small enough to work out by hand.
#pragma once

#include <string>
#include <utility>

#include "sim/validation/figures.h"

namespace equipoise::testing {

// Policy a: steps of 1.02 and 2.04 s against 1 and 2, 2% each. Policy b: 0.9 against 1, 10% too fast.
inline Validation two_policies() {
  Validation v;
  v.study = "two";
  v.device = "cpu";
  v.profile = "cpu";
  v.policies = {{"a", {{0, 1.02, {1.0}, 0}, {1, 2.04, {2.0}, 0}}, 4, 1}, {"b", {{0, 0.9, {1.0}, 0}}, 4, 0}};
  return v;
}

inline OpPair op(std::string kind, int micro_batch, double predicted, std::vector<double> measured) {
  OpPair pair;
  pair.op = std::move(kind);
  pair.label = std::string(1, 'a');
  pair.lane = 0;
  pair.stage = 1;
  pair.micro_batch = micro_batch;
  pair.rank = 2;
  pair.predicted_seconds = predicted;
  pair.measured_seconds = std::move(measured);
  return pair;
}

}  // namespace equipoise::testing

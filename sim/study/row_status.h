// How a policy of a study ended. What cannot run here is a row with its reason, never the end of the study.
#pragma once

#include <cstddef>
#include <cstdint>

#include "policies/base/index.h"

namespace equipoise {

enum class RowStatus : std::uint8_t {
  ok,
  oom,          // the plan, or what stands beside any plan, does not fit into memory
  unplaceable,  // the policy cannot place a document
  refused,      // the policy, the sharding or the schedule refuses what it is given
};

constexpr const char* name_of(RowStatus status) {
  constexpr const char* kNames[] = {"ok", "oom", "unplaceable", "refused"};
  return kNames[at(status)];
}

}  // namespace equipoise

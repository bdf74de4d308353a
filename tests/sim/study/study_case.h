// Studies as JSON values, small enough to run in a moment. They keep no memory free, so that a size from
// memory is the largest that fits.
#pragma once

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "policies/base/error.h"
#include "sim/study/read/study.h"

namespace equipoise::testing {

inline nlohmann::json small_study() {
  return nlohmann::json::parse(R"({
    "name": "small",
    "trace": {"distribution": "wlb-128k", "seed": 3},
    "model": "wlb-550m",
    "cluster": {"profile": "h100-sxm", "memory_headroom": 0},
    "parallel": {"tensor": 2, "context": 2, "pipeline": 2, "recompute": "none"},
    "batch": {"context_window": "32K", "sequences_per_step": 4, "steps": 4},
    "policies": ["plain-4d", {"name": "fixed-greedy", "shard": "per-document"}, "wlb-llm"],
    "baseline": "plain-4d"
  })");
}

// The small study with one row and what differs; nothing to compare it with.
inline nlohmann::json small_study_of(const nlohmann::json& policy,
                                     const nlohmann::json& patch = nlohmann::json::object()) {
  nlohmann::json file = small_study();
  file["policies"] = nlohmann::json::array({policy});
  file.erase("baseline");
  file.merge_patch(patch);
  return file;
}

inline Study parse(const nlohmann::json& file) {
  return parse_study(file, "study.json");
}

// Whether `text`, which must be one line, has `part`.
inline bool holds(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CHECK(text.find('\n') == std::string::npos);
  return text.find(part) != std::string::npos;
}

// The one line that a bad study is refused with; empty if it is accepted.
inline std::string refusal(const nlohmann::json& file) {
  try {
    (void)parse(file);
  } catch (const UserError& e) {
    const std::string message = e.what();
    CHECK(message.find('\n') == std::string::npos);
    return message;
  }
  return "";
}

}  // namespace equipoise::testing

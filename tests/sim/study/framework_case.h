// What tests of framework presets share.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "sim/framework/framework.h"
#include "tests/sim/study/study_case.h"

namespace equipoise::testing {

inline Profile shipped(const std::string& name) {
  return Profile::load(std::string(EQUIPOISE_SOURCE_DIR) + "/profiler/profiles/" + name + ".json");
}

inline Framework framework_in(const nlohmann::json& says) {
  nlohmann::json file = small_study();
  if (!says.is_null()) file["framework"] = says;
  return parse(file).framework;
}

// A preset in which every value differs from those of the shipped ones.
inline nlohmann::json own_preset() {
  return nlohmann::json::parse(R"({
    "schema": "equipoise.framework/1", "name": "mine", "summary": "a cluster of ours",
    "defaults": {"zero": 2, "tp_overlap": false, "overlap_param_gather": false, "reduce_each_micro_batch": false,
                 "gradient_bytes": 3, "optimizer_bytes": 8, "logit_bytes": 14,
                 "attention_kernel": "pytorch-sdpa"},
    "sources": {"zero": "us", "tp_overlap": "us", "overlap_param_gather": "us", "reduce_each_micro_batch": "us",
                "gradient_bytes": "us", "optimizer_bytes": "us", "logit_bytes": "us",
                "attention_kernel": "us"},
    "host": {"seconds_per_launch": 1e-5, "band": {"least": 8e-6, "most": 2e-5}, "known": "as we timed it",
             "launches": {"rms_norm": [2, 3], "attention": [4, 5]}, "waits": ["routes"],
             "sources": {"seconds_per_launch": "us", "launches": "us", "waits": "us"}},
    "kernels": {"kind": "fitted", "gpu_families": ["H100"],
                "slowdowns": {"gemm": 1.5, "attention": 1.25, "elementwise": 2.5},
                "left_out": {"mean_abs_error": 0.031}}
  })");
}

}  // namespace equipoise::testing

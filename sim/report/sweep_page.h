// A page over the cases of a sweep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/study/study_result.h"

namespace equipoise {

// What the page over a sweep shows of one case: figures only, so a sweep holds no results of those that are
// finished. `folder`: where the case's own page lies, next to this one.
nlohmann::json case_of_page(const std::vector<std::string>& assignments, const std::string& folder,
                            const Study& study, const StudyResult& result);

// A page over the cases of a sweep.
class SweepPage {
 public:
  void add(const nlohmann::json& one);  // a case_of_page
  [[nodiscard]] std::string html() const;
  // That cases run on different numbers of GPUs, whose steps then cannot be compared; empty where they do
  // not.
  [[nodiscard]] std::string gpus_note() const;

 private:
  std::string title_;
  std::set<std::int64_t> gpus_;  // of the cases
  std::string cases_;            // JSON, comma-separated
  std::size_t count_ = 0, omitted_ = 0;
  std::size_t run_ = 0;  // cases in which some policy runs
  // The number of wins of each label that is significantly faster than the others, in the order of their
  // first.
  std::vector<std::pair<std::string, std::size_t>> wins_;
};

}  // namespace equipoise

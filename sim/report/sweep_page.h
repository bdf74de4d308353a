// The page about all cases of a sweep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/report/sweep_finding.h"
#include "sim/study/study_result.h"

namespace equipoise {

// What the page shows of one case. It is only figures, so that a sweep does not keep the results of finished
// cases. `folder` is the place of the case's own page, relative to this one.
nlohmann::json case_of_page(const std::vector<std::string>& assignments, const std::string& folder,
                            const Study& study, const StudyResult& result);

class SweepPage {
 public:
  void add(const nlohmann::json& one);  // takes the result of case_of_page
  [[nodiscard]] std::string html() const;
  // What all cases come to: by how much the swept keys move the fastest row, which row that is how often, and
  // which faster rows were passed over.
  struct Finding {
    std::string headline, more, faster;  // a line without a full stop; sentences, or empty
  };
  [[nodiscard]] Finding finding() const;
  // A note that cases have different numbers of GPUs, so that their steps cannot be compared; else empty.
  [[nodiscard]] std::string gpus_note() const;

 private:
  std::string title_;
  std::set<std::int64_t> gpus_;  // of all cases
  std::string cases_;            // JSON values separated by commas
  std::size_t count_ = 0, omitted_ = 0;
  std::size_t run_ = 0;  // cases in which some policy runs
  // How often each label is significantly fastest, in the order of first wins.
  std::vector<std::pair<std::string, std::size_t>> wins_;
  std::vector<SweptCase> ran_;
  struct PassedOver {
    std::string label, why;  // `why` is of the largest ratio
    double ratio = 0;
    std::size_t cases = 0;
  };
  std::vector<PassedOver> faster_;
};

}  // namespace equipoise

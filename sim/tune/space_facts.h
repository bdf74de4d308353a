// What a search knows of the layouts and rows of its space before it tries a candidate: which layouts have no
// room, the least time of a candidate (StepBound), and what a layout is estimated to take.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "sim/cost/least_costs.h"
#include "sim/study/run_options.h"
#include "sim/study/study_inputs.h"
#include "sim/tune/candidates.h"

namespace equipoise {

struct LayoutFacts {
  // Least seconds per token of any row on it: [may drop or split documents][decides itself what it
  // recomputes][sends the K and V of all documents round all CP ranks].
  double bound[2][2][2] = {};
  double estimate = 0;    // seconds per token, for the order of the search
  bool has_room = true;   // whether every document fits, with the probe
  std::string too_large;  // why its states do not fit
};

struct RowFacts {
  bool cuts = false;          // may drop or split documents, or even out stages
  bool recomputes = true;     // decides itself what it recomputes
  bool exchanges = false;     // sends the K and V of all documents round all CP ranks
  bool packs_slowly = false;  // PolicyRun::packs_slowly
  bool like_probe = false;    // finds no more room on a layout than the probe does
};

class SpaceFacts {
 public:
  // `may_wait`: the search sets no limit to the delay of a token. `name`: the study's, for messages.
  SpaceFacts(const Candidates& candidates, const StudyInputs& inputs, const std::string& name, bool may_wait);

  // Prices all layouts, with options.jobs threads. Throws Interrupted once options.stop is set.
  void price_layouts(const RunStudyOptions& options);

  // The row that the search tries first on layouts.
  [[nodiscard]] std::uint32_t probe() const { return probe_; }
  [[nodiscard]] const RowFacts& row(std::uint32_t row) const { return rows_[row]; }
  // The functions below need layouts that are priced.
  [[nodiscard]] const LayoutFacts& layout(std::uint32_t layout) const { return layouts_[layout]; }
  [[nodiscard]] const std::vector<LayoutFacts>& layouts() const { return layouts_; }
  // Layouts whose states fit, by their estimates; none before they are priced.
  [[nodiscard]] const std::vector<std::uint32_t>& order() const { return order_; }
  // The least seconds per token that the candidate can take.
  [[nodiscard]] double bound_of(Point point) const;
  [[nodiscard]] SharedLeastCosts& least_costs(std::uint32_t layout) {
    return least_[candidates_.layouts[layout].base];
  }

 private:
  [[nodiscard]] RowFacts facts_of_row(std::uint32_t row) const;
  [[nodiscard]] LayoutFacts facts_of_layout(std::uint32_t layout);
  void bound_layout(const Study& study, std::uint32_t layout, LayoutFacts& facts);
  [[nodiscard]] bool probe_has_room(std::uint32_t layout) const;
  [[nodiscard]] Study study_of(Point point) const { return candidate_study(candidates_, point, name_); }

  const Candidates& candidates_;
  const StudyInputs& inputs_;
  std::string name_;
  std::vector<RowFacts> rows_;
  std::uint32_t probe_ = 0;
  double pairs_ = 0;                    // of a query and a key that it sees, in all documents
  std::int64_t longest_ = 0;            // tokens of the longest document
  std::deque<SharedLeastCosts> least_;  // by base
  std::vector<LayoutFacts> layouts_;
  std::vector<std::uint32_t> order_;
};

}  // namespace equipoise

#include "sim/report/standing.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "policies/base/index.h"
#include "sim/report/words/words.h"

namespace equipoise {

using nlohmann::json;

namespace {

bool contains_one(const Metric& low, const Metric& high) {
  return low && high && *low <= 1 && *high >= 1;
}

// Why a row is not called fastest, whatever its speed.
std::optional<Note> delay_of(const PolicyResult& row, double bound) {
  const Metric& mean = row.metrics.token_delay_mean;
  if (!mean) return Note{"orders_anew", "", {}};
  if (*mean <= bound) return {};
  return Note{"delays_tokens", "", {{"delay", *mean}}};
}

// Whether two rows are on one layout, as the published pairs are counted from which the interval comes.
bool have_one_layout(const Layout& a, const Layout& b) {
  return degrees_text(a) == degrees_text(b);
}

double rate_of(const PolicyResult* row) {
  return *row->metrics.tokens_per_second_per_gpu;
}

json value_of(const Metric& metric) {
  return metric ? json(*metric) : json(nullptr);
}

json rival_json(const Rival& rival) {
  json node = ratio_json(rival.ratio);
  node["label"] = rival.row->run.label;
  return node;
}

json label_of(const PolicyResult* row) {
  return row != nullptr ? json(row->run.label) : json(nullptr);
}

}  // namespace

std::optional<TiedBy> RowRatio::tied_by() const {
  if (contains_one(low, high)) return TiedBy::sampling;
  if (low && contains_one(model_low, model_high)) return TiedBy::model;
  return {};
}

std::optional<bool> RowRatio::tied() const {
  if (!low) return {};
  return tied_by().has_value();
}

RowRatio ratio_of(const PolicyResult& row, const PolicyResult& over, std::size_t batches,
                  const std::optional<ExpectedError>& model) {
  const SpeedUp found = speed_up({row.metrics, row.steps}, {over.metrics, over.steps}, batches);
  RowRatio ratio{found.speedup, found.speedup_low, found.speedup_high, {}, {}};
  const double gpus = static_cast<double>(over.layout.gpus()) /
                      static_cast<double>(row.layout.gpus());  // 1 for rows of one study
  for (Metric* const each : {&ratio.ratio, &ratio.low, &ratio.high})
    if (*each) **each *= gpus;
  if (!ratio.ratio || !model) return ratio;
  const auto& error = have_one_layout(row.layout, over.layout) ? model->speed_up : model->speed_up_of_layouts;
  if (!error) return ratio;
  ratio.model_low = *ratio.ratio * error->low;
  ratio.model_high = *ratio.ratio * error->high;
  return ratio;
}

bool Standing::is_decided() const {
  return first != nullptr && std::ranges::all_of(others, [](const Rival& one) {
           return one.ratio.tied() == std::optional(false);
         });
}

Claim claim_of(const PolicyResult& row, double max_delay) {
  if (row.runs_in == RunsIn::no) return Claim::fastest_elsewhere;
  return delay_of(row, max_delay) ? Claim::fastest_any_delay : Claim::fastest;
}

Notes why_passed_over(const PolicyResult& row, double max_delay) {
  Notes why = row.needs;
  add(why, delay_of(row, max_delay));
  return why;
}

Standing standing_of(std::vector<const PolicyResult*> rows, double max_delay, std::size_t batches,
                     const std::optional<ExpectedError>& model) {
  std::erase_if(rows, [](const PolicyResult* row) {
    return row->status != RowStatus::ok || !row->metrics.tokens_per_second_per_gpu;
  });
  std::ranges::stable_sort(rows, std::ranges::greater{}, rate_of);
  const auto first_that_claims = [&](Claim weakest) -> const PolicyResult* {
    const auto found = std::ranges::find_if(
        rows, [&](const PolicyResult* row) { return claim_of(*row, max_delay) <= weakest; });
    return found == rows.end() ? nullptr : *found;
  };
  Standing standing;
  standing.fastest = first_that_claims(Claim::fastest);
  standing.fastest_any_delay = first_that_claims(Claim::fastest_any_delay);
  if (rows.empty()) return standing;
  standing.first = standing.fastest != nullptr             ? standing.fastest
                   : standing.fastest_any_delay != nullptr ? standing.fastest_any_delay
                                                           : rows.front();
  bool faster = true;
  for (const PolicyResult* row : rows) {
    if (row == standing.first) {
      faster = false;
      continue;
    }
    const PolicyResult &ahead = faster ? *row : *standing.first, &behind = faster ? *standing.first : *row;
    Rival rival{row, ratio_of(ahead, behind, batches, model)};
    if (faster) rival.why = why_passed_over(*row, max_delay);
    (faster ? standing.faster : standing.others).push_back(std::move(rival));
  }
  return standing;
}

Standing standing_of(const StudyResult& result) {
  std::vector<const PolicyResult*> rows;
  for (const PolicyResult& row : result.policies) rows.push_back(&row);
  return standing_of(std::move(rows), result.max_delay, result.batches, result.expected_error);
}

json ratio_json(const RowRatio& r) {
  const auto tied = r.tied();
  const auto by = r.tied_by();
  return {{"ratio", value_of(r.ratio)},
          {"low", value_of(r.low)},
          {"high", value_of(r.high)},
          {"model_low", value_of(r.model_low)},
          {"model_high", value_of(r.model_high)},
          {"tied", tied ? json(*tied) : json(nullptr)},
          {"tied_by", by ? json(kTiedByNames[at(*by)]) : json(nullptr)}};
}

json standing_json(const StudyResult& result) {
  const Standing standing = standing_of(result);
  json others = json::array(), faster = json::array();
  for (const Rival& rival : standing.others) others.push_back(rival_json(rival));
  for (const Rival& rival : standing.faster) {
    faster.push_back(rival_json(rival));
    faster.back()["reason"] = reason_text(rival.why);
  }
  return {{"fastest", label_of(standing.fastest)},
          {"fastest_any_delay", label_of(standing.fastest_any_delay)},
          {"max_delay", result.max_delay},
          {"others", std::move(others)},
          {"faster", std::move(faster)}};
}

}  // namespace equipoise

// Who is fastest, which rows are significantly slower, and which faster ones were passed over: the one
// comparison that tables, pages, `tune`, `report A B` and summary.json share.
//
// Significance is a property of two rows. Whether A is faster than B is asked of the ratio of these two, with
// its own interval, so that no third row, a baseline for example, has a say in it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/study/study_result.h"

namespace equipoise {

enum class TiedBy : std::uint8_t { sampling, model };
inline constexpr std::string_view kTiedByNames[] = {"sampling", "model"};

// The speed of a row over another's, by seconds per token.
struct RowRatio {
  Metric ratio;                  // none: one of them has no time
  Metric low, high;              // 95 % interval of the sampling error; none below four batches
  Metric model_low, model_high;  // 90 % interval of the prediction; none: unknown

  // Two rows are tied where one of these intervals contains 1; none: not tied, or not known.
  [[nodiscard]] std::optional<TiedBy> tied_by() const;
  // None without a sampling interval: then nothing is significant.
  [[nodiscard]] std::optional<bool> tied() const;
};

// `batches`: global batches that both trained; `model`: the error of a ratio of two rows.
RowRatio ratio_of(const PolicyResult& row, const PolicyResult& over, std::size_t batches,
                  const std::optional<ExpectedError>& model);

struct Rival {
  const PolicyResult* row = nullptr;
  RowRatio ratio;
  Notes why = {};  // where it was passed over
};

struct Standing {
  // Null where no row of status ok keeps the bound on the delay, or the framework runs none of them.
  const PolicyResult* fastest = nullptr;
  const PolicyResult* fastest_any_delay = nullptr;  // the same without the bound
  // The first that is there: the fastest, with any delay, in any framework. Null: no row is ok.
  const PolicyResult* first = nullptr;
  std::vector<Rival> others;  // rows of status ok that are not faster than `first`, its speed over theirs
  std::vector<Rival> faster;  // those that are, their speed over its

  // Whether `first` is significantly faster than every other.
  [[nodiscard]] bool is_decided() const;
};

// Rows go by speed; of equals the first of the study comes first.
Standing standing_of(const StudyResult& result);

nlohmann::json ratio_json(const RowRatio& ratio);
// `comparison` of summary.json.
nlohmann::json standing_json(const StudyResult& result);

}  // namespace equipoise

// Which row is fastest, which rows are significantly slower, and which faster ones were passed over: the one
// comparison for tables, pages, `tune`, `report A B` and summary.json.
//
// Significance is a property of two rows. Whether A is faster than B follows from the ratio of these two and
// its own interval, so that no third row, such as a baseline, affects it.
#pragma once

#include <cstdint>
#include <iterator>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/study/study_result.h"

namespace equipoise {

enum class TiedBy : std::uint8_t { sampling, model };
inline constexpr std::string_view kTiedByNames[] = {"sampling", "model"};

// The speed of a row over another's, by seconds per token and, where they use unlike numbers of GPUs, per
// GPU.
struct RowRatio {
  Metric ratio;                  // none if one of them has no time
  Metric low, high;              // 95 % interval of the sampling error; none for fewer than four batches
  Metric model_low, model_high;  // 90 % interval of the prediction; none if unknown

  // Two rows are tied if one of these intervals contains 1. None: they are not tied, or it is not known.
  [[nodiscard]] std::optional<TiedBy> tied_by() const;
  // None without a sampling interval, since nothing is significant then.
  [[nodiscard]] std::optional<bool> tied() const;
};

// `batches` is the number of global batches that both trained; `model` is the error of a ratio of two rows.
RowRatio ratio_of(const PolicyResult& row, const PolicyResult& over, std::size_t batches,
                  const std::optional<ExpectedError>& model);

// What a row may be called, by its framework and by the order in which it trains the documents: strongest
// first.
enum class Claim : std::uint8_t { fastest, fastest_any_delay, fastest_elsewhere };
inline constexpr std::string_view kClaimNames[] = {"fastest", "fastest_any_delay", "fastest_elsewhere"};
inline constexpr std::size_t kClaims = std::size(kClaimNames);
// `max_delay`: the largest mean delay of a row that keeps the order of the data.
Claim claim_of(const PolicyResult& row, double max_delay);
// Why it is no stronger: what the framework lacks, and how the row changes that order.
Notes why_passed_over(const PolicyResult& row, double max_delay);

struct Rival {
  const PolicyResult* row = nullptr;
  RowRatio ratio;
  Notes why = {};  // why it was passed over, if it was
};

struct Standing {
  // Null if no row of status ok keeps the bound on the delay, or the framework runs none of them.
  const PolicyResult* fastest = nullptr;
  const PolicyResult* fastest_any_delay = nullptr;  // without the bound
  // The first of these that exists: the fastest, the fastest with any delay, the fastest in any framework.
  // Null if no row is ok.
  const PolicyResult* first = nullptr;
  std::vector<Rival> others;  // ok rows that are not faster, with the speed of `first` over theirs
  std::vector<Rival> faster;  // ok rows that are faster, with their speed over that of `first`

  // Whether `first` is significantly faster than every other.
  [[nodiscard]] bool is_decided() const;
};

// Rows are ordered by speed; of equals the first comes first. Those that are not ok do not count.
// `batches`, `model`: as ratio_of has them.
Standing standing_of(std::vector<const PolicyResult*> rows, double max_delay, std::size_t batches,
                     const std::optional<ExpectedError>& model);
Standing standing_of(const StudyResult& result);

nlohmann::json ratio_json(const RowRatio& ratio);
// Makes `comparison` of summary.json.
nlohmann::json standing_json(const StudyResult& result);

}  // namespace equipoise

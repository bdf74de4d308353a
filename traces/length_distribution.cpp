#include "traces/length_distribution.h"

#include <algorithm>
#include <cmath>

#include "traces/random_normal.h"

namespace equipoise {
namespace {

// Value at x of the line through (x0, y0) and (x1, y1).
double on_line(double x, double x0, double y0, double x1, double y1) {
  return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

double quantile_of(const TableShape& table, double share) {
  const std::vector<BelowPoint>& points = table.points;
  if (share >= points.back().share)
    return std::exp(
        on_line(share, points.back().share, std::log(points.back().tokens), 1, std::log(table.most)));
  const auto above =
      std::upper_bound(points.begin(), points.end(), share,
                       [](double value, const BelowPoint& point) { return value < point.share; });
  if (table.between == Between::log_uniform) {
    const BelowPoint low = above == points.begin() ? BelowPoint{table.least, 0} : *(above - 1);
    return std::exp(on_line(share, low.share, std::log(low.tokens), above->share, std::log(above->tokens)));
  }
  // The first two points also carry the line below the first.
  const auto high = above == points.begin() ? above + 1 : above;
  const auto low = high - 1;
  const double tokens =
      std::exp(on_line(normal_quantile(share), normal_quantile(low->share), std::log(low->tokens),
                       normal_quantile(high->share), std::log(high->tokens)));
  return std::max(tokens, table.least);
}

double quantile_of(const PowerLawShape& law, double share) {
  if (law.tail_index == 0) return law.least * std::exp(share * std::log(law.most / law.least));
  const double low = std::pow(law.least, -law.tail_index);
  const double high = std::pow(law.most, -law.tail_index);
  return std::pow(low - (low - high) * share, -1 / law.tail_index);
}

double quantile_of(const LognormalShape& shape, double share) {
  return std::clamp(shape.median * std::exp(shape.sigma * normal_quantile(share)), shape.least, shape.most);
}

}  // namespace

double length_quantile(const LengthShape& shape, double share) {
  return std::visit([share](const auto& s) { return quantile_of(s, share); }, shape);
}

}  // namespace equipoise

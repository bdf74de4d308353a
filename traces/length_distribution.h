// The shapes that length distributions are made of, and how a length is drawn from them.
#pragma once

#include <variant>
#include <vector>

namespace equipoise {

// A point of a published table: `share` of the documents have fewer than `tokens` tokens.
struct BelowPoint {
  double tokens = 0;
  double share = 0;
};

// How a table runs between its points.
enum class Between {
  log_uniform,  // the share is linear in ln(tokens)
  lognormal,    // the normal quantile of the share is linear in ln(tokens): a lognormal, piece by piece
};

// A published bucket table. `points` rise in both members, shares strictly inside (0, 1). Below the first
// point the first lognormal (or, for log_uniform, a line in ln(tokens)) goes on down to `least`; above the
// last one, where a table gives only the longest length, the share is linear in ln(tokens) up to `most`.
struct TableShape {
  double least = 1;
  double most = 1;
  Between between = Between::lognormal;
  std::vector<BelowPoint> points;
};

// P(length < x) = (least^-a - x^-a) / (least^-a - most^-a): a power law with tail index a, cut at both ends;
// a = -1 is uniform, a = 0 log-uniform.
struct PowerLawShape {
  double least = 1;
  double most = 1;
  double tail_index = 1;
};

// exp(N(ln(median), sigma)), values outside [least, most] moved to the nearer end.
struct LognormalShape {
  double median = 1;
  double sigma = 1;
  double least = 1;
  double most = 1;
};

using LengthShape = std::variant<TableShape, PowerLawShape, LognormalShape>;

struct LengthComponent {
  double weight = 1;  // share of documents, relative to the other components
  LengthShape shape;
};

// Inverse CDF: tokens at `share` in (0, 1).
double length_quantile(const LengthShape& shape, double share);

}  // namespace equipoise

// Synthetic traces drawn from published length distributions.
//
// Papers print bucket tables ("90.499 % of sequences below 1K tokens"), not lengths. A distribution here is a
// mixture of pieces: a table of (tokens, share of documents below) points joined by a stated rule, or a few
// fitted parameters. Each states what is published and what is this project's assumption. Lengths are drawn
// independently by inverse CDF from one SplitMix64 stream, so a name, a count and a seed give the same trace
// everywhere.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "traces/trace.h"

namespace equipoise {

struct Distribution {
  std::string_view name;        // as typed: `trace synth --distribution lmsys-chat-1m`
  std::string_view source;      // publication with the figures
  std::string_view summary;     // one line for `list traces`
  std::string_view assumption;  // values that the source does not print
};

// All distributions, in help order.
std::span<const Distribution> distributions();

// Throws UserError with the nearest known name.
const Distribution& distribution(std::string_view name);

inline constexpr std::int64_t kMostDocuments = std::int64_t{1} << 28;  // 2 GiB of lengths

// `documents` lengths of the named distribution, at most kMostDocuments. O(documents).
Trace synthesize(std::string_view name, std::int64_t documents, std::uint64_t seed);

// The shapes that make up a length distribution.

// A point of a published table: `share` of the documents have fewer than `tokens` tokens.
struct BelowPoint {
  double tokens = 0;
  double share = 0;
};

// How a table interpolates between its points.
enum class Between {
  log_uniform,  // the share is linear in ln(tokens)
  lognormal,    // the normal quantile of the share is linear in ln(tokens), which is piecewise lognormal
};

// A published bucket table. `points` rise in both members, shares strictly inside (0, 1). The first lognormal
// (or, for log_uniform, the first line in ln(tokens)) extends below the first point down to `least`. Above
// the last point, where a table gives only the longest length, the share is linear in ln(tokens) up to
// `most`.
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

// exp(N(ln(median), sigma)), clipped to [least, most].
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

// The inverse CDF: tokens at `share` in (0, 1).
double length_quantile(const LengthShape& shape, double share);

// The quantile function of the standard normal distribution, for inverse-CDF sampling that gives the same
// lengths with every compiler (std::normal_distribution does not promise that).
//
// z with P(Z < z) = share, for share in (0, 1). Relative error below 1.2e-9 (P. Acklam's rational
// approximations).
double normal_quantile(double share);

}  // namespace equipoise

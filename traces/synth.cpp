// The registry of named distributions. Every figure names its source, and every assumption is stated.
#include "traces/synth.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/random.h"
#include "policies/base/text.h"

namespace equipoise {
namespace {

constexpr double kK = 1024;

// The last `spaced` components are a second source that is blended in at regular distances, as training
// loaders do (Megatron-LM takes the source with the largest deficit): its k-th document is at (k + jitter *
// u) / (its share of documents).
struct Components {
  std::vector<LengthComponent> list;
  std::size_t spaced = 0;
  double jitter = 0;  // in [0, 1], so that documents of the second source keep their order
};

// ChunkFlow (arXiv 2503.02356) Table 1.
Components lmsys_chat_1m() {
  return {{{1, TableShape{8,
                          303 * kK,
                          Between::lognormal,
                          {{1 * kK, 0.90499},
                           {4 * kK, 0.99539},
                           {8 * kK, 0.99908},
                           {32 * kK, 0.99987},
                           {128 * kK, 0.99996}}}}}};
}

// Skrull (arXiv 2505.19609) Figure 1(a); its "<128K" is 100 % and the longest document has 78K.
Components wikipedia() {
  return {{{1, TableShape{16,
                          78 * kK,
                          Between::lognormal,
                          {{1 * kK, 0.8788}, {4 * kK, 0.9934}, {8 * kK, 0.9992}, {32 * kK, 0.9999}}}}}};
}

// Skrull (arXiv 2505.19609) Figure 1(a). The documents cluster below 1K and from 8K to 32K, which no
// lognormal fits.
Components chatqa2_long_sft() {
  return {{{1, TableShape{64,
                          99 * kK,
                          Between::log_uniform,
                          {{1 * kK, 0.2192}, {4 * kK, 0.3148}, {8 * kK, 0.4043}, {32 * kK, 0.9986}}}}}};
}

// ChunkFlow (arXiv 2503.02356) Table 2, which has no figures below 1K. The two points there are this
// project's assumption: a median of 250 tokens and a mean of about 330 below 1K, as conversations have
// (LMSys-Chat-1M). One lognormal through the table's first two points alone would have a median of 14.
Components chunkflow_eval() {
  return {{{1, TableShape{8,
                          256 * kK,
                          Between::lognormal,
                          {{250, 0.4909},
                           {512, 0.687},
                           {1 * kK, 0.9817},
                           {4 * kK, 0.9972},
                           {8 * kK, 0.9983},
                           {32 * kK, 0.9992},
                           {128 * kK, 0.9998}}}}}};
}

// Skrull (arXiv 2505.19609) section 3.1 quotes the Llama 3 report: 99.89 % of the documents are short with a
// mean under 1K, 0.11 % are long with a mean of about 37K.
Components llama3_sft() {
  return {{{0.9989, LognormalShape{500, 1.0, 16, 8 * kK}},
           {0.0011, LognormalShape{33 * kK, 0.5, 8 * kK, 128 * kK}}}};
}

// WLB-LLM (arXiv 2503.17924) prints no lengths, but Table 2 constrains them. Most documents are short and few
// are above 8K, as in the sample that DistCA draws for "the WLB-LLM distribution" (median 3.2K). There is
// about one long document for each step of 4 windows of 128K, at nearly regular distances. Weights, ends and
// jitter are fitted so that 4 micro-batches of 128K have Table 2's imbalances
// (tests/traces/test_wlb_128k.cpp). Independent long documents cannot give a plain imbalance of 1.44 where a
// token of a 128K document costs 2.4 times one of a short document, as the shipped H100 profile predicts for
// LLaMA-2 7B.
Components wlb_128k() {
  return {{{0.95799, PowerLawShape{16, 6100, -1}},
           {0.0347, PowerLawShape{6100, 57500, 2.09}},
           {0.00033, PowerLawShape{65600, 69000, 0}},
           {0.0008, PowerLawShape{98400, 104000, 0}},
           {0.00618, PowerLawShape{119900, 292500, 0.663}}},
          3,
          0.07};
}

// HBP (arXiv 2503.07680): Tulu3 has documents up to 32K with a mean of 0.8K, and about 2K of LongCite's up to
// 128K among its 940K give 0.9K together. Two shapes are fitted so that ISF, groups 16K and 128K, and balance
// batching give the component table. One is the spread of the body, a lognormal of sigma 0.42; a wider one
// makes ABR of the 16K group too large. The other is LongCite's even spread in ln(tokens) from 16K on
// (tests/traces/test_longcite.cpp).
Components tulu3_longcite() {
  return {{{0.9978, LognormalShape{710, 0.42, 16, 32 * kK}},
           {0.0001, PowerLawShape{8 * kK, 32 * kK, 0}},
           {0.0021, PowerLawShape{16 * kK, 128 * kK, 0}}}};
}

// HBP (arXiv 2503.07680): OpenHermes up to 4K with the same LongCite documents. The paper prints ABR 0.513 ->
// 0.269 -> 0.004 for them and no lengths.
Components openhermes_longcite() {
  return {{{0.9989, LognormalShape{420, 0.45, 16, 4 * kK}}, {0.0011, PowerLawShape{16 * kK, 128 * kK, 0}}}};
}

struct Entry {
  Distribution about;
  Components (*components)();
};

constexpr std::array<Entry, 8> kEntries = {{
    {{"lmsys-chat-1m", "ChunkFlow, arXiv 2503.02356, Table 1", "Conversations: 90.5 % below 1K, longest 303K",
      "shape inside the buckets: piecewise lognormal; no document below 8 tokens"},
     lmsys_chat_1m},
    {{"wikipedia", "Skrull, arXiv 2505.19609, Figure 1(a)",
      "Encyclopedia articles: 87.9 % below 1K, longest 78K",
      "shape inside the buckets: piecewise lognormal; no document below 16 tokens"},
     wikipedia},
    {{"chatqa2-long-sft", "Skrull, arXiv 2505.19609, Figure 1(a)",
      "Long-context instructions, bimodal: 21.9 % below 1K, 59.4 % from 8K to 32K, longest 99K",
      "shape inside the buckets: even in ln(tokens); no document below 64 tokens"},
     chatqa2_long_sft},
    {{"chunkflow-eval", "ChunkFlow, arXiv 2503.02356, Table 2",
      "Fine-tuning set: 98.17 % below 1K, longest 256K",
      "below 1K a median of 250 tokens, as conversations have; piecewise lognormal; none below 8 tokens"},
     chunkflow_eval},
    {{"llama3-sft", "Skrull, arXiv 2505.19609, section 3.1 (after the Llama 3 report)",
      "Long-context fine-tuning: 99.89 % short, 0.11 % of about 37K",
      "both groups lognormal: short with median 500 and sigma 1, long with sigma 0.5"},
     llama3_sft},
    {{"wlb-128k", "fitted to WLB-LLM, arXiv 2503.17924, Table 2", "Pre-training documents for a 128K window",
      "the paper prints no lengths: parameters were chosen so that packing gives its table of imbalances"},
     wlb_128k},
    {{"tulu3-longcite", "fitted to HBP, arXiv 2503.07680, component table",
      "Tulu3 up to 32K with LongCite up to 128K",
      "bounds and means are printed; the shape was chosen so that HBP's chain gives its table"},
     tulu3_longcite},
    {{"openhermes-longcite", "fitted to HBP, arXiv 2503.07680, mixture table",
      "OpenHermes up to 4K with LongCite up to 128K",
      "parameters were chosen so that HBP's chain gives its table"},
     openhermes_longcite},
}};

const Entry& entry(std::string_view name) {
  for (const Entry& known : kEntries)
    if (known.about.name == name) return known;
  std::vector<std::string_view> names;
  for (const Entry& known : kEntries) names.push_back(known.about.name);
  refuse_name("distribution", name, names);
}

// A draw from the open interval (0, 1), so that no quantile is infinite.
double open_unit(SplitMix64& random) {
  return (static_cast<double>(random.next() >> 11) + 0.5) * 0x1p-53;
}

double weight_of(std::span<const LengthComponent> components) {
  return sum_of(components, &LengthComponent::weight);
}

// Takes two draws per document for any distribution: one for the component, one for the length in it.
std::int64_t draw_length(std::span<const LengthComponent> components, double total, SplitMix64& random) {
  double left = open_unit(random) * total;
  const double share = open_unit(random);
  std::size_t i = 0;
  while (i + 1 < components.size() && left >= components[i].weight) left -= components[i++].weight;
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(length_quantile(components[i].shape, share)), 1,
                                  kLongestDocument);
}

std::vector<std::int64_t> draw(const Components& components, std::size_t documents, SplitMix64& random) {
  const std::span<const LengthComponent> all(components.list);
  const std::span<const LengthComponent> body = all.first(all.size() - components.spaced);
  const std::span<const LengthComponent> spaced = all.last(components.spaced);
  const double body_weight = weight_of(body);
  const double spaced_weight = weight_of(spaced);
  const double distance = spaced.empty() ? 0 : (body_weight + spaced_weight) / spaced_weight;
  double taken = 0;  // share of the second source's documents so far
  double next = spaced.empty() ? -1 : std::floor(components.jitter * open_unit(random) * distance);
  std::vector<std::int64_t> lengths(documents);
  for (std::size_t i = 0; i < documents; ++i) {
    if (static_cast<double>(i) != next) {
      lengths[i] = draw_length(body, body_weight, random);
      continue;
    }
    lengths[i] = draw_length(spaced, spaced_weight, random);
    taken += 1;
    next = std::max(next + 1, std::floor((taken + components.jitter * open_unit(random)) * distance));
  }
  return lengths;
}

}  // namespace

std::span<const Distribution> distributions() {
  static const std::vector<Distribution> all = [] { return each_of(kEntries, &Entry::about); }();
  return all;
}

const Distribution& distribution(std::string_view name) {
  return entry(name).about;
}

Trace synthesize(std::string_view name, std::int64_t documents, std::uint64_t seed) {
  if (documents < 1 || documents > kMostDocuments)
    throw UserError("documents: found ", documents, "; expected 1 to ", kMostDocuments);
  const Components components = entry(name).components();
  SplitMix64 random(seed);
  Trace trace;
  trace.lengths = draw(components, static_cast<std::size_t>(documents), random);
  trace.origin = concatenated(name, " (synthetic, ", documents, " documents, seed ", seed, ")");
  return trace;
}

namespace {

// The value at x of the line through (x0, y0) and (x1, y1).
double on_line(double x, double x0, double y0, double x1, double y1) {
  return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

double quantile_of(const TableShape& table, double share) {
  const std::vector<BelowPoint>& points = table.points;
  if (share >= points.back().share)
    return std::exp(
        on_line(share, points.back().share, std::log(points.back().tokens), 1, std::log(table.most)));
  const auto above = std::ranges::upper_bound(points, share, {}, &BelowPoint::share);
  if (table.between == Between::log_uniform) {
    const BelowPoint low = above == points.begin() ? BelowPoint{table.least, 0} : *(above - 1);
    return std::exp(on_line(share, low.share, std::log(low.tokens), above->share, std::log(above->tokens)));
  }
  // The line through the first two points also holds below the first.
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

// P. J. Acklam, "An algorithm for computing the inverse normal cumulative distribution function" (2003).
constexpr std::array<double, 6> kA = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                                      1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
constexpr std::array<double, 5> kB = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                                      6.680131188771972e+01, -1.328068155288572e+01};
constexpr std::array<double, 6> kC = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                                      -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
constexpr std::array<double, 4> kD = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                                      3.754408661907416e+00};
constexpr double kTail = 0.02425;

static double tail(double q) {
  return (((((kC[0] * q + kC[1]) * q + kC[2]) * q + kC[3]) * q + kC[4]) * q + kC[5]) /
         ((((kD[0] * q + kD[1]) * q + kD[2]) * q + kD[3]) * q + 1);
}

double normal_quantile(double share) {
  if (share < kTail) return tail(std::sqrt(-2 * std::log(share)));
  if (share > 1 - kTail) return -tail(std::sqrt(-2 * std::log(1 - share)));
  const double q = share - 0.5;
  const double r = q * q;
  return (((((kA[0] * r + kA[1]) * r + kA[2]) * r + kA[3]) * r + kA[4]) * r + kA[5]) * q /
         (((((kB[0] * r + kB[1]) * r + kB[2]) * r + kB[3]) * r + kB[4]) * r + 1);
}

// Mixtures of traces: chooses the source of the next document.

static double mean_length(const Trace& trace) {
  const std::int64_t tokens = sum_of(trace.lengths);
  return static_cast<double>(tokens) / static_cast<double>(trace.lengths.size());
}

// Running sums of weight / mean length, scaled to end at 1.
static std::vector<double> cumulative_document_shares(std::span<const WeightedTrace> sources) {
  std::vector<double> cumulative;
  double sum = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const double weight = sources[i].weight;
    if (!(weight > 0) || !std::isfinite(weight))
      throw UserError("mixture: weight ", i + 1, " is ", std::to_string(weight), "; expected a number > 0");
    if (sources[i].trace->lengths.empty())
      throw UserError(sources[i].trace->origin,
                      ": the trace is empty; a mixture needs documents of every source");
    sum += weight / mean_length(*sources[i].trace);
    cumulative.push_back(sum);
  }
  for (double& share : cumulative) share /= sum;
  return cumulative;
}

Trace mix_traces(std::span<const WeightedTrace> sources, std::int64_t documents, std::uint64_t seed) {
  if (sources.empty()) throw UserError("mixture: expected at least one trace, found none");
  const std::vector<double> cumulative = cumulative_document_shares(sources);
  SplitMix64 random(seed);
  std::vector<std::size_t> taken(sources.size(), 0);
  Trace mixed;
  while (documents == 0 || static_cast<std::int64_t>(mixed.lengths.size()) < documents) {
    const double share = static_cast<double>(random.next() >> 11) * 0x1p-53;
    std::size_t source = 0;
    while (source + 1 < sources.size() && share >= cumulative[source]) ++source;
    const std::vector<std::int64_t>& lengths = sources[source].trace->lengths;
    if (taken[source] == lengths.size()) break;
    mixed.lengths.push_back(lengths[taken[source]++]);
  }
  for (std::size_t i = 0; i < sources.size(); ++i)
    mixed.origin += (i == 0 ? "mixture of " : " + ") + sources[i].trace->origin;
  mixed.origin += " (seed " + std::to_string(seed) + ")";
  return mixed;
}

}  // namespace equipoise

// The registry of named distributions: every figure with where it stands, every assumption said.
#include <algorithm>
#include <array>
#include <cmath>

#include "policies/base/error.h"
#include "policies/base/names.h"
#include "policies/base/random.h"
#include "traces/length_distribution.h"
#include "traces/synth.h"

namespace equipoise {
namespace {

constexpr double kK = 1024;

// The last `spaced` components are a second source blended in at regular distances, as training loaders blend
// (Megatron-LM takes the source with the largest deficit): its k-th document stands at (k + jitter * u) /
// (its share of documents).
struct Components {
  std::vector<LengthComponent> list;
  std::size_t spaced = 0;
  double jitter = 0;  // in [0, 1]: documents of the second source keep their order
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

// Skrull (arXiv 2505.19609) Figure 1(a). Two heaps, below 1K and from 8K to 32K: no lognormal joins them.
Components chatqa2_long_sft() {
  return {{{1, TableShape{64,
                          99 * kK,
                          Between::log_uniform,
                          {{1 * kK, 0.2192}, {4 * kK, 0.3148}, {8 * kK, 0.4043}, {32 * kK, 0.9986}}}}}};
}

// ChunkFlow (arXiv 2503.02356) Table 2, which says nothing below 1K. The two points there are ours: a median
// of 250 tokens and a mean of about 330 below 1K, as conversations have (LMSys-Chat-1M). One lognormal
// through the table's first two points alone would have a median of 14.
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

// The Llama 3 report as quoted in Skrull (arXiv 2505.19609) section 3.1: 99.89 % short with a mean under 1K,
// 0.11 % long with a mean of about 37K.
Components llama3_sft() {
  return {{{0.9989, LognormalShape{500, 1.0, 16, 8 * kK}},
           {0.0011, LognormalShape{33 * kK, 0.5, 8 * kK, 128 * kK}}}};
}

// WLB-LLM (arXiv 2503.17924) prints no lengths; Table 2 constrains them. Body: most documents short, few
// above 8K, as in the sample that DistCA draws for "the WLB-LLM distribution" (median 3.2K). Long documents:
// about one for each step of 4 windows of 128K, at nearly regular distances; weights, ends and jitter are
// fitted so that 4 micro-batches of 128K have Table 2's imbalances (tests/traces/test_wlb_128k.cpp).
// Independent long documents cannot give a plain imbalance of 1.44 where a token of a 128K document costs 2.4
// times one of a short document, which is what the shipped H100 profile says of LLaMA-2 7B.
Components wlb_128k() {
  return {{{0.95799, PowerLawShape{16, 6100, -1}},
           {0.0347, PowerLawShape{6100, 57500, 2.09}},
           {0.00033, PowerLawShape{65600, 69000, 0}},
           {0.0008, PowerLawShape{98400, 104000, 0}},
           {0.00618, PowerLawShape{119900, 292500, 0.663}}},
          3,
          0.07};
}

// HBP (arXiv 2503.07680): Tulu3 up to 32K with a mean of 0.8K, and about 2K LongCite documents up to 128K
// among its 940K, 0.9K together. Fitted: the spread of the body (a lognormal of sigma 0.42; a wider one makes
// ABR of the 16K group too large) and LongCite's even spread in ln(tokens) from 16K on, so that ISF, groups
// 16K and 128K, and balance batching give the component table (tests/traces/test_longcite.cpp).
Components tulu3_longcite() {
  return {{{0.9978, LognormalShape{710, 0.42, 16, 32 * kK}},
           {0.0001, PowerLawShape{8 * kK, 32 * kK, 0}},
           {0.0021, PowerLawShape{16 * kK, 128 * kK, 0}}}};
}

// HBP (arXiv 2503.07680): OpenHermes up to 4K with the same LongCite documents, of which it prints ABR 0.513
// -> 0.269 -> 0.004 and no lengths.
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

// In the open interval (0, 1), so that no quantile is infinite.
double open_unit(SplitMix64& random) {
  return (static_cast<double>(random.next() >> 11) + 0.5) * 0x1p-53;
}

double weight_of(std::span<const LengthComponent> components) {
  double sum = 0;
  for (const LengthComponent& component : components) sum += component.weight;
  return sum;
}

// Two draws a document, whatever the distribution: the component, then the length in it.
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
  double taken = 0;  // of the second source
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
  static const std::vector<Distribution> all = [] {
    std::vector<Distribution> list;
    for (const Entry& known : kEntries) list.push_back(known.about);
    return list;
  }();
  return all;
}

const Distribution& distribution(std::string_view name) {
  return entry(name).about;
}

Trace synthesize(std::string_view name, std::int64_t documents, std::uint64_t seed) {
  if (documents < 1 || documents > kMostDocuments)
    throw UserError("documents: found " + std::to_string(documents) + "; expected 1 to " +
                    std::to_string(kMostDocuments));
  const Components components = entry(name).components();
  SplitMix64 random(seed);
  Trace trace;
  trace.lengths = draw(components, static_cast<std::size_t>(documents), random);
  trace.origin = std::string(name) + " (synthetic, " + std::to_string(documents) + " documents, seed " +
                 std::to_string(seed) + ")";
  return trace;
}

}  // namespace equipoise

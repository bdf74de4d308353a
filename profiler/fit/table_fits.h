// One fit for each kind of table: samples in, the JSON of the table out (profiler/README.md).
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "profiler/fit/hold_out.h"
#include "profiler/fit/samples.h"
#include "profiler/profile/attention.h"
#include "profiler/profile/collective.h"
#include "profiler/profile/exchange.h"
#include "profiler/profile/gemm.h"

namespace equipoise {

// "measured" keeps measured and predicted times of the held-out samples, for the plot: only of our own
// samples.
enum class Provenance { published, measured };

// `apart`: how the kernel keeps packed documents apart.
nlohmann::json fit_attention(std::span<const AttentionSample* const> samples, double sms, DocumentMask apart,
                             Provenance kind);
nlohmann::json fit_gemm(std::span<const GemmSample* const> samples, double sms, Provenance kind);
// The forms of a CPU core, for samples that this program measured on one.
nlohmann::json fit_blocked_attention(std::span<const AttentionSample* const> samples);
nlohmann::json fit_panel_gemm(std::span<const GemmSample* const> samples);
nlohmann::json fit_elementwise(std::span<const ElementwiseSample* const> samples, Provenance kind);
// `switch_from_ranks`: all-reduces over at least so many ranks are done by the switch; 0: none.
nlohmann::json fit_node_collective(std::span<const CollectiveSample* const> samples, double switch_from_ranks,
                                   Provenance kind);
// The same between processes of one machine's CPUs.
nlohmann::json fit_size_table(std::span<const CollectiveSample* const> samples);
// `node`: the node parameters by kind, fitted before.
nlohmann::json fit_network(std::span<const CollectiveSample* const> samples,
                           std::span<const NodeParameters> node, double nic_GBps, Provenance kind);
// Of one kind: messages, or DeepEP's kernels. `links`: the rates of the board that the samples are of.
nlohmann::json fit_exchange(std::span<const ExchangeSample* const> samples, LinkRates links, Provenance kind);

// Shared by the fits.
double significant(double value);               // 6 digits: what a fit can mean, and what a person can read
std::vector<double> kept(const GroupFit& fit);  // its parameters in so many digits

// What samples cover of one size.
struct Covered {
  double low = 1e300;
  double high = 0;
  void add(double value) {
    low = value < low ? value : low;
    high = value > high ? value : high;
  }
};
nlohmann::json range_json(double low, double high, double allowed_low, double allowed_high);
inline nlohmann::json range_json(const Covered& covered, double allowed_low, double allowed_high) {
  return range_json(covered.low, covered.high, allowed_low, allowed_high);
}

// Of the products of a fit: m, n, k.
struct CoveredProducts {
  Covered m, n, k;
  void add(const GemmSample& sample) {
    m.add(static_cast<double>(sample.m));
    n.add(static_cast<double>(sample.n));
    k.add(static_cast<double>(sample.k));
  }
};

nlohmann::json attention_ranges(const Covered& keys, const Covered& queries, const Covered& dims,
                                const Covered& heads);  // of either form of attention
nlohmann::json gemm_ranges(const CoveredProducts& covered);

// What a table says of its samples, whatever they are of.
struct SampleTimes {
  std::vector<const Labels*> labels;
  std::vector<double> seconds;
  void add(const Labels& of, double measured) {
    labels.push_back(&of);
    seconds.push_back(measured);
  }
};

struct ErrorGroup {
  std::string name;
  std::vector<bool> holds;  // one a sample; empty: all
};

// The parts of a fitted table that differ from form to form.
struct FittedForm {
  std::string form;
  nlohmann::json parameters;
  nlohmann::json ranges;
  std::vector<ErrorGroup> groups{{"all", {}}};
};
// The table with provenance and errors, the latter by group, as hold_out and cross_validated; and the pairs
// of measured and predicted times where they may be kept.
nlohmann::json table_json(FittedForm fitted, const GroupFit& fit, const SampleTimes& times, Provenance kind);

}  // namespace equipoise

// Fits of tables: samples in, the JSON of the table out (profiler/README.md), with how wrong it is on shapes
// that the fit did not see.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "profiler/fit/least_squares.h"
#include "profiler/fit/samples.h"
#include "profiler/profile/attention.h"
#include "profiler/profile/collective.h"
#include "profiler/profile/dense_kernels.h"

namespace equipoise {

// --- One group of samples and its errors.
//
// Distinct shapes are sorted and dealt to four folds, whole shapes, never single rows. Each round of four
// starts one fold further (shape i goes to fold (i + i / 4) mod 4): tables are grids, and where each length
// has four shapes, dealing i mod 4 would put all rows of one head dim into one fold, and so ask for a head
// dim that no fit has seen instead of a shape. The parameters come from folds 0, 1 and 3; fold 2 is never
// fitted and gives `held_out`.
// A quarter of a small group is few samples, and which ones hangs on the deal. `crossed` does not: it leaves
// out one shape after the other, fits the rest anew, and collects every sample's error from the fit that did
// not see its shape. Beyond 64 shapes those of equal rank modulo 64 are left out together.
// A group of fewer than four shapes has no fold to spare: all of it is fitted, and `crossed` alone says how
// wrong the fit is.

inline constexpr std::size_t kFolds = 4;
inline constexpr std::size_t kHeldOutFold = 2;
inline constexpr std::size_t kMostCrossed = 64;

struct FitProblem {
  std::vector<FitParameter> parameters;
  std::vector<std::vector<double>> shapes;  // one a sample: equal vectors are one shape
  // ln(predicted / measured) of one sample.
  std::function<double(std::span<const double> parameters, std::size_t sample)> log_error;
  // Relative uncertainty of a sample as published (a figure read off a chart); errors count from there on.
  // Empty: 0.
  std::vector<double> uncertainty;
  bool set_aside = true;  // a fold that is never fitted; false where every sample is needed
  FitOptions options;
};

struct GroupFit {
  std::vector<double> parameters;
  std::vector<std::size_t> held_out;    // samples of the held-out fold
  std::vector<double> held_out_errors;  // relative and signed, in the order of held_out
  std::vector<double> crossed_errors;   // of all samples, each from the fit without its shape
};

GroupFit fit_group(const FitProblem& problem);

struct ErrorSummary {
  std::size_t count = 0;
  double median = 0;  // of absolute relative errors
  double p90 = 0;
  double bias = 0;  // median of signed errors
};
ErrorSummary summarize(std::vector<double> errors);
nlohmann::json to_json(const ErrorSummary& summary);

// --- One fit for each kind of table.

// "measured" keeps measured and predicted times of the held-out samples, for the plot: only of our own
// samples.
enum class Provenance { published, measured };

// `apart`: how the kernel keeps packed documents apart.
// `padded`: as FlashAttention 2's: as many tiles for each document as the longest has, and backward passes over
// the queries' rows around the main kernel.
struct PackedGrid {
  DocumentMask apart = DocumentMask::varlen;
  bool padded = false;
};
nlohmann::json fit_attention(std::span<const AttentionSample* const> samples, double sms, PackedGrid grid,
                             Provenance kind);
nlohmann::json fit_gemm(std::span<const GemmSample* const> samples, double sms, Provenance kind);
// A call as measured: its products and what stands around them.
double gemm_call_seconds(const GemmForm& form, const GemmSample& sample);
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

// --- What the fits share.
double significant(double value);               // 6 digits: what a fit can mean, and what a person can read
std::vector<double> kept(const GroupFit& fit);  // its parameters in so many digits

struct ErrorGroup {
  std::string name;
  std::vector<bool> holds;  // one a sample; empty: all
};

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

// What the samples of a table cover, and its `ranges`.
struct CoveredAttention {
  Covered keys, queries, dims, heads;
  void add(const AttentionSample& sample);
  [[nodiscard]] nlohmann::json ranges() const;  // of either form of attention
};
struct CoveredProducts {
  Covered m, n, k;
  void add(const GemmSample& sample);
  [[nodiscard]] nlohmann::json ranges() const;
};
// Of collectives and exchanges, with the errors of long and short messages apart: the former are promised.
struct CoveredTransfers {
  Covered bytes, nodes;
  ErrorGroup large{"above 1 MiB", {}}, small{"up to 1 MiB", {}};
  void add(double transferred, double over_nodes);
  // `least_nodes`: that the form is for; 0: it does not ask for their number.
  [[nodiscard]] nlohmann::json ranges(double least_nodes = 0) const;
};
nlohmann::json elementwise_ranges(const Covered& bytes);

// What a table says of its samples, whatever they are of.
struct SampleTimes {
  std::vector<const Labels*> labels;
  std::vector<double> seconds;
  void add(const Labels& of, double measured) {
    labels.push_back(&of);
    seconds.push_back(measured);
  }
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

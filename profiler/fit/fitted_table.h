// A fitted table: the form's parameters, what the samples cover, and the fit's errors; and how it is written
// into a profile (docs/reference/formats.md).
#pragma once

#include <array>
#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "profiler/fit/group_fit.h"
#include "profiler/fit/samples.h"
#include "profiler/profile/attention.h"
#include "profiler/profile/collective.h"
#include "profiler/profile/cpu_forms.h"
#include "profiler/profile/dense_kernels.h"

namespace equipoise {

// Tables of `measured` samples keep measured and predicted times of the held-out samples for the plot. Those
// are this program's own samples only.
enum class Provenance { published, measured };

// A named part of the samples, whose errors a table states separately.
struct ErrorGroup {
  std::string name;
  std::vector<bool> holds;  // whether it holds each sample; holds all if empty
};

// The smallest and the largest value that the samples have in one dimension.
struct Covered {
  double low = 1e300;
  double high = 0;
  void add(double value) {
    low = value < low ? value : low;
    high = value > high ? value : high;
  }
};

// One of a table's `ranges`: what the samples cover, and how far the form is trusted.
struct TableRange {
  std::string dimension;
  Covered samples;
  double allowed_low = 0;
  double allowed_high = 0;
};

// What the samples of a table cover, and the table's ranges.
struct CoveredAttention {
  Covered keys, queries, dims, heads;
  void add(const AttentionSample& sample);
  [[nodiscard]] std::vector<TableRange> ranges() const;  // the same for the GPU's form and the CPU core's
};
struct CoveredProducts {
  Covered m, n, k;
  void add(const GemmSample& sample);
  [[nodiscard]] std::vector<TableRange> ranges() const;
};
// Collectives and exchanges state the errors of long and of short messages separately: a limit is promised
// for the long ones.
struct CoveredTransfers {
  Covered bytes, nodes;
  ErrorGroup large{"above 1 MiB", {}}, small{"up to 1 MiB", {}};
  void add(double transferred, double over_nodes);
  // `least_nodes` is the fewest nodes that the form is for; 0 if it does not depend on their number.
  [[nodiscard]] std::vector<TableRange> ranges(double least_nodes = 0) const;
};
std::vector<TableRange> elementwise_ranges(const Covered& bytes);

// What a table says about its samples, whatever their kind.
struct SampleTimes {
  std::vector<const Labels*> labels;
  std::vector<double> seconds;
  void add(const Labels& of, double measured) {
    labels.push_back(&of);
    seconds.push_back(measured);
  }
};

struct GroupErrors {
  std::string group;
  ErrorSummary held_out;
  ErrorSummary crossed;
};

using TableParameters = std::variant<AttentionParameters, BlockedAttentionParameters, GemmParameters,
                                     PanelGemmRates, ElementwiseParameters, NodeParameters, NetworkParameters,
                                     SizeTable, MessageParameters, ForwardingParameters>;

struct FittedTable {
  std::string form;
  TableParameters parameters;
  std::vector<TableRange> ranges;
  Provenance kind = Provenance::published;
  std::size_t samples = 0;
  std::set<std::string> sources, methods;  // origins of published samples
  std::vector<GroupErrors> errors;
  // The held-out samples, if they are this program's own.
  std::vector<std::array<double, 2>> measured_and_predicted_seconds;
  DocumentMask document_mask = DocumentMask::varlen;  // for attention tables only
  LinkRates fitted_at;                                // rates of networks and exchanges, else 0
};

// The parts of a table that its form decides; `errors_of` are the groups whose errors it states.
struct FittedForm {
  std::string form;
  TableParameters parameters;
  std::vector<TableRange> ranges;
  std::vector<ErrorGroup> errors_of{{"all", {}}};
};
FittedTable fitted_table(FittedForm form, const GroupFit& fit, const SampleTimes& times, Provenance kind);

nlohmann::json to_json(const ErrorSummary& summary);
nlohmann::json to_json(const FittedTable& table);

// A value with six significant digits, which is more than a fit can mean.
double significant(double value);
// The fit's parameters with six significant digits.
std::vector<double> rounded_parameters(const GroupFit& fit);

}  // namespace equipoise

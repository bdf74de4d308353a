// One fit for each kind of table: samples in, the JSON of the table out (profiler/README.md).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "profiler/fit/hold_out.h"
#include "profiler/fit/samples.h"
#include "profiler/profile/attention_form.h"
#include "profiler/profile/collective_form.h"
#include "profiler/profile/gemm_form.h"

namespace equipoise {

// "measured" keeps measured and predicted times of the held-out samples, for the plot: only of our own
// samples.
enum class Provenance { published, measured };

struct Network {
  double nic_GBps = 0;
  std::string matches;  // part of a row's inter_node_network
};

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
// `node`: the node parameters by kind, fitted before.
nlohmann::json fit_network(std::span<const CollectiveSample* const> samples,
                           std::span<const NodeParameters> node, double nic_GBps, Provenance kind);

// Shared by the fits.
double significant(double value);  // 6 digits: what a fit can mean, and what a person can read
nlohmann::json provenance_json(Provenance kind, const std::vector<const Labels*>& labels);
nlohmann::json range_json(double low, double high, double allowed_low, double allowed_high);

struct ErrorGroup {
  std::string name;
  std::vector<bool> holds;  // one a sample
};
// Writes hold_out and cross_validated, by group, into `table`; and the pairs where they may be kept.
void report_errors(const GroupFit& fit, const std::vector<ErrorGroup>& groups,
                   const std::vector<double>& measured_seconds, Provenance kind, nlohmann::json& table);

}  // namespace equipoise

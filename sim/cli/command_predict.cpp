#include "sim/cli/command_predict.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/utf8.h"
#include "profiler/fit/hold_out.h"
#include "profiler/fit/recipe.h"
#include "profiler/fit/samples.h"
#include "profiler/fit/table_fits.h"
#include "profiler/profile/cpu_forms.h"
#include "profiler/profile/elementwise_form.h"
#include "profiler/profile/json_fields.h"
#include "profiler/profile/profile.h"
#include "sim/report/text_table.h"

namespace equipoise {
namespace {

using nlohmann::json;

struct Prediction {
  double seconds = 0;
  double measured = 0;  // 0: the row has no time
  std::string group;    // of the summary
  std::string unable;   // why there is no prediction
};

std::string label(const Labels& labels, const std::string& name) {
  const auto it = labels.find(name);
  return it == labels.end() ? std::string() : it->second;
}

// Whether a table was fitted to rows like this one.
bool fitted_to(const json& table, const Labels& labels) {
  const auto selector = table.find("selector");
  return selector != table.end() && selects(*selector, labels);
}

class Predictor {
 public:
  Predictor(const Profile& profile, const PredictOptions& options) : profile_(profile), options_(options) {
    if (!options.document_histogram.empty()) histogram_ = read_document_histogram(options.document_histogram);
  }

  Prediction row(const CsvTable& table, SampleTable kind, std::size_t index) {
    switch (kind) {
      case SampleTable::attention:
        return attention(table, index);
      case SampleTable::gemm:
        return gemm(table, index);
      case SampleTable::elementwise:
        return elementwise(table, index);
      case SampleTable::collective:
        break;
    }
    return collective(table, index);
  }

 private:
  Prediction attention(const CsvTable& table, std::size_t index) {
    Prediction made;
    const auto sample = attention_row(table, index, histogram_, made.unable);
    if (!sample) return made;
    const json& kernels = profile_.table("attention").at("kernels");
    std::string name = options_.kernel;
    if (name.empty())
      for (const auto& item : kernels.items())
        if (item.value().contains(sample->pass) && fitted_to(item.value()[sample->pass], sample->labels))
          name = item.key();
    if (name.empty()) name = profile_.table("attention").at("default").get<std::string>();
    const json& kernel = attention_kernel(profile_, name);
    if (!kernel.contains(sample->pass)) {
      made.unable = "kernel " + name + " has no " + sample->pass + " table";
      return made;
    }
    if (has_form(kernel[sample->pass], kBlockedLoops)) {
      made.unable = "kernel " + name + " is of a CPU core; these rows are of GPUs";
      return made;
    }
    const json& fitted = kernel[sample->pass];
    const AttentionParameters fit = attention_parameters(fitted, profile_.origin());
    const DocumentMask apart = document_mask(fitted, profile_.origin());
    double log_seconds = 0;
    double log_measured = 0;
    for (std::size_t i = 0; i < sample->packings.size(); ++i) {
      const AttentionWork work = attention_work(sample->mask, apart, sample->packings[i]);
      log_seconds += std::log(observed_attention_seconds(fit, sample->heads, profile_.device().sms, work));
      if (sample->seconds[i] > 0) log_measured += std::log(sample->seconds[i]);
    }
    const auto count = static_cast<double>(sample->packings.size());
    made.seconds = std::exp(log_seconds / count);
    if (sample->seconds[0] > 0) made.measured = std::exp(log_measured / count);
    const std::string dtype = label(sample->labels, "dtype");
    made.group = label(sample->labels, "gpu") + ", " + label(sample->labels, "kernel") + ", " +
                 (dtype.empty() ? "dtype not stated" : dtype) + ", " + sample->pass + " [" + name + "]";
    return made;
  }

  Prediction gemm(const CsvTable& table, std::size_t index) {
    Prediction made;
    const auto sample = gemm_row(table, index, made.unable);
    if (!sample) return made;
    const bool fp8 = label(sample->labels, "dtype").find("fp8") != std::string::npos;
    RangeUse use;
    made.seconds = GemmModel(profile_, fp8 ? Precision::fp8 : Precision::bf16)
                       .seconds(sample->m, sample->n, sample->k, use);
    made.measured = sample->seconds;
    made.group = std::string(fp8 ? "fp8" : "bf16") + (sample->m >= 2048 ? ", M >= 2048" : ", M < 2048");
    return made;
  }

  Prediction elementwise(const CsvTable& table, std::size_t index) {
    Prediction made;
    const auto sample = elementwise_row(table, index, made.unable);
    if (!sample) return made;
    // The table fitted to such rows, else that of the op as the simulator uses it.
    static const std::map<std::string, std::string> kOps{{"residual add", "residual_add"},
                                                         {"RMSNorm", "rms_norm"},
                                                         {"rms_norm", "rms_norm"},
                                                         {"silu(x)*y", "swiglu"},
                                                         {"rotary", "rope"}};
    const json& ops = profile_.table("elementwise");
    const auto op = kOps.find(label(sample->labels, "op"));
    std::string name = op == kOps.end() ? std::string() : op->second;
    for (const auto& item : ops.items())
      if (fitted_to(item.value(), sample->labels)) name = item.key();
    if (!ops.contains(name)) {
      made.unable = "not an op we model: " + label(sample->labels, "op");
      return made;
    }
    made.seconds = elementwise_seconds(elementwise_parameters(ops[name], profile_.origin()), sample->bytes);
    made.measured = sample->seconds;
    made.group = label(sample->labels, "gpu") + ", " + label(sample->labels, "op") + ", " +
                 label(sample->labels, "pass") + ", " + label(sample->labels, "backend") + " [" + name + "]";
    return made;
  }

  Prediction collective(const CsvTable& table, std::size_t index) {
    Prediction made;
    const auto sample = collective_row(table, index, made.unable);
    if (!sample) return made;
    const std::string wire = label(sample->labels, "inter_node_network");
    NetworkRates rates{options_.nic_GBps, options_.network};
    const bool between = sample->group.ranks > sample->group.ranks_per_node;
    const json networks = profile_.table("collective").value("networks", json::object());  // none: one node
    if (between && rates.name.empty()) {
      for (const auto& item : networks.items()) {
        const std::string part = item.value().value("matches", std::string());
        if (!part.empty() && wire.find(part) != std::string::npos) rates.name = item.key();
      }
    }
    if (between && rates.nic_GBps == 0 && networks.contains(rates.name))
      rates.nic_GBps = networks[rates.name].value("fitted_at_nic_GBps", 0.0);
    RangeUse use;
    made.seconds = CollectiveModel(profile_, rates).seconds(sample->kind, sample->bytes, sample->group, use);
    made.measured = sample->seconds;
    made.group = label(sample->labels, "op") + ", " + std::to_string(sample->group.ranks) + " GPUs" +
                 (!between       ? ", one node"
                  : wire.empty() ? ", between nodes"
                                 : ", " + wire) +
                 (sample->bytes > 1024 * 1024 ? ", above 1 MiB" : ", up to 1 MiB");
    return made;
  }

  const Profile& profile_;
  const PredictOptions& options_;
  DocumentHistogram histogram_;
};

std::string number(const char* format, double value) {
  char text[40];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// What was predicted of a whole table.
struct Outcome {
  std::vector<Prediction> rows;
  std::map<std::string, std::vector<double>> errors;       // by group, of rows with a measured time
  std::map<std::string, std::vector<std::size_t>> unable;  // lines of the file, by reason
};

double error_of(const Prediction& made) {
  return made.seconds / made.measured - 1;
}

Outcome predict_rows(const PredictOptions& options, const Profile& profile, const CsvTable& table) {
  const SampleTable kind = table_kind(table);
  Predictor predictor(profile, options);
  Outcome outcome;
  for (std::size_t row = 0; row < table.rows(); ++row) {
    try {
      outcome.rows.push_back(predictor.row(table, kind, row));
    } catch (const UserError& e) {
      const std::string here = options.rows + ":" + std::to_string(table.line(row)) + ": ";
      const std::string what = e.what();
      throw UserError((what.rfind(here, 0) == 0 ? "" : here) + what);
    }
    const Prediction& made = outcome.rows.back();
    if (!made.unable.empty()) {
      outcome.unable[made.unable].push_back(table.line(row));
    } else if (made.measured > 0) {
      outcome.errors[made.group].push_back(error_of(made));
    }
  }
  if (outcome.unable.empty() || table.rows() == 0) return outcome;
  std::size_t left_out = 0;
  for (const auto& [reason, lines] : outcome.unable) left_out += lines.size();
  const auto& [reason, lines] = *outcome.unable.begin();
  if (left_out == table.rows())
    throw UserError(options.rows + ":" + std::to_string(lines.front()) + ": " + reason +
                    "; none of the rows can be predicted");
  return outcome;
}

// "12, 14, 15, ... (7 in all)"
std::string lines_text(const std::vector<std::size_t>& lines) {
  constexpr std::size_t kShown = 10;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, lines.size()); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(lines[i]);
  return lines.size() > kShown ? text + ", ... (" + std::to_string(lines.size()) + " in all)" : text;
}

void print_rows(const Outcome& outcome, const CsvTable& table, std::ostream& out) {
  for (const std::string& name : table.header()) out << csv_cell(name) << ',';
  out << "predicted_ms,error\n";
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const Prediction& made = outcome.rows[row];
    for (const std::string& cell : table.row(row)) out << csv_cell(cell) << ',';
    if (made.unable.empty()) out << number("%.6g", made.seconds * 1e3);
    out << ',';
    if (made.unable.empty() && made.measured > 0) out << number("%.4f", error_of(made));
    out << '\n';
  }
}

json outcome_json(const Outcome& outcome, const CsvTable& table) {
  json rows = json::array();
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const Prediction& made = outcome.rows[row];
    json one = json::object();
    for (std::size_t i = 0; i < table.header().size(); ++i) one[table.header()[i]] = table.row(row)[i];
    if (made.unable.empty()) one["predicted_ms"] = made.seconds * 1e3;
    if (made.unable.empty() && made.measured > 0) one["error"] = error_of(made);
    if (!made.unable.empty()) one["not_predicted"] = made.unable;
    rows.push_back(std::move(one));
  }
  json groups = json::array();
  for (const auto& [group, list] : outcome.errors) {
    groups.push_back(to_json(summarize(list)));
    groups.back()["group"] = group;
  }
  json unable = json::object();
  for (const auto& [reason, lines] : outcome.unable) unable[reason] = lines.size();
  return {{"rows", rows}, {"groups", groups}, {"not_predicted", unable}};
}

std::string groups_table(const Outcome& outcome) {
  TextTable text({"group", "rows", "median |error| %", "90th percentile %", "median error %"});
  for (const auto& [group, list] : outcome.errors) {
    const ErrorSummary summary = summarize(list);
    text.add({group, std::to_string(summary.count), fixed(100 * summary.median, 1),
              fixed(100 * summary.p90, 1), number("%+.1f", 100 * summary.bias)});
  }
  return text.text();
}

}  // namespace

void predict_command(const PredictOptions& options, std::ostream& out, std::ostream& notes) {
  if (options.nic_GBps < 0)
    throw UserError("--nic-GBps: expected a number >= 0, found " + number("%g", options.nic_GBps));
  const Profile profile = Profile::load(options.profile);
  const CsvTable table = CsvTable::read(options.rows);
  const Outcome outcome = predict_rows(options, profile, table);  // all before the first is printed
  switch (options.format) {
    case Format::csv:
      print_rows(outcome, table, out);
      if (!outcome.errors.empty()) notes << groups_table(outcome);
      break;
    case Format::json:
      out << outcome_json(outcome, table).dump(1) << '\n';
      break;
    case Format::table:
      out << groups_table(outcome);
      break;
  }
  if (options.format == Format::json) return;
  for (const auto& [reason, lines] : outcome.unable)
    notes << "not predicted, " << (lines.size() == 1 ? "line " : "lines ") << lines_text(lines) << " of "
          << printable(options.rows) << ": " << printable(reason) << '\n';
}

}  // namespace equipoise

#include "profiler/fit/predict.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "profiler/fit/gemm_fit.h"
#include "profiler/fit/recipe.h"
#include "profiler/fit/sample_tables.h"
#include "profiler/profile/attention.h"
#include "profiler/profile/collective.h"
#include "profiler/profile/cpu_forms.h"
#include "profiler/profile/dense_kernels.h"
#include "traces/json_object.h"

namespace equipoise {
namespace {

using nlohmann::json;

// Whether the table was fitted to samples with these labels.
bool fitted_to(const json& table, const Labels& labels) {
  const auto selector = table.find("selector");
  return selector != table.end() && selects(*selector, labels);
}

// The precision of the tables that the simulator would use for such a row. Nothing if the row states another
// element type: only a table that was fitted to such rows can predict those.
std::optional<Precision> precision_of(const Labels& labels) {
  std::string dtype = label(labels, "dtype");
  std::ranges::transform(dtype, dtype.begin(), [](unsigned char c) { return std::tolower(c); });
  if (dtype.starts_with("torch.")) dtype.erase(0, std::string_view("torch.").size());
  for (const std::string_view two_bytes : {"", "bf16", "bfloat16", "fp16", "float16", "half", "fp16/bf16"})
    if (dtype == two_bytes) return Precision::bf16;
  for (const std::string_view one_byte : {"fp8", "float8"})
    if (dtype == one_byte || dtype.starts_with(std::string(one_byte) + " ") ||
        dtype.starts_with(std::string(one_byte) + "_e"))
      return Precision::fp8;
  return std::nullopt;
}

std::string other_type(const Labels& labels) {
  return "no table of this dtype: " + label(labels, "dtype");
}

class RowPredictor {
 public:
  RowPredictor(const Profile& profile, const PredictChoices& choices)
      : profile_(profile), choices_(choices) {}

  RowPrediction row(const CsvTable& table, SampleTable kind, std::size_t index) {
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
  RowPrediction attention(const CsvTable& table, std::size_t index) {
    RowPrediction made;
    const auto sample = attention_row(table, index, choices_.histogram, made.unable);
    if (!sample) return made;
    const json& kernels = profile_.table("attention").at("kernels");
    std::string name = choices_.kernel;
    if (name.empty())
      for (const auto& item : kernels.items())
        if (item.value().contains(sample->pass) && fitted_to(item.value()[sample->pass], sample->labels))
          name = item.key();
    const std::optional<Precision> precision = precision_of(sample->labels);
    if (name.empty() ? precision != Precision::bf16 : !choices_.kernel.empty() && !precision) {
      made.unable = other_type(sample->labels);
      return made;
    }
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
    made.unable = beyond_range(fitted, name, *sample);
    if (!made.unable.empty()) return made;
    const AttentionParameters fit = attention_parameters(fitted, profile_.origin());
    const DocumentMask apart = document_mask(fitted, profile_.origin());
    double log_seconds = 0;
    double log_measured = 0;
    for (std::size_t i = 0; i < sample->packings.size(); ++i) {
      const AttentionWork work = attention_work(sample->mask, apart, sample->packings[i], sample->counted());
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

  // Which of the call's sizes is beyond what the table is trusted for, and what is allowed; else nothing.
  [[nodiscard]] std::string beyond_range(const json& fitted, const std::string& kernel,
                                         const AttentionSample& sample) const {
    const std::pair<const char*, double> sizes[] = {{"keys", static_cast<double>(sample.most_keys)},
                                                    {"queries", static_cast<double>(sample.least_queries)},
                                                    {"head_dim", sample.heads.head_dim},
                                                    {"query_heads", sample.heads.query_heads}};
    for (const auto& [size, found] : sizes) {
      const Interval allowed = validity_of(fitted, size, profile_.origin()).allowed;
      if (allowed.holds(found)) continue;
      return concatenated(size, ": expected ", short_number(allowed.low), " to ", short_number(allowed.high),
                          " by kernel ", kernel, ", found ", short_number(found));
    }
    return "";
  }

  RowPrediction gemm(const CsvTable& table, std::size_t index) {
    RowPrediction made;
    const auto sample = gemm_row(table, index, made.unable);
    if (!sample) return made;
    const json& tables = profile_.table("gemm");
    std::string name;
    for (const auto& item : tables.items())
      if (fitted_to(item.value(), sample->labels)) name = item.key();
    const bool fitted = !name.empty(), grouped = sample->groups > 1 || sample->next_n > 0;
    const std::optional<Precision> precision = precision_of(sample->labels);
    if (!fitted && precision) name = name_of(*precision);
    if (!fitted && !precision)
      made.unable = other_type(sample->labels);
    else if (!fitted && precision == Precision::fp8 && !tables.contains(name))
      made.unable = "profile " + profile_.name() + " has no FP8 GEMMs";
    else if (!fitted && grouped)
      made.unable = "no table of this kernel: " +
                    label(sample->labels, sample->labels.contains("kernel") ? "kernel" : "op");
    if (!made.unable.empty()) return made;
    const Precision model = precision.value_or(Precision::bf16);
    RangeUse use;
    made.seconds =
        grouped || sample->moved_bytes > 0 || name != name_of(model)
            ? gemm_call_seconds(
                  GemmForm(gemm_parameters(tables[name], profile_.origin()), profile_.device().sms), *sample)
            : GemmModel(profile_, model).seconds(sample->m, sample->n, sample->k, use);
    made.measured = sample->seconds;
    made.group = grouped
                     ? "experts [" + name + "]" + (sample->m >= 128 ? ", 128 rows and more" : ", fewer rows")
                     : name + (sample->m >= 2048 ? ", M >= 2048" : ", M < 2048");
    return made;
  }

  RowPrediction elementwise(const CsvTable& table, std::size_t index) {
    RowPrediction made;
    const auto sample = elementwise_row(table, index, made.unable);
    if (!sample) return made;
    const json& ops = profile_.table("elementwise");
    const PublishedOp* op = published_op(label(sample->labels, "op"));
    std::string name;
    for (const auto& item : ops.items())
      if (fitted_to(item.value(), sample->labels)) name = item.key();
    const bool fitted = !name.empty();
    if (!fitted && op != nullptr) name = name_of(op->kind);
    if (!ops.contains(name))
      made.unable = "not an op we model: " + label(sample->labels, "op");
    else if (!fitted && precision_of(sample->labels) != Precision::bf16)
      made.unable = other_type(sample->labels);
    if (!made.unable.empty()) return made;
    made.seconds = elementwise_seconds(elementwise_parameters(ops[name], profile_.origin()), sample->bytes);
    made.measured = sample->seconds;
    made.group = label(sample->labels, "gpu") + ", " + label(sample->labels, "op") + ", " +
                 label(sample->labels, "pass") + ", " + label(sample->labels, "backend") + " [" + name + "]";
    return made;
  }

  // Uses the table that was fitted to such rows, with the links of those rows unless a NIC's rate is given.
  RowPrediction exchange(const ExchangeSample& sample) {
    RowPrediction made;
    made.measured = sample.seconds;
    const json tables = profile_.table("collective").value("exchange", json::object());
    for (const auto& item : tables.items()) {
      const json& fitted = item.value();
      if (!fitted_to(fitted, sample.labels)) continue;
      const double nic = choices_.nic_GBps > 0 ? choices_.nic_GBps : fitted.value("fitted_at_nic_GBps", 0.0);
      const double nvlink = fitted.value("fitted_at_nvlink_GBps", profile_.device().nvlink_GBps);
      made.seconds =
          has_form(fitted, kMessagesNic)
              ? messages_seconds(message_parameters(fitted, profile_.origin()), sample.load, nvlink, nic)
              : forwarding_seconds(forwarding_parameters(fitted, profile_.origin()), sample.load,
                                   {nvlink, nic});
      const double bytes = sample.load.node_bytes + sample.load.network_bytes;
      made.group = label(sample.labels, "op") + ", " + std::to_string(sample.group.ranks) + " GPUs" +
                   (bytes > 1024 * 1024 ? ", above 1 MiB" : ", up to 1 MiB") + " [" + item.key() + "]";
    }
    if (made.group.empty()) made.unable = "no table of this exchange: " + label(sample.labels, "op");
    return made;
  }

  RowPrediction collective(const CsvTable& table, std::size_t index) {
    RowPrediction made;
    if (const auto moved = exchange_row(table, index, made.unable)) return exchange(*moved);
    if (!made.unable.empty()) return made;
    const auto sample = collective_row(table, index, made.unable);
    if (!sample) return made;
    const std::string wire = label(sample->labels, "inter_node_network");
    NetworkRates rates{choices_.nic_GBps, choices_.network};
    const bool between = sample->between_nodes();
    const json networks = profile_.table("collective").value("networks", json::object());
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
  const PredictChoices& choices_;
};

}  // namespace

Predictions predict_rows(const Profile& profile, const CsvTable& table, const PredictChoices& choices) {
  const SampleTable kind = table_kind(table);
  RowPredictor predictor(profile, choices);
  Predictions outcome;
  for (std::size_t row = 0; row < table.rows(); ++row) {
    try {
      outcome.rows.push_back(predictor.row(table, kind, row));
    } catch (const UserError& e) {
      const std::string here = table.path() + ":" + std::to_string(table.line(row)) + ": ";
      const std::string what = e.what();
      throw UserError(what.rfind(here, 0) == 0 ? "" : here, what);
    }
    RowPrediction& made = outcome.rows.back();
    if (made.unable.empty() && !(made.seconds >= 0 && std::isfinite(made.seconds)))
      made.unable = "the parameters of " + profile.origin() + " make no time of it";
    if (!made.unable.empty())
      outcome.unable[made.unable].push_back(table.line(row));
    else if (made.measured > 0)
      outcome.errors[made.group].push_back(made.error());
  }
  const auto is_unable = [](const RowPrediction& made) { return !made.unable.empty(); };
  if (outcome.rows.empty() || !std::ranges::all_of(outcome.rows, is_unable)) return outcome;
  throw UserError(table.path(), ": none of ", counted(table.rows(), "row"),
                  " can be predicted: ", all_joined(outcome.unable, "; ", [](const auto& reason) {
                    return reason.first + " (" + counted(reason.second.size(), "row") + ", line " +
                           std::to_string(reason.second.front()) + " the first)";
                  }));
}

}  // namespace equipoise

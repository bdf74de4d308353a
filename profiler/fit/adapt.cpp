#include "profiler/fit/adapt.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "profiler/fit/attention_fit.h"
#include "profiler/fit/fitted_table.h"
#include "profiler/fit/gemm_fit.h"
#include "profiler/profile/dense_kernels.h"
#include "traces/json_object.h"

namespace equipoise {
namespace {

using nlohmann::json;

// --- How one table is adapted, whatever its kind.

// A factor that multiplies several parameters.
struct SharedFactor {
  std::string_view name;
  double trust = 1;  // standard deviation of its logarithm from one machine to the next
};

struct MovedParameter {
  std::string_view path;  // JSON pointer below "parameters"
  double trust = 1;       // standard deviation of the logarithm of its own factor
  int shared = -1;        // index of the shared factor that also multiplies it; -1: none
};

struct MovedForm {
  std::vector<SharedFactor> shared;
  std::vector<MovedParameter> parameters;
};

// Seconds of sample i by a table.
using Predictor = std::function<double(std::size_t sample)>;

struct TableSamples {
  std::vector<std::vector<double>> shapes;
  SampleTimes times;
  std::vector<double> work;  // TFLOP or GB; empty: rates are not checked
  double peak = 0;           // the device's peak rate of such work, per second; 0: not checked
  const char* unit = " TFLOP/s of ";
  std::vector<ErrorGroup> groups{{"all", {}}};
  std::vector<TableRange> ranges;
};

// How much a sample counts against the prior: about the error of a table's form on the machine that it was
// fitted to. The value is a choice and was not tuned; docs/results/profiles.md shows what it gives on
// published fabrics.
constexpr double kSampleTrust = 0.08;
constexpr double kRobust = 0.15;

std::string pointer_of(const MovedParameter& moved) {
  return std::string("/parameters/").append(moved.path);
}

// The form's parameters that the table has. Those of a cache that the table lacks cannot move.
std::vector<MovedParameter> present(const json& base, const MovedForm& form) {
  std::vector<MovedParameter> found;
  for (const MovedParameter& moved : form.parameters)
    if (base.contains(json::json_pointer(pointer_of(moved)))) found.push_back(moved);
  return found;
}

json moved(const json& base, const std::vector<MovedParameter>& parameters, std::size_t shared,
           std::span<const double> factors) {
  json table = base;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    json& value = table[json::json_pointer(pointer_of(parameters[i]))];
    double factor = factors[shared + i];
    if (parameters[i].shared >= 0) factor *= factors[at(parameters[i].shared)];
    value = value.get<double>() * factor;
  }
  return table;
}

// The base's errors on the samples of each group, in the form of `cross_validated`.
json errors_by_group(const std::vector<ErrorGroup>& groups, const std::vector<double>& errors) {
  json all = json::array();
  for (const ErrorGroup& group : groups) {
    std::vector<double> own;
    for (std::size_t i = 0; i < errors.size(); ++i)
      if (group.holds.empty() || group.holds[i]) own.push_back(errors[i]);
    if (own.empty()) continue;
    all.push_back(to_json(summarize(std::move(own))));
    all.back()["group"] = group.name;
  }
  return all;
}

// The table with moved parameters, its ranges, errors and `base_error`. The caller sets its provenance.
json adapted_table(const json& base, const MovedForm& form, const TableSamples& samples,
                   const std::function<Predictor(const json& table)>& by_table) {
  const std::vector<MovedParameter> parameters = present(base, form);
  FitProblem problem;
  problem.set_aside = false;
  problem.options.prior_weight = kSampleTrust;
  problem.options.robust_scale = kRobust;
  for (const SharedFactor& shared : form.shared)
    problem.parameters.push_back({std::string(shared.name), 1, shared.trust});
  for (const MovedParameter& one : parameters)
    problem.parameters.push_back({std::string(one.path), 1, one.trust});
  problem.shapes = samples.shapes;
  const std::size_t shared = form.shared.size();
  // The search evaluates all samples at one point before it moves on, so one table per point is enough.
  std::vector<double> point;
  Predictor predict;
  problem.log_error = [&](std::span<const double> factors, std::size_t i) {
    if (point.empty() || !std::equal(point.begin(), point.end(), factors.begin(), factors.end())) {
      point.assign(factors.begin(), factors.end());
      predict = by_table(moved(base, parameters, shared, factors));
    }
    return std::log(predict(i) / samples.times.seconds[i]);
  };
  const Predictor by_base = by_table(base);
  std::vector<double> errors;
  for (std::size_t i = 0; i < samples.shapes.size(); ++i)
    errors.push_back(by_base(i) / samples.times.seconds[i] - 1);
  const GroupFit fit = fit_group(problem);
  json found = moved(base, parameters, shared, fit.parameters)["parameters"];
  for (const MovedParameter& one : parameters) {
    json& value = found[json::json_pointer(std::string("/").append(one.path))];
    value = significant(value.get<double>());
  }
  json table = to_json(fitted_table({base.value("form", std::string()), {}, samples.ranges, samples.groups},
                                    fit, samples.times, Provenance::measured));
  table["parameters"] = std::move(found);
  if (!base.contains("form")) table.erase("form");
  for (const char* key : {"hold_out", "hold_out_pairs"}) table.erase(key);
  for (const char* key : {"document_mask", "all_to_all"})
    if (base.contains(key)) table[key] = base[key];
  table["base_errors"] = errors_by_group(samples.groups, errors);
  table["base_error"] = to_json(summarize(std::move(errors)));
  return table;
}

// --- What moves in each kind of table. The trusts follow from how much published machines differ. Latencies
// of networks differ by a factor of four, their ramps by six, shares of a link's rate by 10 to 20 %, and
// links of one kind by less.
const MovedForm& node_form() {
  static const MovedForm form{{{"latency", 0.5}, {"rate", 0.3}},
                              {{"launch_us", 0.4, 0},
                               {"rank_us", 0.4, 0},
                               {"ramp_us", 0.4, 0},
                               {"ramp_rank_us", 0.4, 0},
                               {"message_us", 0.4, 0},
                               {"long_us", 0.4, 0},
                               {"short_GBps", 0.1, 1},
                               {"ramp_MB", 0.5},
                               {"pair_loss", 0.5},
                               {"bus_GBps", 0.1, 1},
                               {"switch_bus_GBps", 0.1, 1}}};
  return form;
}
const MovedForm& network_form() {
  static const MovedForm form{{{"latency", 0.6}, {"ramp", 0.8}, {"rate", 0.3}},
                              {{"launch_us", 0.3, 0},
                               {"step_us", 0.3, 0},
                               {"pair_launch_us", 0.3, 0},
                               {"ramp_us", 0.4, 1},
                               {"reduce_ramp_us", 0.4, 1},
                               {"ramp_MB", 0.7},
                               {"efficiency", 0.15, 2},
                               {"pair_efficiency", 0.15, 2}}};
  return form;
}
const MovedForm& gemm_form() {
  static const MovedForm form{{{"rate", 0.3}},
                              {{"launch_us", 0.5},
                               {"memory_GBps", 0.3},
                               {"wave_blend", 0.2},
                               {"tile_us", 0.3},
                               {"power_loss", 0.3},
                               {"split_us", 0.3},
                               {"tile_tflops/256x128", 0.1, 0},
                               {"tile_tflops/128x128", 0.1, 0},
                               {"tile_tflops/128x64", 0.1, 0},
                               {"tile_tflops/64x64", 0.1, 0},
                               {"tile_tflops/64x16", 0.1, 0}}};
  return form;
}
const MovedForm& attention_form() {
  static const MovedForm form{{{"work", 0.3}},
                              {{"launch_us", 0.5},
                               {"tile_us", 0.2, 0},
                               {"tile_us_per_128", 0.2, 0},
                               {"block_us", 0.1, 0},
                               {"block_us_per_128", 0.1, 0},
                               {"block_us_per_128_above", 0.2, 0},
                               {"diagonal_blocks", 0.3},
                               {"imbalance_power", 0.2},
                               {"memory_GBps", 0.3}}};
  return form;
}
const MovedForm& elementwise_form() {
  static const MovedForm form{
      {}, {{"launch_us", 0.5}, {"memory_GBps", 0.3}, {"cache_GBps", 0.3}, {"cache_MB", 0.3}}};
  return form;
}

class ProfileAdapter {
 public:
  ProfileAdapter(const Profile& base, const AdaptOptions& options, const SampleSet& samples, Notes& notes)
      : base_(base), options_(options), samples_(samples), notes_(notes), made_(base.json()) {}

  json adapt() {
    mark_borrowed(made_["tables"]);
    adapt_nodes();
    adapt_network();
    adapt_gemm();
    adapt_attention();
    choose_attention();
    adapt_elementwise();
    if (!samples_.exchange.empty())
      skip("exchanges_skipped", samples_.exchange.size(), "exchanges between experts");
    if (adapted_.empty()) return nullptr;
    made_["name"] = options_.name;
    made_["summary"] = "from " + base_.name() + ", calibrated by samples of " + options_.date +
                       (options_.measured_on.empty() ? "" : " (" + options_.measured_on + ")") + ": " +
                       joined(adapted_);
    for (const char* key : {"checks", "software", "samples"}) made_.erase(key);
    return made_;
  }

 private:
  void mark_borrowed(json& node) const {
    if (!node.is_object()) return;
    if (node.contains("parameters")) {
      node["provenance"]["borrowed_from"] = base_.name();
      return;
    }
    for (json& child : node) mark_borrowed(child);
  }

  // The base's table at a path such as "collective/node/all_gather"; null if it has none.
  [[nodiscard]] const json* table_of(const std::string& path) const {
    const json::json_pointer pointer("/tables/" + path);
    return base_.json().contains(pointer) ? &base_.json().at(pointer) : nullptr;
  }

  void skip(const char* kind, std::size_t count, const std::string& of) {
    notes_.push_back({kind, of, {{"samples", count}, {"base", base_.name()}}});
  }

  // Adapts the base's table `from` and puts it at `path`. `key`: a parameter that the table's form must have.
  void put(const std::string& path, const std::string& from, const char* key, const MovedForm& form,
           const TableSamples& samples, const std::function<Predictor(const json&)>& by_table) {
    const json& base = *table_of(from);
    if (!base.contains("parameters") || !base["parameters"].contains(key))
      return skip("cpu_table_skipped", samples.shapes.size(), path);
    refuse_above_peak(path, samples);
    json table = adapted_table(base, form, samples, by_table);
    const json was = base.value("provenance", json::object());
    std::set<std::string> files;
    for (const Labels* labels : samples.times.labels)
      if (const auto it = labels->find("source"); it != labels->end()) files.insert(it->second);
    const std::size_t count = samples.shapes.size();
    table["provenance"] = {{"kind", "calibrated"},
                           {"samples", count},
                           {"date", options_.date},
                           {"borrowed_from", base_.name()},
                           {"borrowed_table", from},
                           {"borrowed_kind", was.value("kind", std::string())},
                           {"source", std::to_string(count) + " samples of " + options_.date +
                                          " moved what was borrowed from " + base_.name() + " " + from}};
    if (!files.empty()) table["provenance"]["files"] = files;
    table["provenance"]["borrowed_source"] = was.value("source", json());
    note(path, table);
    made_["tables"][json::json_pointer("/" + path)] = std::move(table);
    adapted_.push_back(path);
  }

  // A rate above the device's peak by more than its clock explains means times in another unit, or another
  // machine.
  void refuse_above_peak(const std::string& path, const TableSamples& samples) const {
    for (std::size_t i = 0; i < samples.work.size() && samples.peak > 0; ++i) {
      const double rate = samples.work[i] / samples.times.seconds[i];
      if (rate <= 1.3 * samples.peak) continue;
      const auto source = samples.times.labels[i]->find("source");
      throw UserError((source == samples.times.labels[i]->end() ? "" : source->second + ": ") + path +
                      ", shape " + all_joined(samples.shapes[i], " ", short_number) + ": found " +
                      short_number(1e6 * samples.times.seconds[i]) + " us, " + fixed(rate / samples.peak, 1) +
                      " times the " + short_number(samples.peak) + samples.unit + base_.device().name +
                      "; expected at most 1.3 times that: are they in us (time_ms of a table: ms)?");
    }
  }

  void note(const std::string& path, const json& table) {
    notes_.push_back({"samples_of_table",
                      path,
                      {{"samples", table["provenance"]["samples"].get<std::size_t>()},
                       {"error", table["base_error"]["median"].get<double>()}}});
    const double share = 1 + table["base_error"]["bias"].get<double>();
    if (share < 0.02 || share > 50)  // no two machines differ so much
      notes_.push_back({"unlikely_unit", path, {{"base", base_.name()}, {"percent", 100 * share}}});
  }

  // Calls `adapt(path, samples)` for each of the tables in `folder` that the base has, and skips the others.
  template <class Samples, class Adapt>
  void each_table(const std::string& folder, const std::map<std::string, Samples>& tables,
                  const Adapt& adapt) {
    for (const auto& [name, samples] : tables) {
      const std::string path = folder + name;
      if (table_of(path) == nullptr)
        skip("no_such_table", samples.size(), path);
      else
        adapt(path, samples);
    }
  }

  struct Collectives {
    TableSamples samples;
    std::vector<const CollectiveSample*> list;
    CoveredTransfers covered;

    [[nodiscard]] std::size_t size() const { return list.size(); }
    void add(const CollectiveSample& sample) {
      list.push_back(&sample);
      const double groups = static_cast<double>(sample.group.ranks) / sample.group.ranks_per_node;
      samples.shapes.push_back(
          {static_cast<double>(sample.kind), sample.bytes, static_cast<double>(sample.group.ranks), groups});
      samples.times.add(sample.labels, sample.seconds);
      covered.add(sample.bytes, groups);
      samples.work.push_back(1e-9 * (groups > 1
                                         ? nic_bytes(sample.kind, sample.bytes, sample.group)
                                         : sample.bytes * bus_factor(sample.kind, sample.group.ranks)));
    }
    // The samples of a table, once all are added. If it has several kinds, errors are also stated by kind.
    [[nodiscard]] TableSamples of_table(double least_nodes, double peak, const char* unit) const {
      TableSamples all = samples;
      all.peak = peak;
      all.unit = unit;
      all.ranges = covered.ranges(least_nodes);
      all.groups = {covered.large, covered.small};
      if (std::ranges::all_of(list, [&](const auto* one) { return one->kind == list[0]->kind; })) return all;
      for (std::size_t kind = 0; kind < kCollectiveNames.size(); ++kind)
        for (const ErrorGroup& size : {covered.large, covered.small}) {
          ErrorGroup group{std::string(kCollectiveNames[kind]) + " " + size.name, size.holds};
          for (std::size_t i = 0; i < list.size(); ++i)
            if (at(list[i]->kind) != kind) group.holds[i] = false;
          all.groups.push_back(std::move(group));
        }
      return all;
    }
  };

  void adapt_nodes() {
    std::map<std::string, Collectives> kinds;
    for (const CollectiveSample& sample : samples_.collective)
      if (!sample.between_nodes()) kinds[std::string(name_of(sample.kind))].add(sample);
    each_table("collective/node/", kinds, [this](const std::string& path, const Collectives& all) {
      put(path, path, "bus_GBps", node_form(), all.of_table(0, base_.device().nvlink_GBps, " GB/s of "),
          [&list = all.list, path](const json& table) -> Predictor {
            return [&list, fit = node_parameters(table, path)](std::size_t i) {
              return node_seconds(fit, list[i]->kind, list[i]->bytes, list[i]->group.ranks);
            };
          });
    });
  }

  void adapt_network() {
    Collectives all;
    bool all_to_all = false;
    for (const CollectiveSample& sample : samples_.collective) {
      if (!sample.between_nodes()) continue;
      all.add(sample);
      all_to_all = all_to_all || sample.kind == Collective::all_to_all;
    }
    if (all.list.empty()) return;
    const json* networks = table_of("collective/networks");
    if (networks == nullptr) return skip("no_network_of_base", all.list.size(), "groups between nodes");
    const std::string from =
        options_.base_network.empty()
            ? text_field(*table_of("collective"), "default_network", base_.name() + ".collective")
            : options_.base_network;
    if (!networks->contains(from)) {
      const std::vector<std::string> known = keys_of(*networks);
      throw UserError("--base-network: expected one of " + base_.name() + "'s (" + joined(known) +
                      "), found \"" + from + "\"" + did_you_mean(from, known));
    }
    const double nic = options_.nic_GBps > 0 ? options_.nic_GBps : base_.device().nic_GBps;
    if (!(nic > 0))
      throw UserError("--nic-GBps: needed, since " + base_.name() + " does not say what a GPU's NIC carries");
    std::array<NodeParameters, kCollectiveNames.size()> node;
    for (std::size_t i = 0; i < node.size(); ++i) {
      const std::string path = "/tables/collective/node/" + std::string(kCollectiveNames[i]);
      node[i] = node_parameters(made_.at(json::json_pointer(path)), path);
    }
    const std::string name = options_.network.empty() ? "measured" : options_.network;
    const auto network = [](const std::string& of) {
      return "collective/networks" + (json::json_pointer() / of).to_string();
    };
    const std::string path = network(name);
    put(path, network(from), "efficiency", network_form(), all.of_table(2, nic, " GB/s (--nic-GBps) of "),
        [&, path](const json& table) -> Predictor {
          return [&, fit = network_parameters(table, path)](std::size_t i) {
            const CollectiveSample& sample = *all.list[i];
            return network_seconds(fit, node[at(sample.kind)], sample.kind, sample.bytes, sample.group, nic);
          };
        });
    json& collective = made_["tables"]["collective"];
    collective["networks"][name]["fitted_at_nic_GBps"] = nic;
    // Where all-to-alls were measured, the samples price them instead of the base's exchange.
    if (all_to_all) collective["networks"][name].erase("all_to_all");
    collective["default_network"] = name;
    if (options_.nic_GBps > 0) {
      made_["device"]["nic_GBps"] = nic;
      made_["device"]["sources"]["nic_GBps"] = "as given to fit";
    } else {
      notes_.push_back({"nic_of_base", path, {{"GBps", nic}, {"base", base_.name()}}});
    }
  }

  void adapt_gemm() {
    std::map<std::string, std::vector<const GemmSample*>> tables;
    for (const GemmSample& sample : samples_.gemm) tables[gemm_table_of(sample.labels)].push_back(&sample);
    each_table("gemm/", tables, [this](const std::string& path, const std::vector<const GemmSample*>& list) {
      TableSamples samples;
      CoveredProducts covered;
      samples.peak =
          path.starts_with("gemm/fp8") ? base_.device().peak_fp8_tflops : base_.device().peak_bf16_tflops;
      for (const GemmSample* sample : list) {
        samples.shapes.push_back(
            {static_cast<double>(sample->n), static_cast<double>(sample->k), static_cast<double>(sample->m)});
        samples.times.add(sample->labels, sample->seconds);
        const std::vector<double>& nkm = samples.shapes.back();
        samples.work.push_back(2e-12 * nkm[0] * nkm[1] * nkm[2] * static_cast<double>(sample->groups));
        covered.add(*sample);
      }
      samples.ranges = covered.ranges();
      const double sms = base_.device().sms;
      put(path, path, "tile_tflops", gemm_form(), samples,
          [&list = list, path, sms](const json& table) -> Predictor {
            return [&list, form = GemmForm(gemm_parameters(table, path), sms)](std::size_t i) {
              return gemm_seconds(form, list[i]->m, list[i]->n, list[i]->k, list[i]->groups);
            };
          });
    });
  }

  void adapt_attention() {
    std::map<std::string, std::vector<const AttentionSample*>> tables;  // by kernel and pass
    for (const AttentionSample& one : samples_.attention)
      tables[(json::json_pointer() / label(one.labels, "kernel") / one.pass).to_string()].push_back(&one);
    each_table(
        "attention/kernels", tables,
        [this](const std::string& path, const std::vector<const AttentionSample*>& list) {
          TableSamples samples;
          CoveredAttention covered;
          std::vector<std::vector<AttentionWork>> works;
          const bool fp8 = path.find("fp8") != std::string::npos;
          samples.peak = fp8 ? base_.device().peak_fp8_tflops : base_.device().peak_bf16_tflops;
          const DocumentMask apart = document_mask(*table_of(path), path);
          for (const AttentionSample* sample : list) {
            samples.shapes.push_back(sample->shape);
            samples.times.add(sample->labels, sample->seconds[0]);
            samples.work.push_back(1e-12 * attention_flops(*sample, sample->packings[0]));
            works.push_back({attention_work(sample->mask, apart, sample->packings[0], sample->counted())});
            covered.add(*sample);
          }
          samples.ranges = covered.ranges();
          const double sms = base_.device().sms;
          put(path, path, "block_us_per_128", attention_form(), samples,
              [&, path, sms](const json& table) -> Predictor {
                return [&, fit = attention_parameters(table, path), sms](std::size_t i) {
                  return attention_seconds(fit, list[i]->heads, sms, works[i][0]);
                };
              });
        });
  }

  // A trace has the kernel that its job runs. Like a measured network, such a kernel becomes the default if
  // it is the only one and the samples cover all of its passes.
  void choose_attention() {
    json& attention = made_["tables"]["attention"];
    std::vector<std::string> measured;
    bool whole = false;  // whether the samples cover all passes of the last of them
    for (const auto& [kernel, passes] : attention["kernels"].items()) {
      std::ptrdiff_t own = 0;
      for (const auto& pass : passes.items())
        own += std::ranges::count(
            adapted_, "attention/kernels" + (json::json_pointer() / kernel / pass.key()).to_string());
      if (own == 0) continue;
      measured.push_back(kernel);
      whole = own == std::ssize(passes) && passes.contains("backward");
    }
    const std::string was = attention.value("default", std::string());
    if (measured.empty() || std::ranges::count(measured, was) > 0) return;
    const bool takes_it = measured.size() == 1 && whole;
    if (takes_it) attention["default"] = measured.front();
    notes_.push_back({takes_it ? "attention_kernel_taken" : "attention_kernel_stays",
                      "attention",
                      {{"measured", joined(measured)}, {"base", base_.name()}, {"default", was}}});
  }

  void adapt_elementwise() {
    std::map<std::string, std::vector<const ElementwiseSample*>> tables;
    for (const ElementwiseSample& sample : samples_.elementwise) {
      const std::string op = label(sample.labels, "op");
      const bool backward = label(sample.labels, "pass") == "backward";
      if (!op.empty()) tables[op + std::string(backward ? kernels::kBackwardSuffix : "")].push_back(&sample);
    }
    each_table("elementwise/", tables,
               [this](const std::string& path, const std::vector<const ElementwiseSample*>& list) {
                 TableSamples samples;
                 Covered bytes;
                 for (const ElementwiseSample* sample : list) {
                   samples.shapes.push_back({sample->bytes});
                   samples.times.add(sample->labels, sample->seconds);
                   bytes.add(sample->bytes);
                 }
                 samples.ranges = elementwise_ranges(bytes);
                 put(path, path, "memory_GBps", elementwise_form(), samples,
                     [&list = list, path](const json& table) -> Predictor {
                       return [&list, fit = elementwise_parameters(table, path)](std::size_t i) {
                         return elementwise_seconds(fit, list[i]->bytes);
                       };
                     });
               });
  }

  const Profile& base_;
  const AdaptOptions& options_;
  const SampleSet& samples_;
  Notes& notes_;
  json made_;
  std::vector<std::string> adapted_;
};

}  // namespace

json adapt_profile(const Profile& base, const AdaptOptions& options, const SampleSet& samples, Notes& notes) {
  return ProfileAdapter(base, options, samples, notes).adapt();
}

}  // namespace equipoise

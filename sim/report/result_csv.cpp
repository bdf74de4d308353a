#include "sim/report/result_csv.h"

#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "policies/base/csv.h"
#include "policies/base/index.h"
#include "sim/cost/check_layout.h"
#include "sim/report/summary_json.h"
#include "sim/topology/rank_grid.h"

namespace equipoise {

using nlohmann::json;

std::string summary_csv(const Study& study, const StudyResult& result) {
  const json summary = summary_json(study, result);
  std::ostringstream out;
  bool header = false;
  for (const json& p : summary["policies"]) {
    if (!header) {
      out << "policy,status,framework";
      for (const auto& [key, value] : p["metrics"].items())
        if (!value.is_object()) out << ',' << key;
      out << ",runs_in,reason\n";
      header = true;
    }
    out << csv_cell(p["name"].get<std::string>()) << ',' << p["status"].get<std::string>() << ','
        << csv_cell(study.framework.preset.name);
    for (const auto& [key, value] : p["metrics"].items())
      if (!value.is_object()) out << ',' << (value.is_null() ? "" : value.dump());
    const json &runs_in = p["runs_in"], &reason = p["reason"];
    out << ',' << (runs_in.is_null() ? "" : runs_in.get<std::string>());
    out << ',' << (reason.is_null() ? "" : csv_cell(reason.get<std::string>())) << '\n';
  }
  return out.str();
}

std::string steps_csv(const StudyResult& result) {
  std::ostringstream out;
  out.precision(12);
  out << "policy,step,tail,tokens,step_seconds,pipeline_seconds,optimizer_seconds,exposed_gradient_seconds,"
         "bubble_ratio,cp_imbalance,peak_memory_bytes\n";
  for (const PolicyResult& p : result.policies)
    for (std::size_t i = 0; i < p.steps.size() && p.simulated(); ++i) {
      const WorkSums& work = p.steps[i].work;
      const TimeSums& times = p.steps[i].times;
      out << csv_cell(p.run.label) << ',' << i << ',' << (p.steps[i].plan.tail ? 1 : 0) << ',' << work.tokens
          << ',' << json(to_seconds(times.makespan)).dump() << ',' << to_seconds(times.pipeline) << ','
          << to_seconds(times.optimizer) << ',' << to_seconds(times.gradient_wait) << ','
          << times.losses.bubble_ratio << ',' << times.cp_imbalance << ',' << work.peak.parts.total() << '\n';
    }
  return out.str();
}

std::string gpus_csv(const StudyResult& result) {
  std::ostringstream out;
  out.precision(12);
  out << "policy,gpu,node,dp,pp,cp,tp,compute_seconds,relative_to_mean\n";
  for (const PolicyResult& p : result.policies) {
    if (p.gpu_compute.empty() || !p.simulated()) continue;
    const Layout& l = p.layout;
    const RankGrid grid(l.order, parallel_sizes(l), p.gpus_per_node);
    const double mean = std::accumulate(p.gpu_compute.begin(), p.gpu_compute.end(), 0.0) /
                        static_cast<double>(p.gpu_compute.size());
    std::vector<double> seconds(static_cast<std::size_t>(grid.gpus()));
    const auto replicas = static_cast<std::size_t>(l.data * l.context);
    const auto tensor = static_cast<std::size_t>(p.gpu_tensor);
    for (int s = 0; s < l.pipeline; ++s)
      for (int t = 0; t < l.tensor; ++t) {
        const std::vector<int> group = grid.data_context_group(grid.gpu({t, 0, 0, s}));
        for (std::size_t r = 0; r < replicas; ++r)
          seconds[at(group[r])] = p.gpu_compute[(static_cast<std::size_t>(s) * replicas + r) * tensor +
                                                (tensor > 1 ? static_cast<std::size_t>(t) : 0)];
      }
    for (int gpu = 0; gpu < grid.gpus(); ++gpu) {
      const RankCoordinates place = grid.coordinates(gpu);
      const double own = seconds[at(gpu)];
      out << csv_cell(p.run.label) << ',' << gpu << ',' << grid.node(gpu) << ',' << place.data << ','
          << place.pipeline << ',' << place.context << ',' << place.tensor << ',' << own << ','
          << (mean > 0 ? own / mean : 0) << '\n';
    }
  }
  return out.str();
}

}  // namespace equipoise

#include "sim/cli/job.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "profiler/profile/profile.h"
#include "sim/cli/commands.h"
#include "sim/framework/framework_runs.h"
#include "sim/study/models.h"
#include "sim/study/study_inputs.h"
#include "sim/tune/candidate_text.h"
#include "sim/tune/proposed_layout.h"
#include "sim/workload/model.h"
#include "traces/synth.h"

namespace equipoise {
namespace {

using nlohmann::json;

constexpr std::int64_t kTokensPerStep = std::int64_t{4}
                                        << 20;  // tokens in a global batch, as in published pre-training
constexpr std::int64_t kMostSteps = 24, kFewestSteps = 8;
constexpr std::string_view kDefaultTrace = "mixed";
constexpr const char* kDefaultPolicies[] = {"wlb-llm", "chunkflow", "hbp", "skrull", "equipoise"};

json model_of(const std::string& model) {
  if (std::filesystem::is_regular_file(model)) return {{"hf_config", model}};
  return builtin_model(model).name;
}

// A shipped trace by its name, with or without its folder.
std::optional<std::string> shipped_trace(const std::string& name) {
  const std::string file = std::filesystem::path(name).filename().string();
  const auto path = shipped_path("traces/recorded", EQUIPOISE_RECORDED_TRACES) /
                    (file.ends_with(".zst") ? file : file + ".txt.zst");
  return std::filesystem::is_regular_file(path) ? std::optional(path.string()) : std::nullopt;
}

json trace_of(const std::string& trace) {
  if (std::filesystem::is_regular_file(trace)) return {{"file", trace}};
  if (const auto known = std::ranges::find(distributions(), trace, &Distribution::name);
      known != distributions().end())
    return {{"distribution", trace}};
  if (const auto shipped = shipped_trace(trace.empty() ? std::string(kDefaultTrace) : trace))
    return {{"file", *shipped}};
  throw UserError(
      "--trace: expected a file, a shipped trace or a distribution (`equipoise list traces`), found ",
      printable(trace));
}

// Windows in a global batch: no more than make so many tokens, at least one for every eight GPUs, and a
// number that divides evenly among many numbers of replicas.
std::int64_t windows_per_step(std::int64_t window, std::int64_t gpus, std::int64_t tokens = kTokensPerStep) {
  constexpr std::int64_t kGpusOfWindow = 8, kMostWindows = 4096;
  const std::int64_t odd = gpus >> std::countr_zero(static_cast<std::uint64_t>(gpus));
  const std::int64_t wanted =
      std::max({std::int64_t{1}, std::min(tokens / window, kMostWindows), gpus / kGpusOfWindow});
  return odd * static_cast<std::int64_t>(
                   std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(1, wanted / odd))));
}

// What the framework packs and cuts of itself, and a policy of each paper.
json default_policies(const std::string& framework) {
  json policies = json::array({"plain-4d"});
  if (const FrameworkRuns* runs = framework_runs(framework))
    policies.front() = {{"name", first_of(runs->packs)}, {"shard", first_of(runs->shards)}};
  for (const char* name : kDefaultPolicies) policies.push_back(name);
  return policies;
}

// Megatron launches layers with experts from PyTorch, unless CUDA graphs hold them whole.
std::string framework_of(const JobOptions& job, json file) {
  if (!job.framework.empty()) return job.framework;
  file["policies"] = {"plain-4d"};
  return parse_study(file, kJobName).model.moe ? "megatron-eager" : std::string(kDefaultFramework);
}

// As many steps as the documents fill. Where they are few, a step has fewer windows, down to one for each
// eight GPUs, and then they are read again.
void set_steps(json& file, std::int64_t gpus) {
  if (!file["trace"].contains("file")) return;
  json one = file;
  one["batch"]["steps"] = 1;
  one["trace"]["repeat"] = true;
  const Trace trace = load_trace(parse_study(one, kJobName));
  const auto tokens = std::accumulate(trace.lengths.begin(), trace.lengths.end(), std::int64_t{0});
  const auto window = file["batch"]["context_window"].get<std::int64_t>();
  const std::int64_t windows =
      windows_per_step(window, gpus, std::min(kTokensPerStep, tokens / kFewestSteps));
  const std::int64_t steps = tokens / (window * windows);
  file["batch"]["sequences_per_step"] = windows;
  file["batch"]["steps"] = std::clamp(steps, kFewestSteps, kMostSteps);
  if (steps < kFewestSteps) file["trace"]["repeat"] = true;
}

Note fitting_note(const ProposedLayout& found, std::int64_t gpus) {
  return {"job_fits",
          "",
          {{"gpus", gpus},
           {"layout", layout_text(found.layout) + ", recompute " + recompute_text(found.layout)},
           {"free_GiB", found.free_bytes / kGiB},
           {"simulated", found.simulated}}};
}

// Finds the number of GPUs on which the job fits, by doubling.
Note too_large_note(const json& file, std::int64_t gpus, const RunStudyOptions& options) {
  constexpr int kDoublings = 5;
  std::int64_t more = gpus;
  for (int i = 0; i < kDoublings; ++i) {
    more *= 2;
    json tried = file;
    tried["batch"]["sequences_per_step"] = windows_per_step(file["batch"]["context_window"], more);
    if (proposed_layout(tried, more, options)) return {"job_fits_from", "", {{"gpus", gpus}, {"more", more}}};
  }
  return {"job_fits_nowhere", "", {{"gpus", gpus}, {"more", more}}};
}

}  // namespace

std::string profile_of(const std::string& gpu) {
  const std::vector<std::string> names = shipped_profiles();
  if (gpu.ends_with(".json") || std::ranges::find(names, gpu) != names.end()) return gpu;
  auto found = std::ranges::find(names, gpu + "-sxm");  // the variant that most clusters have
  if (found == names.end())
    found = std::ranges::find_if(names, [&](const std::string& name) { return name.starts_with(gpu + "-"); });
  if (found == names.end())
    throw UserError("--gpu: expected a profile, or how its name begins, one of ", joined(names), ", found ",
                    printable(gpu));
  return *found;
}

Note assumed_of(const JobOptions& job, std::span<const std::string> assignments, const json& file) {
  const Study study = parse_case(file, kJobName);
  const Profile profile = Profile::load(study.cluster.profile);
  Notes parts;
  // Unless an assignment is to the key, to an object that has it, or to a key inside it.
  const auto add = [&](const std::string& key, Note part) {
    const auto says = [&](const std::string& assignment) {
      const std::string said = assignment.substr(0, assignment.find('='));
      return (said + '.').starts_with(key + '.') || (key + '.').starts_with(said + '.');
    };
    if (std::ranges::none_of(assignments, says)) parts.push_back(std::move(part));
  };
  const auto sequences = study.batch.sequences_per_step, window = study.batch.context_window;
  if (job.trace.empty()) add("trace", {"trace_assumed", "", {{"trace", std::string(kDefaultTrace)}}});
  add("batch.sequences_per_step", {"sequences_assumed", "", {{"sequences", sequences}}});
  if (job.window.empty()) add("batch.context_window", {"window_assumed", "", {{"window", window}}});
  if (job.framework.empty())
    add("framework", {"framework_assumed", "", {{"framework", study.framework.preset.name}}});
  add("parallel.zero", {"zero_assumed", "", {{"zero", study.layout.zero}}});
  add("precision",
      {"precision_assumed", "", {{"precision", std::string(kPrecisionNames[at(study.layout.precision)])}}});
  if (const double nic = nic_GBps(study.cluster, profile);
      nic > 0 && study.layout.gpus() > gpus_per_node(study.cluster, profile))
    add("cluster.network.nic_GBps", {"network_assumed", "", {{"GBps", nic}}});
  const Training& training = study.model.training;
  if (training.frozen == 0 && training.frozen_layers == 0) add("frozen", {"weights_assumed", "", {}});
  return {"job_assumes", "", {{"parts", parts}}};
}

std::vector<std::string> words_of(const JobOptions& job) {
  const JobOptions usual;
  std::vector<std::string> words;
  const auto add = [&](const char* option, const std::string& value, const std::string& if_not) {
    if (value != if_not) words.insert(words.end(), {option, value});
  };
  add("--model", job.model, usual.model);
  add("--gpus", job.gpus > 0 ? std::to_string(job.gpus) : "", "");
  add("--gpu", job.gpu, usual.gpu);
  add("--trace", job.trace, usual.trace);
  add("--window", job.window, usual.window);
  add("--framework", job.framework, usual.framework);
  add("--policies", all_joined(job.policies, ","), "");
  return words;
}

JobStudy study_of_job(const JobOptions& job, const RunStudyOptions& options) {
  if (job.gpus < 1) throw UserError("--gpus: expected how many GPUs the job has, with --model; found none");
  const std::int64_t window = parse_length(job.window.empty() ? kDefaultWindow : job.window, "--window");
  JobStudy made;
  json& file = made.file;
  file["trace"] = trace_of(job.trace);
  file["model"] = model_of(job.model);
  file["cluster"] = {{"profile", profile_of(job.gpu)}};
  file["name"] = concatenated(job.model, ", ", short_tokens(window), " window, ", job.gpus, " GPUs");
  file["batch"] = {{"context_window", window},
                   {"sequences_per_step", windows_per_step(window, job.gpus)},
                   {"steps", kMostSteps}};
  const std::string framework = framework_of(job, file);
  file["framework"] = framework;
  file["policies"] = job.policies.empty() ? default_policies(framework) : json(job.policies);
  set_steps(file, job.gpus);
  const auto found = proposed_layout(file, job.gpus, options);
  made.has_layout = found.has_value();
  if (found) file["parallel"] = found->parallel;
  made.fits = found ? fitting_note(*found, job.gpus) : too_large_note(file, job.gpus, options);
  return made;
}

}  // namespace equipoise

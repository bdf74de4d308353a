#include "sim/cli/own_profile.h"

#include <atomic>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/row_ops.h"
#include "policies/base/error.h"
#include "policies/base/names.h"
#include "profiler/profile/json_fields.h"
#include "sim/cli/command_fit.h"
#include "sim/cli/command_profile.h"
#include "sim/execution/launch.h"

namespace equipoise {

std::unique_ptr<kernels::Backend> backend_of(const std::string& device) {
  for (const kernels::BackendKind& kind : kernels::kBackends) {
    std::string reason;
    if (kind.name == device)
      if (auto backend = kind.make(reason)) return backend;
  }
  return nullptr;  // the ranks say why
}

namespace {

// Names of the row ops that every simulation asks for and the profile has no table of.
std::string missing_tables(const Profile& profile) {
  const nlohmann::json none = nlohmann::json::object();
  const nlohmann::json& tables = profile.has_table("elementwise") ? profile.table("elementwise") : none;
  std::vector<std::string> missing;
  for (const kernels::ElementwiseKind& kind : kernels::kElementwise)
    if (kind.in_every_profile && !tables.contains(std::string(kind.name))) missing.emplace_back(kind.name);
  return joined(missing);
}

std::string too_short(double minutes, const std::string& why) {
  return "validate: --minutes " + short_number(minutes) +
         " of profiling were too short on this machine: " + why + "; give more minutes";
}

}  // namespace

bool covers(const Profile& profile, const kernels::Backend& backend) {
  return profile.device().name == backend.describe().name;
}

std::string profile_here(const std::string& device, double minutes, int ranks,
                         const std::filesystem::path& folder, std::ostream& log) {
  log << "the study's profile was measured on another device: measuring this one" << std::endl;
  const bool talks = ranks > 1 && device == "cpu" && !execution::under_launcher();
  FitCommandOptions fit;
  ProfileOptions profile;
  profile.session.device = device;
  profile.session.minutes = minutes * (talks ? 0.7 : 1.0);
  profile.session.out = (folder / "kernels.json").string();
  profile.session.quiet = true;
  const std::atomic<bool> stop{false};
  std::ostringstream report;
  if (run_profile(profile, report, log, stop) != 0)
    throw UserError("validate: a kernel of this device gives wrong results");
  fit.samples = {profile.session.out};
  if (talks) {
    fit.samples.push_back((folder / "collectives.json").string());
    std::ostringstream share;
    share << minutes * 0.3;
    if (execution::run_ranks(2, {"profile", "--device", device, "--minutes", share.str(), "--quiet", "--only",
                                 "collective", "--out", fit.samples.back()}) != 0)
      throw UserError("validate: collectives between two ranks could not be measured");
  }
  fit.out = (folder / "profile.json").string();
  try {
    fit_command(fit, report, report);
  } catch (const UserError& e) {
    throw UserError(too_short(minutes, e.what()));
  }
  if (const std::string missing = missing_tables(Profile::load(fit.out)); !missing.empty())
    throw UserError(too_short(minutes, "no times of " + missing));
  return fit.out;
}

}  // namespace equipoise

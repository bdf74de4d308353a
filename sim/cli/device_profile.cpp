#include "sim/cli/device_profile.h"

#include <unistd.h>

#include <atomic>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/row_ops.h"
#include "policies/base/error.h"
#include "policies/base/text.h"
#include "sim/cli/command_fit.h"
#include "sim/cli/command_profile.h"
#include "sim/execution/launch.h"
#include "traces/json_object.h"

namespace equipoise {
namespace {

// Names of the row ops that every simulation needs and the profile has no table of.
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

// Until it is destroyed, results that this process and its ranks print are shown as progress, because a
// command has one result on stdout.
class StdoutToStderr {
 public:
  StdoutToStderr() : stdout_((std::cout.flush(), ::dup(STDOUT_FILENO))) {
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
  }
  ~StdoutToStderr() {
    ::dup2(stdout_, STDOUT_FILENO);
    ::close(stdout_);
  }
  StdoutToStderr(const StdoutToStderr&) = delete;
  StdoutToStderr& operator=(const StdoutToStderr&) = delete;

 private:
  int stdout_;
};

}  // namespace

std::unique_ptr<kernels::Backend> backend_of(const std::string& device) {
  for (const kernels::BackendKind& kind : kernels::kBackends) {
    std::string reason;
    if (kind.name == device)
      if (auto backend = kind.make(reason)) return backend;
  }
  return nullptr;  // the ranks say why
}

bool covers(const Profile& profile, const kernels::Backend& backend) {
  return profile.device().name == backend.describe().name;
}

std::string profile_here(const std::string& device, double minutes, int ranks,
                         const std::filesystem::path& folder, std::ostream& log) {
  log << "the study's profile was measured on another device: measuring this one, at most "
      << short_number(minutes) << " minutes (--minutes)" << std::endl;
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
    const StdoutToStderr words_of_ranks;
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

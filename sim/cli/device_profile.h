// A profile of the device that runs here, measured before `validate` compares with it.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "profiler/profile/profile.h"

namespace equipoise {

// The kernels of the device; null if this machine has none.
std::unique_ptr<kernels::Backend> backend_of(const std::string& device);

// Whether the profile was measured on that device.
bool covers(const Profile& profile, const kernels::Backend& backend);

// Measures this device within the given minutes: first kernels alone, then collectives between two ranks, if
// the study has ranks that communicate. Returns the path of the fitted profile in `folder`. Throws UserError
// if a kernel is wrong or the minutes were too few.
std::string profile_here(const std::string& device, double minutes, int ranks,
                         const std::filesystem::path& folder, std::ostream& log);

}  // namespace equipoise

// A profile of this machine, made on the way where a study's is of another.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "profiler/profile/profile.h"

namespace equipoise {

// Null where there is no such device here.
std::unique_ptr<kernels::Backend> backend_of(const std::string& device);

// Whether the profile was measured on that device.
bool covers(const Profile& profile, const kernels::Backend& backend);

// Measures this device, within the minutes allowed: kernels alone, then collectives between two ranks, as the
// study has ranks to talk to each other. Returns the path of the fitted profile, in `folder`. Throws
// UserError.
std::string profile_here(const std::string& device, double minutes, int ranks,
                         const std::filesystem::path& folder, std::ostream& log);

}  // namespace equipoise

// Options of the commands about profiles: profile, fit, profiles and predict.
#pragma once

namespace CLI {
class App;
}

namespace equipoise {

// Adds the commands. Each stores its exit status in `status`.
void add_profile_commands(CLI::App& program, int& status);

}  // namespace equipoise

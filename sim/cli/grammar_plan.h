// Options of the commands about the parts of a study (pack, shard, schedule, trace) and of those that say
// what there is (list, explain, doctor).
#pragma once

namespace CLI {
class App;
}

namespace equipoise {

// Adds the commands. Each stores its exit status in `status`.
void add_plan_commands(CLI::App& program, int& status);

}  // namespace equipoise

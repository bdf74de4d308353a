// The command line's grammar: the one file pair that knows CLI11. Commands are functions over option structs.
#pragma once

namespace equipoise {

// Runs the program. Returns its exit status: 0 success, 1 a check failed, 2 wrong input, 3 internal fault.
int run_program(int argc, char** argv);

}  // namespace equipoise

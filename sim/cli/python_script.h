// Commands that are written in Python: the program becomes the interpreter that runs them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace equipoise {

struct PythonScript {
  const char* command;  // as typed: "trace record"
  const char* share;    // below share/equipoise of an installed program
  const char* source;   // in the source tree
};

// Python runs the script with these arguments, and its exit code is the program's. The interpreter is
// EQUIPOISE_PYTHON, else the one that traces/record_shipped.sh made, else python3. Returns only by throwing.
[[noreturn]] void become_python(const PythonScript& script, const std::vector<std::string>& arguments);

}  // namespace equipoise

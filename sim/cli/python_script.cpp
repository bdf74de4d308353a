#include "sim/cli/python_script.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "policies/base/error.h"
#include "profiler/profile/profile.h"

namespace equipoise {
namespace {

std::string python() {
  if (const char* chosen = std::getenv("EQUIPOISE_PYTHON"); chosen != nullptr && *chosen != '\0')
    return chosen;
  const std::filesystem::path made =
      EQUIPOISE_SOURCE "/build/record/venv/bin/python";  // made by traces/record_shipped.sh
  std::error_code ignored;
  return std::filesystem::exists(made, ignored) ? made.string() : "python3";
}

}  // namespace

void become_python(const PythonScript& script, const std::vector<std::string>& arguments) {
  const std::string program = python(), in_sources = std::string(EQUIPOISE_SOURCE "/") + script.source;
  std::vector<std::string> words = {program, shipped_path(script.share, in_sources.c_str()).string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execvp(program.c_str(), argv.data());
  throw UserError(std::string(script.command) + ": cannot run '" + program + "': " + std::strerror(errno) +
                  "; expected a Python 3 (set EQUIPOISE_PYTHON)");
}

}  // namespace equipoise

#include "sim/cli/command_import.h"

#include <string_view>
#include <vector>

#include "policies/base/text.h"
#include "sim/cli/job.h"
#include "sim/cli/python_script.h"

namespace equipoise {
namespace {

// The importer's frameworks (importing/__init__.py); a test compares the two lists.
constexpr std::string_view kFrameworks[] = {"megatron",  "bridge", "nemo",    "torchtitan",  "verl",
                                            "deepspeed", "trl",    "axolotl", "llamafactory"};
constexpr std::string_view kFormats[] = {"json", "table"};

}  // namespace

void import_command(const ImportOptions& options) {
  if (!options.framework.empty()) choice_of(options.framework, "--as", kFrameworks);
  choice_of(options.format, "--format", kFormats);
  std::vector<std::string> words;
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) words.push_back(std::string(option) + "=" + value);
  };
  add("--as", options.framework);
  if (options.gpus > 0) add("--gpus", std::to_string(options.gpus));
  if (!options.gpu.empty()) add("--gpu", profile_of(options.gpu));
  add("--model", options.model);
  add("--out", options.out);
  add("--format", options.format);
  if (options.quiet) words.emplace_back("--quiet");
  words.insert(words.end(), {"--", options.file});
  become_python({"import", "importing", "sim/python/equipoise/importing"}, words);
}

}  // namespace equipoise

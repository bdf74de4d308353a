#include "sim/validation/measured_log.h"

#include <algorithm>

#include "policies/base/error.h"
#include "policies/base/utf8.h"
#include "sim/validation/log_forms.h"
#include "traces/formats/formats.h"

namespace equipoise {
namespace {

std::string first_line(std::string_view text) {
  constexpr std::size_t kMost = 60;
  std::string_view line = text.substr(0, std::min(text.find_first_of("\r\n"), text.size()));
  const bool cut = line.size() > kMost;
  if (cut) line = line.substr(0, utf8_prefix(line.substr(0, kMost)));
  std::string quoted = "\"";
  quoted.append(printable(line)).append(cut ? "...\"" : "\"");
  return line.empty() ? "nothing" : quoted;
}

bool looks_like_csv(std::string_view text) {
  const std::string_view header = text.substr(0, std::min(text.find('\n'), text.size()));
  return header.find("step_seconds") != std::string_view::npos;
}

}  // namespace

MeasuredLog parse_measured_log(std::string_view bytes, const std::string& name) {
  const std::size_t start = bytes.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  const std::string_view text = start == std::string_view::npos ? std::string_view() : bytes.substr(start);
  MeasuredLog log;
  if (text.starts_with('{') || text.starts_with('['))
    // A Megatron-LM line may begin with a time in brackets.
    log = text.find(logs::kMegatronTime) != std::string_view::npos ? logs::read_megatron(text, name)
                                                                   : logs::read_chrome_trace(bytes, name);
  else if (text.find(logs::kMegatronTime) != std::string_view::npos)
    log = logs::read_megatron(text, name);
  else if (looks_like_csv(text))
    log = logs::read_csv(bytes, name);
  else
    throw UserError(
        name + ": expected a CSV with columns step and step_seconds, a Megatron-LM log (lines with \"" +
        std::string(logs::kMegatronTime) + "\") or a torch.profiler trace (JSON), found " + first_line(text));
  log.name = name;
  return log;
}

MeasuredLog read_measured_log(const std::string& path) {
  const std::string bytes = formats::read_file(path, "measured steps");
  const formats::Compression how = formats::compression_of(bytes);
  if (how == formats::Compression::none) return parse_measured_log(bytes, path);
  return parse_measured_log(formats::decompress(bytes, how, path), path);
}

}  // namespace equipoise

// Megatron-LM's description of mock fine-tuning lengths (--sft-mock-dataset-config-json), so that a mock run
// and its simulation can share one file:
//   {"mode": "distribution", "type": "lognormal", "min_seq_len": 1024, "max_seq_len": 8192, "mean_seq_len":
//   4096,
//    "lognormal_sigma": 1.1}          draws exp(ln(mean) - sigma^2 / 2 + sigma * z), clipped to [min, max]
//   {"mode": "file", "path": "x.csv"}   lengths from a file, relative to the JSON
// The distribution is Megatron's, the draws are ours: NumPy's generator is not repeated here.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "policies/base/random.h"
#include "traces/formats/formats.h"
#include "traces/json_text.h"
#include "traces/random_normal.h"

namespace equipoise::formats {
namespace {

using nlohmann::json;

constexpr double kUnit = 0x1p-53;

const json& member(const json& object, const char* key, const std::string& name) {
  const auto it = object.find(key);
  if (it == object.end()) throw UserError(name + ": " + key + ": expected a value, found nothing");
  return *it;
}

double number(const json& object, const char* key, double least, double most, const std::string& name) {
  const json& value = member(object, key, name);
  if (value.is_number() && value.get<double>() >= least && value.get<double>() <= most)
    return value.get<double>();
  const std::string found = value.is_structured() ? "an object or array"
                                                  : value.dump(-1, ' ', true, json::error_handler_t::replace);
  throw UserError(name + ": " + key + ": found " + found + "; expected a number from " + json(least).dump() +
                  " to " + json(most).dump());
}

std::string text(const json& object, const char* key, const std::string& allowed, const std::string& name) {
  const json& value = member(object, key, name);
  if (value.is_string()) return value.get<std::string>();
  throw UserError(name + ": " + key + ": expected " + allowed);
}

Lengths lognormal(const json& config, const std::string& name, const TraceReadOptions& options) {
  const auto most_allowed = static_cast<double>(kLongestDocument);
  const double least = std::floor(number(config, "min_seq_len", 1, most_allowed, name));
  const double most = std::floor(number(config, "max_seq_len", least, most_allowed, name));
  const double mean = number(config, "mean_seq_len", 1, most_allowed, name);
  const double sigma = number(config, "lognormal_sigma", 0, 20, name);
  const double mu = std::log(mean) - sigma * sigma / 2;
  SplitMix64 random(options.seed);
  Lengths lengths(static_cast<std::size_t>(std::max<std::int64_t>(options.documents, 0)));
  for (std::int64_t& length : lengths) {
    const double share = (static_cast<double>(random.next() >> 11) + 0.5) * kUnit;
    length =
        static_cast<std::int64_t>(std::clamp(std::exp(mu + sigma * normal_quantile(share)), least, most));
  }
  return lengths;
}

}  // namespace

Lengths read_megatron_mock(std::string_view bytes, const std::string& name, const TraceReadOptions& options) {
  const json config = parse_json(bytes, name);
  if (!config.is_object())
    throw UserError(name +
                    ": expected Megatron-LM's mock lengths, an object with \"mode\"; found no JSON object");
  const std::string mode = text(config, "mode", "\"distribution\" or \"file\"", name);
  if (mode == "distribution") {
    const std::string type = text(config, "type", "\"lognormal\"", name);
    if (type != "lognormal")
      throw UserError(name + ": type: found " + shown(type) + "; expected \"lognormal\"");
    return lognormal(config, name, options);
  }
  if (mode != "file")
    throw UserError(name + ": mode: found " + shown(mode) + "; expected \"distribution\" or \"file\"");
  const std::string path = text(config, "path", "a file name", name);
  const std::size_t slash = name.rfind('/');
  const bool relative = path.substr(0, 1) != "/" && slash != std::string::npos;
  TraceReadOptions inner = options;
  inner.format = TraceFormat::automatic;
  const std::string target = relative ? name.substr(0, slash + 1) + path : path;
  if (path.size() >= 5 && path.substr(path.size() - 5) == ".json")
    throw UserError(name + ": path: found " + shown(path) +
                    "; expected a file of lengths, not another description");
  return read_trace(target, inner).lengths;
}

}  // namespace equipoise::formats

#include "profiler/profile/profile.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "traces/json_object.h"

namespace equipoise {

constexpr ShippedFiles kProfiles{"profile", "EQUIPOISE_PROFILES", "profiles", EQUIPOISE_PROFILE_DIR,
                                 "the path of a .json file"};

static DeviceFacts facts_of(const nlohmann::json& file, const std::string& origin) {
  const std::string where = origin + ": device";
  const nlohmann::json& node = object_field(file, "device", origin + ": file");
  refuse_unknown_keys(node,
                      {"name", "memory_bytes", "memory_GBps", "peak_bf16_tflops", "peak_fp8_tflops", "sms",
                       "gpus_per_node", "nvlink_GBps", "nic_GBps", "launch_seconds", "seconds_per_launch",
                       "framework_seconds_per_op", "reserve_bytes", "element_bytes", "sources"},
                      where);
  DeviceFacts facts;
  facts.name = text_field(node, "name", where);
  facts.memory_bytes = positive_field(node, "memory_bytes", where);
  facts.memory_GBps = positive_field(node, "memory_GBps", where);
  facts.peak_bf16_tflops = positive_field(node, "peak_bf16_tflops", where);
  facts.peak_fp8_tflops = non_negative_field(node, "peak_fp8_tflops", where);
  facts.sms = static_cast<int>(positive_field(node, "sms", where));
  facts.gpus_per_node = static_cast<int>(positive_field(node, "gpus_per_node", where));
  facts.nvlink_GBps = non_negative_field(node, "nvlink_GBps", where);
  facts.nic_GBps = non_negative_field(node, "nic_GBps", where);
  facts.launch_seconds = non_negative_field(node, "launch_seconds", where);
  for (const char* key :
       {"framework_seconds_per_op", "seconds_per_launch"})  // older profiles have the first name
    if (node.contains(key)) facts.seconds_per_launch = non_negative_field(node, key, where);
  facts.reserve_bytes = non_negative_field(node, "reserve_bytes", where);
  if (node.contains("element_bytes")) facts.element_bytes = positive_field(node, "element_bytes", where);
  return facts;
}

static Interval interval_of(const nlohmann::json& range, const std::string& key, const std::string& where) {
  const auto it = range.find(key);
  const bool pair = it != range.end() && it->is_array() && it->size() == 2 && it->at(0).is_number() &&
                    it->at(1).is_number() && it->at(0).get<double>() <= it->at(1).get<double>();
  if (!pair) refuse_field(range, key, where, "[low, high] with low <= high");
  return {it->at(0).get<double>(), it->at(1).get<double>()};
}

struct Profile::Data {
  nlohmann::json file;
  std::string origin;
  std::string name;
  DeviceFacts device;
  std::mutex keeping;
  std::map<std::string, std::shared_ptr<const void>> kept;  // guarded by `keeping`
};

Profile Profile::load(std::string_view name_or_path) {
  const std::filesystem::path path = kProfiles.find(name_or_path);
  return Profile(read_json_file(path.string()), path.string());
}

Profile::Profile(const nlohmann::json& file, std::string origin) : data_(std::make_shared<Data>()) {
  data_->origin = std::move(origin);
  const std::string where = data_->origin + ": file";
  if (!file.is_object()) throw UserError(data_->origin + ": expected a JSON object");
  const std::string schema = text_field(file, "schema", where);
  if (schema != "equipoise.profile/1")
    throw UserError(where + ".schema: expected \"equipoise.profile/1\", found \"" + schema + "\"");
  refuse_unknown_keys(
      file, {"schema", "name", "summary", "device", "software", "power", "tables", "samples", "checks"},
      where);
  data_->name = text_field(file, "name", where);
  data_->device = facts_of(file, data_->origin);
  const nlohmann::json& tables = object_field(file, "tables", where);
  refuse_unknown_keys(tables, {kTableNames.begin(), kTableNames.end()}, where + ".tables");
  data_->file = file;
}

const DeviceFacts& Profile::device() const {
  return data_->device;
}
const std::string& Profile::name() const {
  return data_->name;
}
const std::string& Profile::origin() const {
  return data_->origin;
}
const nlohmann::json& Profile::json() const {
  return data_->file;
}

const nlohmann::json& Profile::table(std::string_view name) const {
  const nlohmann::json& tables = data_->file.at("tables");
  const auto it = tables.find(std::string(name));
  if (it == tables.end() || !it->is_object())
    throw UserError(data_->origin + ": this profile has no " + std::string(name) +
                    " table, which is needed here; it has: " + joined(keys_of(tables)));
  return *it;
}

std::shared_ptr<const void> Profile::kept(const std::string& key,
                                          const std::function<std::shared_ptr<const void>()>& make) const {
  const std::lock_guard lock(data_->keeping);
  const auto known = data_->kept.find(key);
  return known != data_->kept.end() ? known->second : data_->kept.emplace(key, make()).first->second;
}

bool Profile::has_table(std::string_view name) const {
  const nlohmann::json& tables = data_->file.at("tables");
  const auto it = tables.find(std::string(name));
  return it != tables.end() && it->is_object();
}

std::string unseen_fabric_errors(const nlohmann::json& network) {
  const auto unseen = network.find("unseen_fabrics");
  if (unseen == network.end() || !unseen->is_object()) return {};
  const auto median = unseen->find("median");
  const bool pair = median != unseen->end() && median->is_array() && median->size() == 2 &&
                    (*median)[0].is_number() && (*median)[1].is_number();
  if (!pair) return {};
  return short_number(100 * (*median)[0].get<double>()) + " to " +
         short_number(100 * (*median)[1].get<double>()) + " % at the median";
}

std::vector<std::string> shipped_profiles() {
  return kProfiles.names();
}

Validity validity_of(const nlohmann::json& table, const std::string& dimension, const std::string& where) {
  const nlohmann::json& ranges = object_field(table, "ranges", where);
  const std::string here = where + ".ranges." + dimension;
  const nlohmann::json& range = object_field(ranges, dimension, where + ".ranges");
  Validity validity{interval_of(range, "samples", here), interval_of(range, "allowed", here)};
  const auto provenance = table.find("provenance");
  validity.derived = provenance != table.end() && provenance->is_object() && provenance->contains("kind") &&
                     provenance->at("kind") == "derived";
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (validity.derived) validity.samples = {kInfinity, -kInfinity};
  return validity;
}

void refuse_out_of_range(const std::string& profile, const std::string& op, const std::string& dimension,
                         double found, const Interval& allowed) {
  throw UserError("profile " + profile + ": " + op + ": " + dimension + " = " + short_number(found) +
                  " is outside the range it is valid for, " + short_number(allowed.low) + " to " +
                  short_number(allowed.high));
}

// --- Files that come with the program.

namespace fs = std::filesystem;

// The program's path; empty if the system does not tell.
static fs::path program_folder() {
  std::error_code unreadable;
  return fs::read_symlink("/proc/self/exe", unreadable).parent_path();
}

static fs::path installed(const char* share) {
  const fs::path program = program_folder();
  return program.empty() ? fs::path() : program.parent_path() / "share/equipoise" / share;
}

// The folder of the program or shared library that holds this code; empty where the system does not say it. A
// program is known here by the word that started it. Without a folder, that word would mean the current
// directory, whose files nobody vouches for.
static fs::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) return {};
  const fs::path file = info.dli_fname;
  return file.has_parent_path() ? fs::absolute(file).parent_path() : program_folder();
}

fs::path shipped_path(const char* share, const char* source_tree) {
  std::error_code unreadable;
  if (const fs::path own = own_folder() / "share" / share; fs::exists(own, unreadable)) return own;
  fs::path path = installed(share);
  return !path.empty() && fs::exists(path, unreadable) ? path : fs::path(source_tree);
}

std::vector<fs::path> ShippedFiles::directories() const {
  std::vector<fs::path> found;
  if (const char* own = std::getenv(variable)) found.emplace_back(own);
  if (const fs::path own = own_folder(); !own.empty())
    found.push_back(own / "share" / share);  // a Python package keeps share/ next to its library
  if (fs::path path = installed(share); !path.empty()) found.push_back(std::move(path));
  found.emplace_back(source_tree);
  return found;
}

std::vector<std::string> ShippedFiles::names() const {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const fs::path& directory : directories())
    for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored))
      if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

fs::path ShippedFiles::find(std::string_view name_or_path) const {
  fs::path as_file{std::string(name_or_path)};
  std::error_code unreadable;  // a name that is too long for the file system names no file
  if (as_file.extension() == ".json" || name_or_path.find('/') != std::string_view::npos) {
    if (fs::is_regular_file(as_file, unreadable)) return as_file;
    throw UserError(as_file.string() + ": no such file of a " + kind);
  }
  for (const fs::path& directory : directories()) {
    fs::path candidate = directory / (std::string(name_or_path) + ".json");
    if (fs::is_regular_file(candidate, unreadable)) return candidate;
  }
  const std::vector<std::string> known = names();
  throw UserError(std::string("unknown ") + kind + " \"" + std::string(name_or_path) + "\"" +
                  did_you_mean(name_or_path, known) + " (known: " + joined(known) + ", or " + or_path + ")");
}

}  // namespace equipoise

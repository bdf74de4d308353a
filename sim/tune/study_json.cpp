#include "sim/tune/study_json.h"

#include <filesystem>

#include "policies/base/error.h"
#include "policies/base/utf8.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;

namespace {

bool is_path(const std::string& name) {
  return name.find('/') != std::string::npos || name.ends_with(".json");
}

void resolve(json& node, const char* key, const std::filesystem::path& directory) {
  if (!node.is_object() || !node.contains(key) || !node[key].is_string()) return;
  const std::string path =
      std::filesystem::absolute(directory / node[key].get<std::string>()).lexically_normal().string();
  if (!is_utf8(path))
    throw UserError(path + ": expected a path in UTF-8, which best.json can hold, found other bytes");
  node[key] = path;
}

// Names of what is shipped stay names.
void resolve_path(json& node, const char* key, const std::filesystem::path& directory) {
  if (node.is_object() && node.contains(key) && node[key].is_string() &&
      is_path(node[key].get<std::string>()))
    resolve(node, key, directory);
}

}  // namespace

void make_absolute(json& file, const Study& study) {
  const std::filesystem::path directory = study.directory;
  resolve(file["trace"], "file", directory);
  if (file["trace"].contains("mixture"))
    for (json& part : file["trace"]["mixture"]) resolve(part, "file", directory);
  resolve(file["model"], "hf_config", directory);
  resolve_path(file, "framework", directory);
  if (file.contains("framework")) resolve_path(file["framework"], "preset", directory);
  if (file.contains("cluster")) resolve_path(file["cluster"], "profile", "");  // from where the program runs
  for (json& row : file["policies"])
    if (row.is_object() && row.contains("file")) resolve(row, "file", directory);
  file["name"] = study.name;
  if (study.batch.documents_per_step == 0)
    file["batch"]["sequences_per_step"] = study.batch.sequences_per_step;
}

json absolute_study(const std::string& path, const std::vector<std::string>& set) {
  const Study study = read_study(path, set);
  json file = read_json_file(path);
  for (const std::string& assignment : set) set_study_key(file, assignment);
  make_absolute(file, study);
  return file;
}

}  // namespace equipoise

#include "sim/cli/command_fit.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include "policies/base/atomic_file.h"
#include "policies/base/error.h"
#include "profiler/fit/recipe.h"
#include "profiler/fit/samples.h"
#include "profiler/profile/json_fields.h"
#include "profiler/profile/profile.h"
#include "sim/cli/profile_tables.h"

namespace equipoise {
namespace {

// The parts that a profile takes over as they are.
void check_facts(const nlohmann::json& file, const std::string& path) {
  for (const char* part : {"device", "software", "checks"})
    if (file.contains(part)) object_field(file, part, path + ": file");
  if (file.contains("checks") && file["checks"].contains("summary"))
    object_field(file["checks"], "summary", path + ": checks");
  if (file.contains("device") && file["device"].contains("name"))
    text_field(file["device"], "name", path + ": device");
  if (file.contains("summary")) text_field(file, "summary", path + ": file");
}

// What several runs say of one device, e.g. one of its kernels and one of its collectives: a later file's
// facts win, except those that its run did not measure, which it writes as 0.
void add_facts(nlohmann::json& all, const nlohmann::json& file, const std::string& path) {
  if (all.is_null()) all = nlohmann::json::object();
  check_facts(file, path);
  if (all.contains("device") && file.contains("device") && all["device"].value("name", "") != "" &&
      file["device"].value("name", all["device"]["name"]) != all["device"]["name"])
    throw UserError(path + ": device.name: found " + shown_json(file["device"]["name"]) +
                    ", the files before it are of " + shown_json(all["device"]["name"]) +
                    "; expected samples of one device");
  for (const char* part : {"device", "software"}) {
    const nlohmann::json facts = file.value(part, nlohmann::json::object());
    for (const auto& [key, value] : facts.items())
      if (!(value.is_number() && value == 0 && all[part].contains(key))) all[part][key] = value;
  }
  if (file.contains("checks") && file["checks"].contains("summary"))
    all["checks"]["summary"].update(file["checks"]["summary"]);
  if (file.contains("summary")) all["summary"] = file["summary"];
}

}  // namespace

void fit_command(const FitCommandOptions& options, std::ostream& out, std::ostream& notes) {
  if (options.samples.empty())
    throw UserError("--samples: expected at least one .csv or .json file, found none");
  const DocumentHistogram histogram = options.document_histogram.empty()
                                          ? DocumentHistogram{}
                                          : read_document_histogram(options.document_histogram);
  SampleSet samples;
  nlohmann::json measured;  // facts of the .json files
  for (const std::string& path : options.samples) {
    const std::string extension = std::filesystem::path(path).extension().string();
    if (extension == ".json") {
      const nlohmann::json file = read_json_file(path);
      add_json(file, path, samples);
      add_facts(measured, file, path);
    } else if (extension == ".csv") {
      const CsvTable table = CsvTable::read(path);
      const std::size_t left_out = add_rows(table, histogram, samples);
      notes << path << ": " << table.rows() << " rows";
      if (left_out > 0) notes << ", " << left_out << " without a time or a shape left out";
      notes << '\n';
    } else {
      throw UserError(path + ": expected a .csv or .json file of samples");
    }
  }
  const std::string name = std::filesystem::path(options.out).stem().string();
  nlohmann::json recipe;
  std::string where = options.recipe;
  if (!options.recipe.empty()) {
    recipe = read_json_file(options.recipe);
    take_measurement(recipe, options.recipe, measured);
  } else if (!measured.is_null()) {
    recipe = recipe_of_samples(measured, name, samples);
    where = options.samples.back();
  } else {
    throw UserError("--recipe: needed with .csv samples, to say which rows make which table");
  }
  const nlohmann::json file =
      refusing_other_types(where, [&] { return make_profile(recipe, where, samples); });
  const Profile profile(file, options.out);  // refuses what could not be loaded
  write_file_atomically(options.out, file.dump(1) + "\n");
  print_errors(profile, out);
  notes << "wrote " << options.out << '\n';
}

}  // namespace equipoise

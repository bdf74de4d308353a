#include "sim/cli/command_fit.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

#include "policies/base/atomic_file.h"
#include "policies/base/error.h"
#include "policies/base/utf8.h"
#include "profiler/fit/adapt.h"
#include "profiler/fit/foreign_files.h"
#include "profiler/fit/recipe.h"
#include "profiler/fit/samples.h"
#include "profiler/profile/json_fields.h"
#include "profiler/profile/profile.h"
#include "sim/cli/profile_tables.h"
#include "traces/formats/bytes.h"

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

// The files' samples, and what they say beside them.
struct ReadFiles {
  SampleSet samples;
  nlohmann::json measured;  // facts of our own .json files; null: none
  bool tables = false;      // .csv, whose rows only a recipe or a base can place
  std::string foreign;      // the last file of another tool; empty: none
  std::string foreign_gpu;  // that it names
};

void add_foreign(ForeignFile file, const std::string& path, ReadFiles& all, std::ostream& notes) {
  if (file.used == 0)
    throw UserError(path + ": expected a sample that fit can use, found " + printable(shown(file)));
  notes << path << ": " << printable(shown(file)) << '\n';
  all.foreign = path;
  if (!file.gpu.empty()) all.foreign_gpu = std::move(file.gpu);
}

void add_json_file(std::string_view text, const std::string& path, const std::string& network, ReadFiles& all,
                   std::ostream& notes) {
  const nlohmann::json file = parse_json(text, path);
  if (looks_like_torch_trace(file))
    return add_foreign(add_torch_trace(file, path, all.samples), path, all, notes);
  if (looks_like_nccl_tests(file))
    return add_foreign(add_nccl_tests(file, path, network, all.samples), path, all, notes);
  add_json(file, path, all.samples);
  add_facts(all.measured, file, path);
}

void add_table(std::string_view text, const std::string& path, const DocumentHistogram& histogram,
               ReadFiles& all, std::ostream& notes) {
  const CsvTable table = CsvTable::parse(text, path);
  const std::size_t left_out = add_rows(table, histogram, all.samples);
  notes << path << ": " << table.rows() << " rows";
  if (left_out > 0) notes << ", " << left_out << " without a time or a shape left out";
  notes << '\n';
  all.tables = true;
}

void add_file(const std::string& path, const DocumentHistogram& histogram, const std::string& network,
              ReadFiles& all, std::ostream& notes) {
  const std::string bytes = formats::read_file(path, "samples");
  const formats::Compression how = formats::compression_of(bytes);
  const std::string text = how == formats::Compression::none ? bytes : formats::decompress(bytes, how, path);
  if (std::filesystem::path(formats::without_compression_suffix(path)).extension() == ".csv")
    return add_table(text, path, histogram, all, notes);
  if (looks_like_nccl_tests(std::string_view(text)))
    return add_foreign(add_nccl_tests(std::string_view(text), path, network, all.samples), path, all, notes);
  const std::size_t first = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (first != std::string::npos && (text[first] == '{' || text[first] == '['))
    return add_json_file(text, path, network, all, notes);
  throw UserError(
      path +
      ": expected samples of `profile` (.json), a table (.csv), what nccl-tests printed (a table under # "
      "size "
      "... time algbw busbw), its -J file, or a torch.profiler trace (.json, .json.gz); found none of them");
}

ReadFiles read_files(const FitCommandOptions& options, std::ostream& notes) {
  const DocumentHistogram histogram = options.document_histogram.empty()
                                          ? DocumentHistogram{}
                                          : read_document_histogram(options.document_histogram);
  ReadFiles all;
  for (const std::string& path : options.samples) add_file(path, histogram, options.network, all, notes);
  return all;
}

// The newest of the files: when they were measured, as far as anybody can tell.
std::string date_of(const std::vector<std::string>& paths) {
  std::filesystem::file_time_type newest = std::filesystem::file_time_type::min();
  for (const std::string& path : paths) newest = std::max(newest, std::filesystem::last_write_time(path));
  const auto wall = std::chrono::file_clock::to_sys(newest);
  const std::time_t seconds = std::chrono::system_clock::to_time_t(
      std::chrono::time_point_cast<std::chrono::system_clock::duration>(wall));
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d", &utc);
  return text;
}

nlohmann::json mended(const FitCommandOptions& options, const std::string& name, const ReadFiles& files,
                      std::ostream& notes) {
  const Profile base = Profile::load(options.base);
  AdaptOptions mend{name,
                   options.network,
                   options.base_network,
                   options.nic_GBps,
                   date_of(options.samples),
                   files.measured.is_null()
                       ? files.foreign_gpu
                       : files.measured.value("device", nlohmann::json::object()).value("name", "")};
  std::vector<std::string> said;
  nlohmann::json file =
      refusing_other_types(base.origin(), [&] { return adapt_profile(base, mend, files.samples, said); });
  for (const std::string& note : said) notes << printable(note) << '\n';
  return file;
}

nlohmann::json made_by_recipe(const FitCommandOptions& options, const std::string& name, ReadFiles& files) {
  nlohmann::json recipe;
  std::string where = options.recipe;
  if (!options.recipe.empty()) {
    recipe = read_json_file(options.recipe);
    take_measurement(recipe, options.recipe, files.measured);
  } else if (!files.measured.is_null()) {
    if (options.nic_GBps > 0) files.measured["device"]["nic_GBps"] = options.nic_GBps;
    where = options.samples.back();
    recipe = refusing_other_types(
        where, [&] { return recipe_of_samples(files.measured, name, files.samples, options.network); });
  } else if (!files.tables) {
    throw UserError(
        "--base: needed, since " + files.foreign +
        " has samples for a part of a profile only; give the profile that the rest is borrowed from, e.g. "
        "--base h100-sxm");
  } else {
    throw UserError(
        "--recipe: needed with .csv samples, to say which rows make which table; or --base, a profile that "
        "they mend");
  }
  return refusing_other_types(where, [&] { return make_profile(recipe, where, files.samples); });
}

void check(const FitCommandOptions& options) {
  if (options.samples.empty()) throw UserError("--samples: expected at least one file, found none");
  if (!options.base.empty() && !options.recipe.empty())
    throw UserError("--base: expected without --recipe, found both");
  if (options.base.empty() && !options.base_network.empty())
    throw UserError("--base-network: expected with --base, found none");
  constexpr double kFastest = 1e5;
  if (!(options.nic_GBps >= 0 && options.nic_GBps <= kFastest))
    throw UserError("--nic-GBps: expected a rate > 0, up to 100000, found " + short_number(options.nic_GBps));
}

}  // namespace

void fit_command(const FitCommandOptions& options, std::ostream& out, std::ostream& notes) {
  check(options);
  std::ostringstream said;  // of the files; an error says all that it needs in its own line
  ReadFiles files = read_files(options, said);
  const std::string name = std::filesystem::path(options.out).stem().string();
  const nlohmann::json file =
      options.base.empty() ? made_by_recipe(options, name, files) : mended(options, name, files, said);
  const Profile profile(file, options.out);  // refuses what could not be loaded
  // Names of files and of GPUs come as they are; JSON is UTF-8.
  write_file_atomically(options.out,
                        file.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  notes << said.str();
  print_errors(profile, out);
  notes << "wrote " << options.out << '\n';
}

}  // namespace equipoise

#include "sim/cli/command_fit.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <set>
#include <sstream>

#include "policies/base/csv.h"
#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/parallel.h"
#include "policies/base/text.h"
#include "profiler/fit/adapt.h"
#include "profiler/fit/nccl_tests.h"
#include "profiler/fit/recipe.h"
#include "profiler/fit/sample_lists.h"
#include "profiler/fit/sample_tables.h"
#include "profiler/fit/torch_trace.h"
#include "profiler/profile/gpu_model.h"
#include "profiler/profile/profile.h"
#include "sim/calibration/step_rows.h"
#include "sim/cli/command_profiles.h"
#include "sim/cli/commands.h"
#include "sim/framework/framework.h"
#include "sim/report/text_table.h"
#include "sim/report/words/words.h"
#include "sim/study/models.h"
#include "sim/study/read/naming.h"
#include "sim/validation/measured_log.h"
#include "traces/formats/bytes.h"
#include "traces/json_object.h"

namespace equipoise {
namespace {

// Checks the parts that a profile copies unchanged.
void check_facts(const nlohmann::json& file, const std::string& path) {
  for (const char* part : {"device", "software", "checks"})
    if (file.contains(part)) object_field(file, part, path + ": file");
  if (file.contains("checks") && file["checks"].contains("summary"))
    object_field(file["checks"], "summary", path + ": checks");
  if (file.contains("device") && file["device"].contains("name"))
    text_field(file["device"], "name", path + ": device");
  if (file.contains("summary")) text_field(file, "summary", path + ": file");
}

// Combines what several runs measured on one device, e.g. its kernels and its collectives. A later file's
// facts win, except those that its run did not measure and wrote as 0.
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

// The files' samples, and the facts that they state.
struct ReadFiles {
  SampleSet samples;
  nlohmann::json measured;             // facts from our own .json files; null if there are none
  bool tables = false;                 // whether there are .csv rows, which only a recipe or a base can place
  std::string foreign;                 // the last file of another tool; empty if there is none
  std::set<std::string> foreign_gpus;  // GPUs that such files name
};

std::size_t count_of(const SampleSet& all) {
  return all.attention.size() + all.gemm.size() + all.elementwise.size() + all.collective.size() +
         all.exchange.size();
}

void add_foreign(ForeignFile file, const std::string& path, ReadFiles& all, std::ostream& notes) {
  if (file.used == 0)
    throw UserError(path + ": expected a sample that fit can use, found " + printable(shown(file)));
  notes << path << ": " << printable(shown(file)) << '\n';
  all.foreign = path;
  if (!file.gpu.empty()) all.foreign_gpus.insert(std::move(file.gpu));
}

[[noreturn]] void refuse_kind(const std::string& path) {
  throw UserError(path +
                  ": expected samples of `profile` (.json with \"samples\"), a table (.csv), what nccl-tests "
                  "printed (a table under # size ... time algbw busbw), its -J file, or a torch.profiler "
                  "trace (.json, .json.gz); found none of them");
}

void add_json_file(std::string_view text, const std::string& path, const std::string& network, ReadFiles& all,
                   std::ostream& notes) {
  const nlohmann::json file = parse_python_json(text, path);
  if (looks_like_torch_trace(file))
    return add_foreign(add_torch_trace(file, path, all.samples), path, all, notes);
  if (looks_like_nccl_tests(file))
    return add_foreign(add_nccl_tests(file, path, network, all.samples), path, all, notes);
  if (!file.is_object() || !file.contains("samples")) refuse_kind(path);
  const std::size_t before = count_of(all.samples);
  add_json(file, path, all.samples);
  notes << path << ": " << counted(count_of(all.samples) - before, "sample") << '\n';
  add_facts(all.measured, file, path);
}

void add_samples_table(std::string_view text, const std::string& path, const DocumentHistogram& histogram,
                       ReadFiles& all, std::ostream& notes) {
  const CsvTable table = CsvTable::parse(text, path);
  const std::size_t skipped = add_rows(table, histogram, all.samples);
  notes << path << ": " << counted(table.rows(), "row");
  if (skipped > 0) notes << ", " << skipped << " without a time or a shape skipped";
  notes << '\n';
  all.tables = true;
}

void add_samples_file(const std::string& path, const DocumentHistogram& histogram, const std::string& network,
                      ReadFiles& all, std::ostream& notes) {
  const std::string text = formats::read_file(path, "samples").bytes;
  if (std::filesystem::path(formats::without_compression_suffix(path)).extension() == ".csv")
    return add_samples_table(text, path, histogram, all, notes);
  if (looks_like_nccl_tests(std::string_view(text)))
    return add_foreign(add_nccl_tests(std::string_view(text), path, network, all.samples), path, all, notes);
  if (looks_like_json(text)) return add_json_file(text, path, network, all, notes);
  refuse_kind(path);
}

ReadFiles read_files(const FitCommandOptions& options, std::ostream& notes) {
  const DocumentHistogram histogram = options.document_histogram.empty()
                                          ? DocumentHistogram{}
                                          : read_document_histogram(options.document_histogram);
  ReadFiles all;
  std::set<std::string> seen;
  for (const std::string& path : options.samples) {
    std::error_code unnamed;  // a pipe has a name that leads to no file
    const std::string file = std::filesystem::weakly_canonical(path, unnamed).string();
    if (!seen.insert(unnamed ? path : file).second)
      throw UserError(path + ": named twice; its samples would count twice");
    add_samples_file(path, histogram, options.network, all, notes);
  }
  return all;
}

// The date of the newest file, which is the best known date of the measurement.
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

// Kernels of one GPU do not say how fast another is, so each sampled GPU that is not the base's is noted.
void note_other_gpus(const ReadFiles& files, const std::string& measured_on, const Profile& base,
                     Notes& said) {
  std::set<std::string> named = files.foreign_gpus;
  named.insert(measured_on);
  const auto add = [&](const auto& samples) {
    for (const auto& sample : samples)
      if (const auto gpu = sample.labels.find("gpu"); gpu != sample.labels.end()) named.insert(gpu->second);
  };
  add(files.samples.attention), add(files.samples.gemm), add(files.samples.elementwise);
  const std::string own = gpu_model(base.device().name);
  std::set<std::string> others;
  for (const std::string& gpu : named)
    if (const std::string model = gpu_model(gpu); !own.empty() && !model.empty() && model != own)
      others.insert(model);
  for (const std::string& other : others)
    said.push_back({"samples_of_other_gpu",
                    "",
                    {{"gpu", other}, {"base", base.name()}, {"base_gpu", base.device().name}, {"own", own}}});
}

nlohmann::json calibrated(const FitCommandOptions& options, const std::string& name, const ReadFiles& files,
                          std::ostream& notes) {
  const Profile base = naming("--base", [&] { return Profile::load(options.base); });
  AdaptOptions adapt{name,
                     options.network,
                     options.base_network,
                     options.nic_GBps,
                     date_of(options.samples),
                     files.measured.is_null()
                         ? files.foreign_gpus.empty() ? "" : *files.foreign_gpus.rbegin()
                         : files.measured.value("device", nlohmann::json::object()).value("name", "")};
  Notes said;
  note_other_gpus(files, adapt.measured_on, base, said);
  nlohmann::json file =
      refusing_other_types(base.origin(), [&] { return adapt_profile(base, adapt, files.samples, said); });
  if (file.is_null())
    throw UserError(
        "--base " + base.name() + ": no sample is of any of its tables; " +
        (said.empty() ? "expected samples with times, found none" : printable(joined_texts(said, ", "))));
  for (const Note& note : said)
    if (note.kind != "samples_of_table") notes << "note: " << printable(text_of(note)) << '\n';
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
    throw UserError("--base: needed, since " + files.foreign +
                    " has samples for a part of a profile only; give the profile that the rest is borrowed "
                    "from, e.g. --base h100-sxm");
  } else {
    throw UserError(
        "--recipe: needed with .csv samples, to say which rows make which table; or --base, a profile that "
        "they calibrate");
  }
  return refusing_other_types(where, [&] { return make_profile(recipe, where, files.samples); });
}

void check_fit_options(const FitCommandOptions& options) {
  if (options.samples.empty()) throw UserError("--samples: expected at least one file, found none");
  if (!options.base.empty() && !options.recipe.empty())
    throw UserError("--base: expected without --recipe, found both");
  if (options.base.empty() && !options.base_network.empty())
    throw UserError("--base-network: expected with --base, found none");
  constexpr double kFastest = 1e5;
  if (!(options.nic_GBps >= 0 && options.nic_GBps <= kFastest))
    throw UserError("--nic-GBps: expected a rate > 0, up to 100000, found " + short_number(options.nic_GBps));
}

// Fits samples of several files together. An error names the files unless it names an option or a file.
template <class Make>
auto naming_samples(const FitCommandOptions& options, const Make& make) {
  try {
    return make();
  } catch (const UserError& e) {
    const std::string what = e.what();
    std::vector<std::string> files = options.samples;
    for (const std::string& file : {options.recipe, options.base, options.out})
      if (!file.empty()) files.push_back(file);
    const bool named = what.rfind("--", 0) == 0 ||
                       std::any_of(files.begin(), files.end(),
                                   [&](const auto& file) { return what.find(file) != std::string::npos; });
    if (named) throw;
    const std::string others =
        options.samples.size() > 1 ? " and " + std::to_string(options.samples.size() - 1) + " more" : "";
    throw UserError(options.samples.front() + others + ": " + what);
  }
}

}  // namespace

void fit_command(const FitCommandOptions& options, std::ostream& out, std::ostream& notes) {
  check_fit_options(options);
  std::ostringstream said;  // notes on the files; an error replaces them
  if (const std::optional<Note> note = unlikely_nic("--nic-GBps", options.nic_GBps))
    said << "note: " << text_of(*note) << '\n';
  const std::string name = std::filesystem::path(options.out).stem().string();
  const nlohmann::json file = naming_samples(options, [&] {
    ReadFiles files = read_files(options, said);
    return options.base.empty() ? made_by_recipe(options, name, files)
                                : calibrated(options, name, files, said);
  });
  const Profile profile(file, options.out);  // refuses a file that could not be loaded
  // Names of files and GPUs may hold any bytes, but JSON is UTF-8.
  write_file_atomically(options.out,
                        file.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  notes << said.str();
  if (!options.base.empty()) print_calibration(profile, out);
  if (options.base.empty() || options.all) print_errors(profile, out);
  notes << "wrote " << options.out << '\n';
}

namespace {

using nlohmann::json;

constexpr const char* kSlowdownKinds[] = {"gemm", "attention", "elementwise"};

struct Asked {
  Slowdowns slowdowns{};
  std::optional<ExpertTimes> experts;
  std::optional<double> seconds_per_launch;
  bool as_preset = false;
};

[[noreturn]] void refuse_slowdowns(const std::string& text) {
  throw UserError(
      "--slowdowns: expected preset, or three numbers in 0.1..100 such as 1.2,1,1.4, or five, with one more "
      "of these and microseconds from 0, or six, with microseconds once more, found " +
      text);
}

Asked parse_slowdowns(const std::string& text) {
  Asked asked;
  asked.as_preset = text == "preset";
  if (asked.as_preset) return asked;
  std::istringstream parts(text);
  std::vector<double> numbers;
  for (std::string part; std::getline(parts, part, ',');) {
    char* end = nullptr;
    numbers.push_back(std::strtod(part.c_str(), &end));
    const double least = numbers.size() >= 5 ? 0 : 0.1, most = numbers.size() >= 5 ? 1e6 : 100;
    if (part.empty() || *end != '\0' || !(numbers.back() >= least && numbers.back() <= most))
      refuse_slowdowns(text);
  }
  if (numbers.size() != 3 && numbers.size() != 5 && numbers.size() != 6) refuse_slowdowns(text);
  std::copy_n(numbers.begin(), 3, asked.slowdowns.begin());
  if (numbers.size() >= 5) asked.experts = {numbers[3], 1e-6 * numbers[4]};
  if (numbers.size() == 6) asked.seconds_per_launch = 1e-6 * numbers[5];
  return asked;
}

void print_predictions(const StepRows& rows, const FitStepsOptions& options, std::ostream& out) {
  std::vector<Asked> asked;
  for (const std::string& text : options.slowdowns) asked.push_back(parse_slowdowns(text));
  std::vector<StepParts> parts(rows.rows.size() * asked.size());
  parallel_for(options.jobs, parts.size(), [&](int, std::size_t i) {
    const StepRow& row = rows.rows[i % rows.rows.size()];
    const Asked& how = asked[i / rows.rows.size()];
    if (how.as_preset)
      parts[i] = row.parts_as_preset();
    else
      parts[i].step = row.seconds(how.slowdowns, how.experts, how.seconds_per_launch);
  });
  out << "row_id,group,benchmark,precision,recompute,slowdowns,published_seconds,predicted_seconds,error,"
         "waits,tp,cp,ep,pp,dp,repeated,allocated_GiB,fits\n";
  out.precision(9);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const StepRow& row = rows.rows[i % rows.rows.size()];
    const StepParts& p = parts[i];
    out << csv_cell(row.id) << ',' << csv_cell(row.group) << ',' << csv_cell(row.benchmark) << ','
        << row.precision << ',' << csv_cell(row.recompute) << ','
        << csv_cell(options.slowdowns[i / rows.rows.size()]) << ',' << row.published << ',' << p.step << ','
        << p.step / row.published - 1;
    if (asked[i / rows.rows.size()].as_preset) {
      for (const double part : {p.waits, p.tp, p.cp, p.ep, p.pp, p.dp, p.recompute}) out << ',' << part;
      out << ',' << p.allocated_bytes / (1 << 30) << ',' << (p.fits ? "yes" : "no");
    } else {
      out << ",,,,,,,,,";
    }
    out << '\n';
  }
}

// Slowdowns belong to bf16 kernels, so rows of other precisions count only if there are none of bf16.
void keep_one_precision(StepRows& rows) {
  const auto is_bf16 = [](const StepRow& row) { return row.precision == "bf16"; };
  if (std::none_of(rows.rows.begin(), rows.rows.end(), is_bf16)) return;
  std::vector<StepRow> kept;
  for (StepRow& row : rows.rows)
    if (is_bf16(row))
      kept.push_back(std::move(row));
    else
      rows.excluded.push_back({row.id, "precision " + row.precision + ": slowdowns are fitted to bf16 rows"});
  rows.rows = std::move(kept);
}

// "H100" if the device's name has it, because a preset holds for the whole family; else the whole name.
std::string family_of(const std::string& device) {
  for (const char* family : {"H100", "H200", "H800"})
    if (device.find(family) != std::string::npos) return family;
  return device;
}

BenchmarkError all_of(const std::vector<double>& errors) {
  BenchmarkError all;
  for (const double e : errors) {
    all.mean_abs += std::abs(e) / static_cast<double>(errors.size());
    all.mean += e / static_cast<double>(errors.size());
    if (std::abs(e) > std::abs(all.worst)) all.worst = e;
  }
  all.rows = errors.size();
  return all;
}

json error_json(const BenchmarkError& error) {
  return {{"rows", error.rows},
          {"mean_abs_error", rounded(error.mean_abs, 4)},
          {"mean_error", rounded(error.mean, 4)},
          {"worst", rounded(error.worst, 4)}};
}

std::string date_today() {
  const std::time_t now = std::time(nullptr);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

json preset_json(const FrameworkPreset& base, const StepRows& rows, const SlowdownFit& fit,
                 const FitStepsOptions& options) {
  json file = read_json_file(base.origin);
  file["name"] = std::filesystem::path(options.out).stem().string();
  file["summary"] = base.name + ", slowdowns fitted to " + counted(rows.rows.size(), "step") + " of " +
                    std::filesystem::path(options.tables.rows).filename().string();
  std::set<std::string> families;
  for (const StepRow& row : rows.rows) families.insert(family_of(row.inputs.profile.device().name));
  json kernels = {{"kind", "fitted"}, {"gpu_families", families}};
  for (std::size_t k = 0; k < 3; ++k) kernels["slowdowns"][kSlowdownKinds[k]] = rounded(fit.slowdowns[k], 3);
  if (base.options.load == Load::full) kernels["slowdowns"]["full_load"] = true;
  // This was fitted to others' steps, and one's own may have no experts.
  if (base.options.expert_gemm_slowdown != 1)
    kernels["slowdowns"]["expert_gemm"] = base.options.expert_gemm_slowdown;
  if (base.options.expert_product_seconds != 0)
    kernels["slowdowns"]["expert_product_seconds"] = base.options.expert_product_seconds;
  kernels["fit"] = {
      {"rows", rows.rows.size()}, {"benchmarks", std::max<std::size_t>(1, fit.held_out.size())},
      {"numbers", fit.numbers},   {"source", std::filesystem::path(options.tables.rows).filename().string()},
      {"date", date_today()},     {"error_in_sample", error_json(all_of(fit.errors))}};
  if (!fit.held_out.empty()) {
    kernels["left_out"] = error_json(all_of(fit.held_out_errors));
    for (const BenchmarkError& error : fit.held_out) {
      json& benchmark = kernels["left_out"]["benchmarks"][error.benchmark] = error_json(error);
      for (const double slowdown : error.slowdowns) benchmark["slowdowns"].push_back(rounded(slowdown, 3));
    }
  }
  file["kernels"] = std::move(kernels);
  return file;
}

void add_errors(TextTable& table, const std::string& title, const BenchmarkError& error) {
  table.add({title, std::to_string(error.rows), fixed(100 * error.mean_abs, 1), fixed(100 * error.mean, 1),
             fixed(100 * error.worst, 1)});
}

void print_fit(const SlowdownFit& fit, std::ostream& out) {
  TextTable table({"held out, predicted by the others", "rows", "mean |err| %", "mean err %", "worst %"});
  for (const BenchmarkError& error : fit.held_out) add_errors(table, error.benchmark, error);
  if (!fit.held_out.empty()) add_errors(table, "all held out", all_of(fit.held_out_errors));
  add_errors(table, "in sample", all_of(fit.errors));
  out << table.text() << "slowdowns: GEMM " << fixed(fit.slowdowns[0], 3) << ", attention "
      << fixed(fit.slowdowns[1], 3) << ", elementwise " << fixed(fit.slowdowns[2], 3);
  if (fit.numbers == 1) out << " (one number: too few benchmarks to tell three apart)";
  out << "; cost " << fixed(fit.cost, 4) << '\n';
  const bool at_bound = std::ranges::any_of(fit.slowdowns, [](double s) { return s >= kMostSlowdown; });
  const bool too_slow = std::ranges::all_of(fit.errors, [](double e) { return e > 0; }) &&
                        std::ranges::all_of(fit.slowdowns, [](double s) { return s <= kLeastSlowdown; });
  if (at_bound || too_slow)
    out << "note: a slowdown lies at its bound (" << kLeastSlowdown << " to " << kMostSlowdown
        << "): the rows run " << (at_bound ? "slower than any of them explains" : "faster than kernels alone")
        << "; check the columns and the profile\n";
}

// Excludes rows in another unit: a time in milliseconds would bend the whole preset.
void exclude_other_units(StepRows& rows, int jobs) {
  std::vector<std::string> doubts(rows.rows.size());
  parallel_for(jobs, rows.rows.size(), [&](int, std::size_t i) {
    doubts[i] = unit_doubt(rows.rows[i].published, rows.rows[i].seconds_as_preset());
  });
  std::vector<StepRow> kept;
  for (std::size_t i = 0; i < doubts.size(); ++i)
    if (doubts[i].empty())
      kept.push_back(std::move(rows.rows[i]));
    else
      rows.excluded.push_back({rows.rows[i].id, "step_time_s: " + doubts[i]});
  rows.rows = std::move(kept);
}

}  // namespace

void fit_steps_command(const FitStepsOptions& options, std::ostream& out, std::ostream& notes) {
  const FrameworkPreset base = FrameworkPreset::load(options.tables.preset);
  for (const std::string& text : options.slowdowns) (void)parse_slowdowns(text);
  StepRows rows = read_step_rows(options.tables, options.jobs);
  if (options.slowdowns.empty()) {
    exclude_other_units(rows, options.jobs);
    keep_one_precision(rows);
  }
  for (const StepRows::Excluded& row : rows.excluded)
    notes << "excluded: " << row.id << ": " << row.why << '\n';
  if (rows.rows.empty())
    throw UserError(
        options.tables.rows + ": expected at least one row that can be simulated, found none" +
        (rows.excluded.empty() ? "" : " (" + rows.excluded[0].id + ": " + rows.excluded[0].why + ")"));
  if (!options.slowdowns.empty()) {
    print_predictions(rows, options, out);
    return;
  }
  std::vector<StepSample> samples;
  for (const StepRow& row : rows.rows)
    samples.push_back({row.benchmark, row.published,
                       [&row](const Slowdowns& slowdowns) { return row.seconds(slowdowns); }});
  const SlowdownFit fit = fit_slowdowns(samples, options.jobs);
  const json file = preset_json(base, rows, fit, options);
  (void)FrameworkPreset::read(file, options.out);  // refuses a file that could not be loaded
  write_file_atomically(options.out, file.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
  print_fit(fit, out);
  notes << "wrote " << options.out << "; a study uses it as \"framework\": \""
        << std::filesystem::path(options.out).filename().string() << "\"\n";
}

}  // namespace equipoise

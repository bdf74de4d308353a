#include "sim/cli/command_fit_steps.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <set>
#include <sstream>
#include <thread>

#include "policies/base/atomic_file.h"
#include "policies/base/csv.h"
#include "policies/base/error.h"
#include "policies/base/number_text.h"
#include "policies/base/parallel.h"
#include "profiler/profile/json_fields.h"
#include "sim/calibration/slowdown_fit.h"
#include "sim/framework/preset.h"
#include "sim/report/text_table.h"

namespace equipoise {
namespace {

using nlohmann::json;

constexpr const char* kKinds[] = {"gemm", "attention", "elementwise"};

struct Asked {
  Slowdowns slowdowns{};
  std::optional<ExpertTimes> experts;
  bool as_preset = false;
};

[[noreturn]] void refuse_slowdowns(const std::string& text) {
  throw UserError(
      "--slowdowns: expected preset, or three numbers in 0.1..100 such as 1.2,1,1.4, or five, with one more "
      "of "
      "these and microseconds from 0, found " +
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
    const double least = numbers.size() == 5 ? 0 : 0.1, most = numbers.size() == 5 ? 1e6 : 100;
    if (part.empty() || *end != '\0' || !(numbers.back() >= least && numbers.back() <= most))
      refuse_slowdowns(text);
  }
  if (numbers.size() != 3 && numbers.size() != 5) refuse_slowdowns(text);
  std::copy_n(numbers.begin(), 3, asked.slowdowns.begin());
  if (numbers.size() == 5) asked.experts = {numbers[3], 1e-6 * numbers[4]};
  return asked;
}

void print_predictions(const StepRows& rows, const FitStepsOptions& options, int jobs, std::ostream& out) {
  std::vector<Asked> asked;
  for (const std::string& text : options.slowdowns) asked.push_back(parse_slowdowns(text));
  std::vector<double> seconds(rows.rows.size() * asked.size());
  parallel_for(jobs, seconds.size(), [&](int, std::size_t i) {
    const StepRow& row = rows.rows[i % rows.rows.size()];
    const Asked& at = asked[i / rows.rows.size()];
    seconds[i] = at.as_preset ? row.seconds_as_preset() : row.seconds(at.slowdowns, at.experts);
  });
  out << "row_id,group,benchmark,precision,recompute,slowdowns,published_seconds,predicted_seconds,error\n";
  out.precision(9);
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const StepRow& row = rows.rows[i % rows.rows.size()];
    out << csv_cell(row.id) << ',' << csv_cell(row.group) << ',' << csv_cell(row.benchmark) << ','
        << row.precision << ',' << csv_cell(row.recompute) << ','
        << csv_cell(options.slowdowns[i / rows.rows.size()]) << ',' << row.published << ',' << seconds[i]
        << ',' << seconds[i] / row.published - 1 << '\n';
  }
}

// Slowdowns are those of bf16 kernels; other rows count only where there are none.
void keep_one_precision(StepRows& rows) {
  const auto is_bf16 = [](const StepRow& row) { return row.precision == "bf16"; };
  if (std::none_of(rows.rows.begin(), rows.rows.end(), is_bf16)) return;
  std::vector<StepRow> kept;
  for (StepRow& row : rows.rows)
    if (is_bf16(row))
      kept.push_back(std::move(row));
    else
      rows.left_out.push_back({row.id, "precision " + row.precision + ": slowdowns are fitted to bf16 rows"});
  rows.rows = std::move(kept);
}

// "H100" where the device's name has it: a preset holds for the family; any other GPU by its whole name.
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

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

json preset_json(const FrameworkPreset& base, const StepRows& rows, const SlowdownFit& fit,
                 const FitStepsOptions& options) {
  json file = read_json_file(base.origin);
  file["name"] = std::filesystem::path(options.out).stem().string();
  file["summary"] = base.name + ", slowdowns fitted to " + std::to_string(rows.rows.size()) + " steps of " +
                    std::filesystem::path(options.tables.rows).filename().string();
  std::set<std::string> families;
  for (const StepRow& row : rows.rows) families.insert(family_of(row.inputs.profile.device().name));
  json kernels = {{"kind", "fitted"}, {"gpu_families", families}};
  for (std::size_t k = 0; k < 3; ++k) kernels["slowdowns"][kKinds[k]] = rounded(fit.slowdowns[k], 3);
  // Fitted to others' steps; one's own may have no experts.
  if (base.options.expert_gemm_slowdown != 1)
    kernels["slowdowns"]["expert_gemm"] = base.options.expert_gemm_slowdown;
  if (base.options.expert_product_seconds != 0)
    kernels["slowdowns"]["expert_product_seconds"] = base.options.expert_product_seconds;
  kernels["fit"] = {
      {"rows", rows.rows.size()}, {"benchmarks", std::max<std::size_t>(1, fit.left_out.size())},
      {"numbers", fit.numbers},   {"source", std::filesystem::path(options.tables.rows).filename().string()},
      {"date", today()},          {"error_in_sample", error_json(all_of(fit.errors))}};
  if (!fit.left_out.empty()) {
    kernels["left_out"] = error_json(all_of(fit.left_out_errors));
    for (const BenchmarkError& error : fit.left_out)
      kernels["left_out"]["benchmarks"][error.benchmark] = error_json(error);
  }
  file["kernels"] = std::move(kernels);
  return file;
}

void add_errors(TextTable& table, const std::string& title, const BenchmarkError& error) {
  table.add({title, std::to_string(error.rows), fixed(100 * error.mean_abs, 1), fixed(100 * error.mean, 1),
             fixed(100 * error.worst, 1)});
}

void print_fit(const SlowdownFit& fit, std::ostream& out) {
  TextTable table({"left out, predicted by the others", "rows", "mean |err| %", "mean err %", "worst %"});
  for (const BenchmarkError& error : fit.left_out) add_errors(table, error.benchmark, error);
  if (!fit.left_out.empty()) add_errors(table, "all left out", all_of(fit.left_out_errors));
  add_errors(table, "in sample", all_of(fit.errors));
  out << table.text() << "slowdowns: GEMM " << fixed(fit.slowdowns[0], 3) << ", attention "
      << fixed(fit.slowdowns[1], 3) << ", elementwise " << fixed(fit.slowdowns[2], 3);
  if (fit.numbers == 1) out << " (one number: too few benchmarks to tell three apart)";
  out << "; cost " << fixed(fit.cost, 4) << '\n';
  const bool at_bound =
      std::any_of(fit.slowdowns.begin(), fit.slowdowns.end(), [](double s) { return s >= kMostSlowdown; });
  const bool too_slow =
      std::all_of(fit.errors.begin(), fit.errors.end(), [](double e) { return e > 0; }) &&
      std::all_of(fit.slowdowns.begin(), fit.slowdowns.end(), [](double s) { return s <= kLeastSlowdown; });
  if (at_bound || too_slow)
    out << "note: a slowdown lies at its bound (" << kLeastSlowdown << " to " << kMostSlowdown
        << "): the rows run " << (at_bound ? "slower than any of them explains" : "faster than kernels alone")
        << "; check the columns and the profile\n";
}

}  // namespace

void fit_steps_command(const FitStepsOptions& options, std::ostream& out, std::ostream& notes) {
  const int jobs =
      options.jobs > 0 ? options.jobs : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const FrameworkPreset base = FrameworkPreset::load(options.tables.preset);
  for (const std::string& text : options.slowdowns) (void)parse_slowdowns(text);
  StepRows rows = read_step_rows(options.tables, jobs);
  if (options.slowdowns.empty()) keep_one_precision(rows);
  for (const StepRows::LeftOut& row : rows.left_out)
    notes << "left out: " << row.id << ": " << row.why << '\n';
  if (rows.rows.empty())
    throw UserError(
        options.tables.rows + ": expected at least one row that can be simulated, found none" +
        (rows.left_out.empty() ? "" : " (" + rows.left_out[0].id + ": " + rows.left_out[0].why + ")"));
  if (!options.slowdowns.empty()) {
    print_predictions(rows, options, jobs, out);
    return;
  }
  std::vector<StepSample> samples;
  for (const StepRow& row : rows.rows)
    samples.push_back({row.benchmark, row.published,
                       [&row](const Slowdowns& slowdowns) { return row.seconds(slowdowns); }});
  const SlowdownFit fit = fit_slowdowns(samples, jobs);
  const json file = preset_json(base, rows, fit, options);
  (void)FrameworkPreset::read(file, options.out);  // refuses what could not be loaded
  write_file_atomically(options.out, file.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
  print_fit(fit, out);
  notes << "wrote " << options.out << "; a study uses it as \"framework\": \""
        << std::filesystem::path(options.out).filename().string() << "\"\n";
}

}  // namespace equipoise

#include "sim/cli/command_profile.h"

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"
#include "traces/json_object.h"
#include "traces/synth.h"
#include "traces/trace.h"

namespace equipoise {

constexpr std::int64_t kDrawnDocuments = 20000;

static Trace lengths_of(const ProfileOptions& options) {
  const auto known = distributions();
  const bool named = std::ranges::count(known, options.lengths, &Distribution::name) > 0;
  std::error_code ignored;
  if (!named && std::filesystem::exists(options.lengths, ignored)) return read_trace(options.lengths);
  return synthesize(options.lengths, kDrawnDocuments,
                    options.session.seed);  // throws with the nearest known name
}

static void print_session(const measure::SessionReport& report, const ProfileOptions& options,
                          std::ostream& out) {
  out << std::fixed << std::setprecision(2);
  out << "samples     " << report.finished << " in " << options.session.out << " (" << report.measured
      << " in this run, " << report.planned << " planned)\n"
      << "checks      " << report.checks << (report.checks_passed ? " passed" : ", some failed")
      << (report.worst_check.empty() ? "" : ", nearest to its limit: " + report.worst_check) << "\n"
      << "ruler       off by " << 100 * report.ruler_error << " % on work of known duration\n"
      << "dropped     " << report.stolen_batches
      << " batches while others had the processor (a GPU: while it waited for its host), "
      << report.throttled_batches << " at a lowered pace\n"
      << "disturbed   " << report.disturbed_samples
      << " samples had fewer than three clean batches and kept all\n"
      << "next        equipoise fit " << options.session.out << "\n";
}

int run_profile(const ProfileOptions& options, std::ostream& out, std::ostream& log,
                const std::atomic<bool>& stop) {
  constexpr double kMostMinutes = 1e6;
  if (!(options.session.minutes > 0) || options.session.minutes > kMostMinutes)
    throw UserError("--minutes: expected a number > 0, at most a million, found " +
                    short_number(options.session.minutes));
  std::error_code ignored;
  if (std::filesystem::is_directory(options.session.out, ignored))  // fails before the minutes are spent
    throw UserError("--out " + options.session.out + ": found a folder, expected the name of a file");
  const Trace trace = lengths_of(options);
  for (const char* const suffix : {"", ".journal", ".failed", ".trying"})
    require_no_input(options.session.out + suffix);
  measure::SessionOptions session = options.session;
  session.lengths = trace.lengths;
  session.lengths_origin = trace.origin;
  const measure::SessionReport report = measure::run_session(session, log, stop);
  if (report.finished > 0) print_session(report, options, out);
  if (report.failed > 0)
    log << report.failed << " points could not be measured; " << options.session.out << ".failed says why\n";
  if (report.checks_passed) return 0;
  log << "a kernel gives wrong results: " << report.skipped << " points that need it were not measured\n";
  return 1;
}

}  // namespace equipoise

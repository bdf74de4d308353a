#include "sim/tune/journal.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <system_error>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"

namespace equipoise {

using nlohmann::json;

namespace {

json line_of(std::optional<std::size_t> n, Point point, const Trial& trial) {
  json line = {{"layout", point.layout},
               {"row", point.row},
               {"outcome", kOutcomeNames[at(trial.outcome)]},
               {"seconds_per_token", trial.seconds_per_token},
               {"expected", trial.expected},
               {"steps", trial.steps},
               {"planned", trial.planned},
               {"claim", kClaimNames[at(trial.claim)]}};
  if (n) line["n"] = *n;
  if (trial.batches > 0) line["batches"] = trial.batches;
  if (trial.limit < std::numeric_limits<double>::infinity()) line["limit"] = trial.limit;
  if (!trial.least.empty()) line["least"] = trial.least;
  if (!trial.reason.empty()) line["reason"] = trial.reason;
  if (trial.token_delay) line["token_delay"] = *trial.token_delay;
  if (trial.peak_bytes > 0) line["peak_bytes"] = trial.peak_bytes;
  return line;
}

Trial trial_of(const json& line, const std::string& where) {
  Trial trial;
  trial.outcome = static_cast<Outcome>(
      choice_of(line.at("outcome").get<std::string>(), where + ": outcome", kOutcomeNames));
  trial.seconds_per_token = line.at("seconds_per_token").get<double>();
  trial.expected = line.at("expected").get<double>();
  trial.steps = line.at("steps").get<int>();
  trial.planned = line.at("planned").get<int>();
  trial.claim =
      static_cast<Claim>(choice_of(line.at("claim").get<std::string>(), where + ": claim", kClaimNames));
  trial.batches = line.value("batches", 0);
  trial.reason = line.value("reason", "");
  if (line.contains("token_delay")) trial.token_delay = line["token_delay"].get<double>();
  trial.peak_bytes = line.value("peak_bytes", 0.0);
  if (line.contains("limit")) trial.limit = line["limit"].get<double>();
  if (line.contains("least")) trial.least = line["least"].get<std::vector<double>>();
  return trial;
}

JournalEntry into(std::vector<Tried>& in_order, std::vector<Tried>& others) {
  return [&](const json& node, const std::string& where) {
    const bool has_number = node.contains("n");
    if (has_number && node["n"].get<std::size_t>() != in_order.size())
      throw UserError(where, ": n: expected ", in_order.size());
    const Point point{node.at("layout").get<std::uint32_t>(), node.at("row").get<std::uint32_t>()};
    (has_number ? in_order : others).push_back({point, trial_of(node, where)});
  };
}

json read_trials(const std::string& path, std::vector<Tried>& tried) {
  std::vector<Tried> others;
  json asked = read_line_journal(path, kTuneJournalKind, into(tried, others)).asked;
  std::ranges::move(others, std::back_inserter(tried));
  return asked;
}

// First sets a journal of the same search with another budget aside.
KnownTrials tried_with_another_budget(const std::string& path, const json& asked, const char* suffix) {
  const auto but_budget = [](json of) {
    if (of.is_object()) of.erase("budget");
    return of;
  };
  KnownTrials known;
  bool is_aside = false;
  for (const bool aside : {true, false}) {
    const std::string name = aside ? path + suffix : path;
    if (!has_whole_line(name)) continue;
    std::vector<Tried> tried;
    const json of = read_trials(name, tried);
    if (but_budget(of) != but_budget(asked) || (!aside && of == asked)) continue;
    known.add(std::move(tried));
    if (aside) {
      is_aside = true;
      continue;
    }
    std::error_code error;  // the shorter one adds nothing
    if (!is_aside ||
        std::filesystem::file_size(path + suffix, error) < std::filesystem::file_size(name, error))
      std::filesystem::rename(name, path + suffix, error);
    else
      std::filesystem::remove(name, error);
  }
  return known;
}

}  // namespace

JournalText read_journal(const std::string& path) {
  JournalText text;
  text.asked = read_trials(path, text.tried);
  return text;
}

void KnownTrials::add(std::vector<Tried> tried) {
  for (Tried& one : tried) of_point_[{one.point.layout, one.point.row}].push_back(std::move(one.trial));
}

std::optional<Trial> KnownTrials::find(Point point, const TrialLimits& limits) const {
  const auto known = of_point_.find({point.layout, point.row});
  if (known == of_point_.end()) return std::nullopt;
  for (const Trial& trial : known->second)
    if (trial.batches == limits.batches)
      if (std::optional<Trial> told = under_limit(trial, limits.seconds_per_token.of(trial.claim)))
        return told;
  return std::nullopt;
}

std::optional<Trial> KnownTrials::told(Point point, int batches) const {
  const auto known = of_point_.find({point.layout, point.row});
  if (known == of_point_.end()) return std::nullopt;
  const auto trial = std::ranges::find(known->second, batches, &Trial::batches);
  return trial == known->second.end() ? std::nullopt : std::optional(*trial);
}

std::vector<Point> KnownTrials::in_full() const {
  std::vector<Point> points;
  for (const auto& [point, trials] : of_point_)
    if (std::ranges::any_of(trials, [](const Trial& trial) { return trial.batches == 0; }))
      points.push_back({point.first, point.second});
  return points;
}

Journal::Journal(const std::string& path, const json& asked, bool resume)
    : earlier_(resume ? tried_with_another_budget(path, asked, kBefore) : KnownTrials()),
      lines_(path, kTuneJournalKind, asked, resume, into(tried_, others_)) {
  earlier_.add(std::move(others_));
}

// What a search with a larger budget found stays for the next one that resumes it.
void Journal::close() const {
  std::error_code error;
  const std::string before = lines_.path() + kBefore;
  const auto known = std::filesystem::file_size(before, error);
  if (!error && known <= std::filesystem::file_size(lines_.path(), error))
    std::filesystem::remove(before, error);
}

std::optional<Trial> Journal::find_in_order(std::size_t n, Point point, const TrialLimits& limits) const {
  if (n >= tried_.size()) return earlier_.find(point, limits);
  if (!(tried_[n].point == point) || tried_[n].trial.batches != limits.batches)
    throw UserError("--resume: ", lines_.path(), ": trial ", n,
                    " is another than this search tries (another version of the program?); expected the "
                    "same, or no --resume");
  return tried_[n].trial;
}

std::optional<Trial> Journal::find_out_of_order(Point point, const TrialLimits& limits) const {
  return earlier_.find(point, limits);
}

// There may be more `points` than trials.
void Journal::add(std::size_t first, std::span<const Point> points, std::span<const Trial> trials) {
  std::string text;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    if (first + i < tried_.size()) continue;  // already read from the file
    text += line_of(first + i, points[i], trials[i]).dump() + "\n";
  }
  if (!text.empty()) lines_.write(text);
}

void Journal::add(Point point, const Trial& trial) {
  if (!earlier_.told(point, trial.batches)) lines_.write(line_of({}, point, trial).dump() + "\n");
}

}  // namespace equipoise

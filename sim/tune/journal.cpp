#include "sim/tune/journal.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "policies/base/error.h"
#include "policies/base/names.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr const char* kSchema = "equipoise.tune-journal/2";

json line_of(std::size_t n, Point point, const Trial& trial) {
  json line = {{"n", n},
               {"layout", point.layout},
               {"row", point.row},
               {"outcome", kOutcomeNames[static_cast<std::size_t>(trial.outcome)]},
               {"seconds_per_token", trial.seconds_per_token},
               {"expected", trial.expected},
               {"steps", trial.steps},
               {"planned", trial.planned}};
  if (trial.limit < std::numeric_limits<double>::infinity()) line["limit"] = trial.limit;
  if (!trial.least.empty()) line["least"] = trial.least;
  if (!trial.reason.empty()) line["reason"] = trial.reason;
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
  trial.reason = line.value("reason", "");
  if (line.contains("limit")) trial.limit = line["limit"].get<double>();
  if (line.contains("least")) trial.least = line["least"].get<std::vector<double>>();
  return trial;
}

}  // namespace

JournalText read_journal(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw UserError(path + ": cannot read: " + std::strerror(errno));
  JournalText text{nullptr, {}, 0};
  std::string line;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    if (in.eof()) break;  // no line end
    const std::string where = path + ":" + std::to_string(number);
    const json node = parse_json_line(line, where);
    try {
      if (number == 1) {
        if (node.at("schema") != kSchema)
          throw UserError(where + ": expected a journal of `equipoise tune` (" + kSchema + ")");
        text.asked = node.at("asked");
      } else {
        if (node.at("n").get<std::size_t>() != text.tried.size())
          throw UserError(where + ": n: expected " + std::to_string(text.tried.size()));
        text.tried.push_back({{node.at("layout").get<std::uint32_t>(), node.at("row").get<std::uint32_t>()},
                              trial_of(node, where)});
      }
    } catch (const json::exception&) {
      throw UserError(where + ": expected a line that `equipoise tune` wrote, found another");
    }
    text.whole_bytes += line.size() + 1;
  }
  if (text.whole_bytes == 0)
    throw UserError(path + ": expected a journal of `equipoise tune`, found no whole line");
  return text;
}

void KnownTrials::add(std::vector<Tried> tried) {
  for (Tried& one : tried) of_point_[{one.point.layout, one.point.row}].push_back(std::move(one.trial));
}

std::optional<Trial> KnownTrials::find(Point point, double limit) const {
  const auto known = of_point_.find({point.layout, point.row});
  if (known == of_point_.end()) return std::nullopt;
  for (const Trial& trial : known->second)
    if (std::optional<Trial> told = under_limit(trial, limit)) return told;
  return std::nullopt;
}

Journal::Journal(std::string path, const json& asked, bool resume) : path_(std::move(path)) {
  const bool there = std::filesystem::exists(path_);
  if (resume && there) read(asked);
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  file_ = std::fopen(path_.c_str(), resume && there ? "ab" : "wb");
  if (file_ == nullptr) throw UserError("--out " + path_ + ": cannot write: " + std::strerror(errno));
  if (!resume || !there) write(json({{"schema", kSchema}, {"asked", asked}}).dump() + "\n");
}

Journal::~Journal() {
  if (file_ != nullptr) std::fclose(file_);
}

void Journal::read(const json& asked) {
  JournalText text = read_journal(path_);
  if (text.asked != asked)
    throw UserError("--resume: " + path_ +
                    " is of another search (study, space or options differ); expected the same ones, "
                    "or no --resume");
  tried_ = std::move(text.tried);
  std::error_code error;
  std::filesystem::resize_file(path_, text.whole_bytes, error);
  if (error) throw UserError("--out " + path_ + ": cannot write: " + error.message());
}

const Trial* Journal::find(std::size_t n, Point point) const {
  if (n >= tried_.size()) return nullptr;
  if (!(tried_[n].point == point))
    throw UserError(
        "--resume: " + path_ + ": candidate " + std::to_string(n) +
        " is another than this search tries (another version of the program?); expected the same, "
        "or no --resume");
  return &tried_[n].trial;
}

// `points` may be more than there are trials.
void Journal::add(std::size_t first, const std::vector<Point>& points, const std::vector<Trial>& trials) {
  std::string text;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    if (first + i < tried_.size()) continue;  // read from the file
    text += line_of(first + i, points[i], trials[i]).dump() + "\n";
  }
  if (!text.empty()) write(text);
}

void Journal::write(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0)
    throw UserError("--out " + path_ + ": cannot write: " + std::strerror(errno));
}

}  // namespace equipoise

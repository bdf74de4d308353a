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

constexpr const char* kSchema = "equipoise.tune-journal/1";

json line_of(std::size_t n, Point point, const Trial& trial) {
  json line = {{"n", n},
               {"layout", point.layout},
               {"row", point.row},
               {"outcome", kOutcomeNames[static_cast<std::size_t>(trial.outcome)]},
               {"seconds_per_token", trial.seconds_per_token},
               {"expected", trial.expected},
               {"steps", trial.steps}};
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
  trial.reason = line.value("reason", "");
  return trial;
}

}  // namespace

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

// A killed run leaves a line half written at most: it is cut off.
void Journal::read(const json& asked) {
  std::ifstream in(path_, std::ios::binary);
  std::string line;
  std::uintmax_t whole = 0;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    if (in.eof()) break;  // no line end
    const std::string where = path_ + ":" + std::to_string(number);
    const json node = parse_json_line(line, where);
    try {
      if (number == 1) {
        if (node.at("schema") != kSchema)
          throw UserError(where + ": expected a journal of `equipoise tune` (" + kSchema + ")");
        if (node.at("asked") != asked)
          throw UserError("--resume: " + path_ +
                          " is of another search (study, space or options differ); expected the same ones, "
                          "or no --resume");
      } else {
        if (node.at("n").get<std::size_t>() != trials_.size())
          throw UserError(where + ": n: expected " + std::to_string(trials_.size()));
        points_.push_back({node.at("layout").get<std::uint32_t>(), node.at("row").get<std::uint32_t>()});
        trials_.push_back(trial_of(node, where));
      }
    } catch (const json::exception&) {
      throw UserError(where + ": expected a line that `equipoise tune` wrote, found another");
    }
    whole += line.size() + 1;
  }
  in.close();
  if (whole == 0)
    throw UserError("--resume: " + path_ + " has no whole line; expected a journal, or no --resume");
  std::error_code error;
  std::filesystem::resize_file(path_, whole, error);
  if (error) throw UserError("--out " + path_ + ": cannot write: " + error.message());
}

const Trial* Journal::find(std::size_t n, Point point) const {
  if (n >= trials_.size()) return nullptr;
  if (!(points_[n] == point))
    throw UserError(
        "--resume: " + path_ + ": candidate " + std::to_string(n) +
        " is another than this search tries (another version of the program?); expected the same, "
        "or no --resume");
  return &trials_[n];
}

void Journal::add(std::size_t first, const std::vector<Point>& points, const std::vector<Trial>& trials) {
  std::string text;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (first + i < trials_.size()) continue;  // read from the file
    text += line_of(first + i, points[i], trials[i]).dump() + "\n";
  }
  if (!text.empty()) write(text);
}

void Journal::write(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0)
    throw UserError("--out " + path_ + ": cannot write: " + std::strerror(errno));
}

}  // namespace equipoise

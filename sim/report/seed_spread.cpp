#include "sim/report/seed_spread.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "policies/base/csv.h"
#include "policies/base/text.h"
#include "sim/report/text_table.h"

namespace equipoise {

using nlohmann::json;

namespace {

struct Spread {
  double lowest = 0, mean = 0, highest = 0;
};

std::optional<Spread> spread_of(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto [lowest, highest] = std::ranges::minmax(values);
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return Spread{lowest, sum / static_cast<double>(values.size()), highest};
}

json spread_json(const std::vector<double>& values) {
  const std::optional<Spread> spread = spread_of(values);
  if (!spread) return nullptr;
  return {{"lowest", spread->lowest}, {"mean", spread->mean}, {"highest", spread->highest}};
}

// "4474 (4178 to 4703)".
std::string spread_text(const std::vector<double>& values, int digits) {
  const std::optional<Spread> spread = spread_of(values);
  if (!spread) return "-";
  return fixed(spread->mean, digits) + " (" + fixed(spread->lowest, digits) + " to " +
         fixed(spread->highest, digits) + ")";
}

std::string spread_csv(const std::vector<double>& values) {
  const std::optional<Spread> spread = spread_of(values);
  std::string text;
  for (const auto part : {&Spread::lowest, &Spread::mean, &Spread::highest})
    text += "," + (spread ? json(*spread.*part).dump() : "");
  return text;
}

}  // namespace

void SeedSpread::add(const std::string& of_case_and_seed, const json& one) {
  study_ = one.at("study").get<std::string>();
  baseline_ = one.at("baseline").get<std::string>();
  const std::size_t size = of_case_and_seed.size();
  const std::size_t at = std::min(of_case_and_seed.rfind(kSeedKey), size);  // the last key varies fastest
  const std::string name = of_case_and_seed.substr(0, at > 0 ? at - 1 : 0);
  const std::string seed = of_case_and_seed.substr(std::min(at + std::string_view(kSeedKey).size(), size));
  if (std::ranges::find(seeds_, seed) == seeds_.end()) seeds_.push_back(seed);
  for (const json& of_case : one.at("rows")) {
    const auto label = of_case.at("label").get<std::string>();
    auto row = std::ranges::find_if(rows_, [&](const Row& r) { return r.name == name && r.label == label; });
    if (row == rows_.end())
      row = rows_.insert(rows_.end(), {name, label, one.at("gpus").get<std::int64_t>(), 0, "", {}, {}});
    if (const json& rate = of_case.at("tokens_per_second_per_gpu"); rate.is_number()) {
      ++row->ran;
      row->tokens_per_second.push_back(rate.get<double>());
    } else if (row->reason.empty()) {
      row->reason = of_case.at("reason").get<std::string>();
    }
    if (const json& speedup = of_case.at("speedup"); speedup.is_number())
      row->speedups.push_back(speedup.get<double>());
  }
}

std::string SeedSpread::table(std::size_t width) const {
  const auto any = [&](const auto& has) { return std::ranges::any_of(rows_, has); };
  const bool named = any([](const Row& row) { return !row.name.empty(); });
  const bool gpus = any([&](const Row& row) { return row.gpus != rows_.front().gpus; });
  const std::size_t seeds = seeds_.size();
  std::vector<std::string> header = {"policy", "seeds", "tokens/s/GPU", "speed-up"};
  if (gpus) header.insert(header.begin() + 1, "GPUs");
  if (named) header.insert(header.begin(), "case");
  TextTable table(header);
  if (named) table.align_left(1);
  std::string below;
  for (const Row& row : rows_) {
    std::vector<std::string> cells = {row.label, std::to_string(row.ran),
                                      spread_text(row.tokens_per_second, 0), spread_text(row.speedups, 2)};
    if (gpus) cells.insert(cells.begin() + 1, std::to_string(row.gpus));
    if (named) cells.insert(cells.begin(), row.name);
    table.add(cells);
    if (row.ran < static_cast<int>(seeds))
      below += (named ? row.name + ": " : "") + row.label + " runs with " + std::to_string(row.ran) + " of " +
               counted(seeds, "seed") + ": " + row.reason + "\n";
  }
  const std::string head = study_ + ": " + counted(seeds, "seed") +
                           " of the trace, the mean (lowest to highest), speed-ups over " + baseline_;
  return folded(printable(head), width) + table.text(width) + folded(below, width);
}

std::string SeedSpread::csv() const {
  std::string text = "case,policy,gpus,seeds,ran";
  for (const char* what : {"tokens_per_second_per_gpu", "speedup"})
    for (const char* part : {"lowest_", "mean_", "highest_"}) text.append(",").append(part).append(what);
  text += ",reason\n";
  for (const Row& row : rows_)
    text += csv_cell(row.name) + "," + csv_cell(row.label) + "," + std::to_string(row.gpus) + "," +
            std::to_string(seeds_.size()) + "," + std::to_string(row.ran) +
            spread_csv(row.tokens_per_second) + spread_csv(row.speedups) + "," + csv_cell(row.reason) + "\n";
  return text;
}

json SeedSpread::as_json() const {
  json rows = json::array();
  for (const Row& row : rows_)
    rows.push_back({{"case", row.name},
                    {"label", row.label},
                    {"gpus", row.gpus},
                    {"ran", row.ran},
                    {"reason", row.reason.empty() ? json(nullptr) : json(row.reason)},
                    {"tokens_per_second_per_gpu", spread_json(row.tokens_per_second)},
                    {"speedup", spread_json(row.speedups)}});
  return {{"schema", "equipoise.seeds/1"},
          {"study", study_},
          {"baseline", baseline_},
          {"seeds", seeds_},
          {"rows", std::move(rows)}};
}

}  // namespace equipoise

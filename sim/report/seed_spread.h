// How much rows differ over seeds of the trace: the lowest, mean and highest value of each. Cases of a sweep
// that differ only in trace.seed become one case (`study --seeds`).
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace equipoise {

inline constexpr const char* kSeedKey = "trace.seed=";  // ends a case's name

class SeedSpread {
 public:
  // `of_case_and_seed` is the case's name, "key=a trace.seed=1"; `one` has the data of case_of_page.
  void add(const std::string& of_case_and_seed, const nlohmann::json& one);
  // A line per row, and below them the reasons of rows that did not run with every seed.
  [[nodiscard]] std::string table(std::size_t width) const;
  [[nodiscard]] std::string csv() const;
  [[nodiscard]] nlohmann::json as_json() const;

 private:
  struct Row {
    std::string name;  // the case without its seed; empty if there is only one case
    std::string label;
    std::int64_t gpus = 0;
    int ran = 0;
    std::string reason;                               // for the first seed with which it did not run
    std::vector<double> tokens_per_second, speedups;  // for the seeds with which it ran
  };
  std::string study_, baseline_;
  std::vector<std::string> seeds_;
  std::vector<Row> rows_;
};

}  // namespace equipoise

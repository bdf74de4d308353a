// How much rows differ over seeds of the trace: the lowest, the mean and the highest of what each came to.
// Cases of a sweep that differ in nothing but trace.seed become one (`study --seeds`).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace equipoise {

inline constexpr const char* kSeedKey = "trace.seed=";  // ends the name of a case

class SeedSpread {
 public:
  // The case's name, "key=a trace.seed=1"; `one`: what case_of_page has of it.
  void add(const std::string& of_case_and_seed, const nlohmann::json& one);
  // A line a row, and below them the reasons of those that did not run with every seed.
  [[nodiscard]] std::string table() const;
  [[nodiscard]] std::string csv() const;
  [[nodiscard]] nlohmann::json as_json() const;

 private:
  struct Row {
    std::string name;  // of the case without its seed; empty where there is one case only
    std::string label;
    std::int64_t gpus = 0;
    int ran = 0;
    std::string reason;                               // of the first seed with which it did not run
    std::vector<double> tokens_per_second, speedups;  // of those with which it did
  };
  std::string study_, baseline_;
  std::vector<std::string> seeds_;
  std::vector<Row> rows_;
};

}  // namespace equipoise

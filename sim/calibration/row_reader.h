// One row of a table of measured steps, as the study that it describes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/csv.h"
#include "sim/calibration/step_rows.h"

namespace equipoise {

// Why a row is no study; what it says is not wrong, so the others count.
struct NotThisRow {
  std::string why;
};

class RowReader {
 public:
  // `models` may be null: model_id then names a built-in model.
  RowReader(const CsvTable& rows, const CsvTable* models, const StepTables& tables, std::size_t row)
      : rows_(rows), models_(models), tables_(tables), row_(row) {}

  [[nodiscard]] std::string text(const char* column) const { return std::string(rows_.text(row_, column)); }
  // What the row says it recomputed, or, where it says nothing, may have: values of parallel.recompute, the
  // cheapest first.
  [[nodiscard]] std::vector<nlohmann::json> recompute_modes() const;
  // The row as a study file. Throws NotThisRow.
  [[nodiscard]] nlohmann::json study(const nlohmann::json& recompute) const;
  // The group without its version and precision, or, where it names the row's model, up to that name: rows of
  // one benchmark differ little.
  [[nodiscard]] std::string benchmark() const;

 private:
  [[nodiscard]] std::int64_t size(const char* column) const;
  [[nodiscard]] std::int64_t size_or(const char* column, std::int64_t otherwise) const;
  [[nodiscard]] std::string word(const char* column, std::initializer_list<std::string_view> allowed) const;
  void check_gpus() const;
  [[nodiscard]] nlohmann::json model() const;
  [[nodiscard]] nlohmann::json parallel(const nlohmann::json& recompute) const;
  [[nodiscard]] nlohmann::json framework() const;
  [[nodiscard]] std::string profile() const;
  // Of models with experts (expert_rows.cpp).
  void add_experts(std::size_t model_row, nlohmann::json& model) const;
  [[nodiscard]] bool has_experts() const;
  [[nodiscard]] std::int64_t expert_tensor() const;
  void add_expert_framework(nlohmann::json& framework) const;

  const CsvTable& rows_;
  const CsvTable* models_;
  const StepTables& tables_;
  std::size_t row_;
};

// The word, if it is one of the allowed ones; throws NotThisRow.
std::string one_of(const char* column, std::string_view found,
                   std::initializer_list<std::string_view> allowed);

}  // namespace equipoise

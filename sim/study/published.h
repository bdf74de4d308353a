// What a paper printed for a row of a study, and that figure beside ours.
//
// Nothing here feeds back into a simulation: the figures are read, carried and shown. A figure is known by
// the key that the same quantity has in summary.json, so like stands beside like.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace equipoise {

struct StudyResult;

// Figures of one source for one row.
struct Published {
  struct Figure {
    std::string metric;  // key of summary.json's metrics, or bucket_size
    double value = 0;
  };
  std::string source;   // "arXiv 2503.17924, Table 2"
  std::string against;  // label of the row that a speed-up is over; empty: the study's baseline
  std::optional<bool> out_of_memory;
  std::vector<Figure> figures;
};

// One object, or a list of them, one a source. Throws UserError naming `where` and the key.
std::vector<Published> read_published(const nlohmann::json& node, const std::string& where);

struct PublishedRow {
  std::string label;
  std::string metric;  // "status" where the source says whether the run fits in memory
  std::optional<double> simulated, published;
  const char* simulated_status = "ok";  // of "status"
  bool published_fits = true;
  std::string against;  // of a speed-up: label of the row it is over
  std::string source;

  // Of the published figure; none where one of them is missing or the published one is 0.
  [[nodiscard]] std::optional<double> difference_percent() const;
};

// Rows and sources in the order of the study file, figures by key.
std::vector<PublishedRow> beside_published(const StudyResult& result);

// The table of these rows, empty without rows, and the list for summary.json.
std::string published_table(const std::vector<PublishedRow>& rows);
nlohmann::json published_json(const std::vector<PublishedRow>& rows, const std::string& label);

}  // namespace equipoise

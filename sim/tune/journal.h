// What a search has tried, in a file that survives being killed: a line a candidate, in the order of the
// search. A search that is resumed reads its results instead of trying again, and comes to the same end.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/tune/candidate.h"
#include "sim/tune/trial.h"

namespace equipoise {

class Journal {
 public:
  // `asked`: all that decides a result; a journal of another search is refused. Without `resume` an older one
  // is overwritten. Throws UserError.
  Journal(std::string path, const nlohmann::json& asked, bool resume);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  ~Journal();

  // The result of the search's candidate number `n`, if an earlier run has it. Throws UserError where it is
  // that of another candidate.
  [[nodiscard]] const Trial* find(std::size_t n, Point point) const;
  // Appends the results of candidates `first` and on, and brings them to the disk.
  void add(std::size_t first, const std::vector<Point>& points, const std::vector<Trial>& trials);
  [[nodiscard]] std::size_t size() const { return trials_.size(); }

 private:
  void read(const nlohmann::json& asked);
  void write(const std::string& text);

  std::string path_;
  std::FILE* file_ = nullptr;
  std::vector<Point> points_;
  std::vector<Trial> trials_;
};

}  // namespace equipoise

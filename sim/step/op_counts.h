// How often a stage does the same work at the cost of the same micro-batch. What a lane's ops compute, attend
// to and expose follows from these counts, whatever their times, and is equal on stages whose counts are
// equal.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policies/base/index.h"
#include "sim/step/op_time.h"

namespace equipoise {

class OpCounts {
 public:
  // Ops of one shape that have the same cost take equally long and count equally.
  struct Shape {
    StageWork work;  // on one virtual stage of that kind
    std::size_t stage_kind = 0;
    bool paired = false;
  };

  void begin_lane(std::size_t costs, std::size_t virtual_stages) {
    costs_ = costs;
    shapes_.clear();
    tables_ = 0;
    table_of_stage_.clear();
    latest_.assign(virtual_stages * kOpKinds * 4, 0);
  }
  // Must be called for the stages in order, each before its ops are counted.
  void begin_stage() {
    if (counts_.size() == tables_) counts_.emplace_back();
    counts_[tables_].assign(shapes_.size() * costs_, 0);
  }
  void add(const Shape& shape, std::size_t cost) { ++counts_[tables_][place_of(shape) * costs_ + cost]; }
  void end_stage() {
    if (tables_ == 0 || counts_[tables_] != counts_[tables_ - 1]) ++tables_;
    table_of_stage_.push_back(tables_ - 1);
  }

  // The number of tables; neighbouring stages with equal counts share one.
  [[nodiscard]] std::size_t tables() const { return tables_; }
  [[nodiscard]] std::size_t table_of_stage(int stage) const { return table_of_stage_[at(stage)]; }
  [[nodiscard]] std::span<const Shape> shapes() const { return shapes_; }
  [[nodiscard]] bool has_pairs() const {
    return std::any_of(shapes_.begin(), shapes_.end(), [](const Shape& shape) { return shape.paired; });
  }
  [[nodiscard]] std::uint32_t of(std::size_t table, std::size_t shape, std::size_t cost) const {
    const std::size_t place = shape * costs_ + cost;
    return place < counts_[table].size() ? counts_[table][place] : 0;  // the shape came with later stages
  }

 private:
  // Most ops have the shape of the latest one of their kind on their virtual stage.
  std::size_t place_of(const Shape& shape) {
    const StageWork& work = shape.work;
    const std::size_t of_kind = at(work.virtual_stage) * kOpKinds + at(work.kind);
    std::size_t& place = latest_[(of_kind * 2 + (work.half ? 1 : 0)) * 2 + (shape.paired ? 1 : 0)];
    if (place >= shapes_.size() || !alike(shapes_[place], shape)) {
      const auto found = std::ranges::find_if(shapes_, [&](const Shape& s) { return alike(s, shape); });
      place = at(found - shapes_.begin());
      if (found == shapes_.end()) {
        shapes_.push_back(shape);
        counts_[tables_].resize(shapes_.size() * costs_, 0);
      }
    }
    return place;
  }
  static bool alike(const Shape& a, const Shape& b) {
    return a.work.kind == b.work.kind && a.work.half == b.work.half && a.paired == b.paired &&
           a.stage_kind == b.stage_kind && a.work.recomputed == b.work.recomputed;
  }

  std::size_t costs_ = 0;
  std::vector<Shape> shapes_;                       // of the lane
  std::vector<std::vector<std::uint32_t>> counts_;  // by table, then by shape and cost
  std::size_t tables_ = 0;
  std::vector<std::size_t> table_of_stage_;
  std::vector<std::size_t> latest_;  // by virtual stage, kind, half and paired
};

}  // namespace equipoise

// The global batches of a study, in order. As slices, the documents of a long study take gigabytes. A batch
// is therefore made from its source whenever somebody asks for it, and only one need be in memory.
#pragma once

#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "policies/plan.h"

namespace equipoise {

// The documents that the loader (policies/loader.h) gives to a policy for one optimizer step.
struct GlobalBatch {
  std::vector<Slice> slices;  // the batch's slices in arrival order
  std::vector<std::size_t>
      window_begin;  // window batches: index of each window's first slice, then slices.size()
};

class Batches {
 public:
  using Make = std::function<GlobalBatch(std::size_t)>;

  Batches() = default;
  // `make` returns batch k of [0, count), the same one each time.
  Batches(std::size_t count, Make make)
      : count_(count), make_(std::make_shared<const Make>(std::move(make))) {}
  // Batches that are in memory anyway.
  Batches(std::vector<GlobalBatch> given)
      : Batches(given.size(), [batches = given](std::size_t k) { return batches[k]; }) {}

  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] GlobalBatch operator[](std::size_t k) const { return (*make_)(first_ + k); }
  [[nodiscard]] Batches subspan(std::size_t first, std::size_t count) const {
    Batches part = *this;
    part.first_ += first;
    part.count_ = count;
    return part;
  }
  [[nodiscard]] Batches first(std::size_t count) const { return subspan(0, count); }

  // An input iterator, whose batches are made one after the other.
  class Iterator {
   public:
    using value_type = GlobalBatch;
    using difference_type = std::ptrdiff_t;
    Iterator() = default;
    Iterator(const Batches& of, std::size_t k) : of_(&of), k_(k) {}
    GlobalBatch operator*() const { return (*of_)[k_]; }
    Iterator& operator++() {
      ++k_;
      return *this;
    }
    Iterator operator++(int) { return {*of_, k_++}; }
    friend bool operator==(const Iterator&, const Iterator&) = default;

   private:
    const Batches* of_ = nullptr;
    std::size_t k_ = 0;
  };
  [[nodiscard]] Iterator begin() const { return {*this, 0}; }
  [[nodiscard]] Iterator end() const { return {*this, count_}; }

 private:
  std::size_t first_ = 0, count_ = 0;
  std::shared_ptr<const Make> make_;
};

}  // namespace equipoise

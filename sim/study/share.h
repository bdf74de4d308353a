// The cases that this process computes, if several machines share a run.
#pragma once

#include <cstddef>
#include <string>

namespace equipoise {

struct Share {
  int index = 0, count = 1;

  [[nodiscard]] bool is_all() const { return count == 1; }
  // Cases are dealt in turn, so that shares are alike if neighbours cost alike.
  [[nodiscard]] bool has(std::size_t number) const {
    return number % static_cast<std::size_t>(count) == static_cast<std::size_t>(index);
  }
  [[nodiscard]] std::string folder() const;  // "shard-1-of-4"
  friend bool operator==(const Share&, const Share&) = default;
};

// "1/4", 0 <= i < n. Throws UserError.
Share parse_share(const std::string& text, const std::string& where);

// The share in `text`, else the ranks' share, else everything. Throws UserError.
Share chosen_share(const std::string& text);

}  // namespace equipoise

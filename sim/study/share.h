// The cases of a run that this process computes, where several machines share them.
#pragma once

#include <cstddef>
#include <string>

namespace equipoise {

struct Share {
  int index = 0, count = 1;

  [[nodiscard]] bool is_all() const { return count == 1; }
  // Cases are dealt out in turn, so that shares are alike where neighbours cost alike.
  [[nodiscard]] bool has(std::size_t number) const {
    return number % static_cast<std::size_t>(count) == static_cast<std::size_t>(index);
  }
  [[nodiscard]] std::string folder() const;  // "shard-1-of-4"
  friend bool operator==(const Share&, const Share&) = default;
};

// "1/4", 0 <= i < n. Throws UserError.
Share parse_share(const std::string& text, const std::string& where);

// `text` where it is given, else the ranks', else all. Throws UserError.
Share chosen_share(const std::string& text);

}  // namespace equipoise

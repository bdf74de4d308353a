// Which collective, over what group. It stands with the kernels, below the placements that make the groups
// and the profiles that time them, so that neither needs the other for it.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace equipoise {

enum class Collective { all_gather, reduce_scatter, all_reduce, all_to_all, send_recv };
// As samples write them; also the keys of a profile's collective table.
inline constexpr std::array<std::string_view, 5> kCollectiveNames{"all_gather", "reduce_scatter",
                                                                  "all_reduce", "all_to_all", "send_recv"};

constexpr std::string_view name_of(Collective kind) {
  return kCollectiveNames[static_cast<std::size_t>(kind)];
}

// How a group lies over nodes: `ranks` members, `ranks_per_node` of them in each node they touch.
struct GroupShape {
  int ranks = 1;
  int ranks_per_node = 1;
};

}  // namespace equipoise

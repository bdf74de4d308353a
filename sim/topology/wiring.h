// How nodes are wired to leaf switches (fabric.h).
#pragma once

#include <string_view>

namespace equipoise {

enum class Wiring { rail, fat_tree };
inline constexpr std::string_view kWiringNames[] = {"rail", "fat-tree"};  // as a study writes them

}  // namespace equipoise

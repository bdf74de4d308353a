// The files of html/ and the chart library, inside the program (html/embed.cmake).
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace equipoise {

struct HtmlAsset {
  std::string_view name;
  const unsigned char* bytes;
  std::size_t size;  // 0: not found when the program was built
};

std::span<const HtmlAsset> html_assets();

}  // namespace equipoise

// One self-contained HTML file: the template of html/ with its style, scripts and chart library, and the data
// that the scripts draw. It loads nothing from a network.
//
// The page's text (verdict, main table) is in the file itself, so that it is readable without scripts.
// html/*.js draws the charts and all other tables from the data. Names come from users: `escaped` is for
// text, and no name can end the script element of the data block.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace equipoise {

struct HtmlPage {
  std::string title;    // plain text
  std::string content;  // HTML of the page's head with escaped names
};

std::string html_page(const HtmlPage& page, const nlohmann::json& data);

// Text for use between tags or in a quoted attribute; invalid UTF-8 is replaced.
std::string escaped(std::string_view text);

// For HTML and XML: `text` (UTF-8) with character references in place of what would end it.
std::string markup_escaped(std::string_view text);

// A paragraph of text with a class of page.css; the section of plain text at the top of a page; and a table
// with an id, in which the first cell of a row is its name. The section's first line stays above the charts;
// html/base.js moves the others below them.
std::string html_paragraph(const std::string& text, const char* kind);
std::string html_head(const std::string& kicker, const std::string& verdict,
                      const std::vector<std::string>& lines, const std::vector<std::string>& notes);
std::string html_table(const std::string& id, const std::vector<std::string>& header,
                       const std::vector<std::vector<std::string>>& rows);

// The files of html/ and the chart library, inside the program (html/embed.cmake).
struct HtmlAsset {
  std::string_view name;
  const unsigned char* bytes;
  std::size_t size;  // 0 if it was not found when the program was built
};

std::span<const HtmlAsset> html_assets();
std::string_view html_asset(std::string_view name);

}  // namespace equipoise

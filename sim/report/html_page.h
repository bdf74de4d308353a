// One self-contained HTML file: the template of html/, its style, scripts and chart library, and the data
// that the scripts draw. It asks nothing of any network.
//
// The text of the page (verdict, main table) is in the file itself, so that it is there without scripts
// too; charts and all other tables are drawn from the data by html/*.js. Names come from users: `escaped` is
// for text, and the data block cannot end its script element, whatever a name holds.
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
  std::string content;  // HTML of the head of the page, names in it escaped
};

std::string html_page(const HtmlPage& page, const nlohmann::json& data);

// Text as it is between tags or in a quoted attribute; invalid UTF-8 is replaced.
std::string escaped(std::string_view text);

// In HTML and XML: `text` (UTF-8) with what ends a text or a quoted attribute as character references.
std::string markup_escaped(std::string_view text);

// A paragraph of text, of a class of page.css; the section at the top of a page, all of it plain text; and a
// table with an id: the first cell of a row is its name.
std::string html_paragraph(const std::string& text, const char* kind);
std::string html_head(const std::string& kicker, const std::string& verdict,
                      const std::vector<std::string>& lines, const std::vector<std::string>& notes);
std::string html_table(const std::string& id, const std::vector<std::string>& header,
                       const std::vector<std::vector<std::string>>& rows);

// The files of html/ and the chart library, inside the program (html/embed.cmake).
struct HtmlAsset {
  std::string_view name;
  const unsigned char* bytes;
  std::size_t size;  // 0: not found when the program was built
};

std::span<const HtmlAsset> html_assets();
std::string_view html_asset(std::string_view name);

}  // namespace equipoise

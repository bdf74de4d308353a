#include "sim/report/html_page.h"

#include <cassert>
#include <nlohmann/json.hpp>

#include "policies/base/text.h"

namespace equipoise {

std::string_view html_asset(std::string_view name) {
  for (const HtmlAsset& file : html_assets())
    if (file.name == name) return {reinterpret_cast<const char*>(file.bytes), file.size};
  assert(false);
  return {};
}

namespace {

// In a script element "<" begins an end tag or a comment. JSON may write any character as its number.
std::string data_block(const nlohmann::json& data) {
  const std::string text = data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size() + text.size() / 64);
  for (const char& c : text) out += c == '<' ? std::string_view("\\u003c") : std::string_view(&c, 1);
  return out;
}

std::string scripts() {
  std::string text;
  for (const HtmlAsset& file : html_assets())
    if (file.name.ends_with("_js") && file.name != "d3_js") text += std::string(html_asset(file.name)) + '\n';
  return text;
}

std::string cell_row(const std::vector<std::string>& cells, const char* tag) {
  std::string text = "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::string open = i == 0 ? "th scope=\"row\"" : tag;
    if (i > 0) text += ' ';  // so that cells are separate words if the page is read as text
    text += '<' + (std::string(tag) == "th" ? "th scope=\"col\"" : open) + '>' + escaped(cells[i]) + "</" +
            (i == 0 ? "th" : tag) + '>';
  }
  return text + "</tr>\n";
}

// Whether the program was built with the chart library; without it the page shows its tables.
bool has_charts() {
  return !html_asset("d3_js").empty();
}

}  // namespace

std::string markup_escaped(std::string_view text) {
  static constexpr std::string_view kNames[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string out;
  out.reserve(text.size());
  for (const char& c : text) {
    const std::size_t found = std::string_view("&<>\"'").find(c);
    out += found == std::string_view::npos ? std::string_view(&c, 1) : kNames[found];
  }
  return out;
}

std::string escaped(std::string_view text) {
  // json's writer can replace invalid UTF-8.
  const std::string valid =
      nlohmann::json::parse(
          nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
          .get<std::string>();
  return markup_escaped(valid);
}

std::string html_paragraph(const std::string& text, const char* kind) {
  return std::string("<p class=\"") + kind + "\">" + escaped(text) + "</p>\n";
}

std::string html_head(const std::string& kicker, const std::string& verdict,
                      const std::vector<std::string>& lines, const std::vector<std::string>& notes) {
  std::string text = "<section id=\"verdict\">\n" +
                     (kicker.empty() ? kicker : html_paragraph(kicker, "kicker")) + "<h1>" +
                     escaped(verdict) + "</h1>\n";
  for (const std::string& line : lines) text += html_paragraph(line, &line == lines.data() ? "lead" : "more");
  for (const std::string& note : notes) text += html_paragraph(note, "more");
  return text + "</section>\n";
}

std::string html_table(const std::string& id, const std::vector<std::string>& header,
                       const std::vector<std::vector<std::string>>& rows) {
  std::string text = "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"" +
                     escaped(all_joined(header)) + "\">\n<table id=\"" + id + "\">\n<thead>" +
                     cell_row(header, "th") + "</thead>\n<tbody>\n";
  for (const std::vector<std::string>& cells : rows) text += cell_row(cells, "td");
  return text + "</tbody>\n</table>\n</div>\n";
}

// Fills the template's {{places}} in one pass, so that no text that is filled in can be taken for a place.
std::string html_page(const HtmlPage& page, const nlohmann::json& data) {
  const auto place = [&](std::string_view name) -> std::string {
    if (name == "title") return escaped(page.title);
    if (name == "content") return page.content;
    if (name == "data") return data_block(data);
    if (name == "style") return std::string(html_asset("page_css"));
    if (name == "library_licence")
      return has_charts() ? std::string(html_asset("d3_licence")) : std::string();
    if (name == "library") return std::string(html_asset("d3_js"));
    assert(name == "scripts");
    return scripts();
  };
  const std::string_view page_html = html_asset("page_html");
  std::string out;
  std::size_t at = 0;
  while (true) {
    const std::size_t begin = page_html.find("{{", at);
    out += page_html.substr(at, begin - at);
    if (begin == std::string_view::npos) return out;
    const std::size_t end = page_html.find("}}", begin);
    out += place(page_html.substr(begin + 2, end - begin - 2));
    at = end + 2;
  }
}

}  // namespace equipoise

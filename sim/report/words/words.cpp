#include "sim/report/words/words.h"

#include <charconv>
#include <cmath>
#include <stdexcept>

#include "policies/base/index.h"
#include "policies/base/text.h"

namespace equipoise {
namespace {

[[noreturn]] void fail(const Note& note, std::string_view what) {
  throw std::logic_error(concatenated("words of note ", note.kind, ": ", what));
}

double number_of(const NoteValue& value) {
  if (const auto* count = std::get_if<std::int64_t>(&value)) return static_cast<double>(*count);
  return std::get<double>(value);
}

// Rounds to at most `digits` decimals and removes zeros at the end.
std::string shortened(double value, int digits) {
  std::string text = fixed(value, digits);
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string plain(const NoteValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* count = std::get_if<std::int64_t>(&value)) return std::to_string(*count);
  return formatted("%g", std::get<double>(value));
}

std::string shown(const NoteValue& value, std::string_view form) {
  if (form.empty()) return plain(value);
  const std::string rest(form.substr(1));
  switch (form.front()) {
    case ',':
      return grouped(std::llround(number_of(value)));
    case '#':
      return counted(std::get<std::int64_t>(value), rest);
    case '%':
      return percent(number_of(value), std::stoi(rest));
    case '+':
      return (number_of(value) > 0 ? "+" : "") + percent(number_of(value), std::stoi(rest));
    case '~':
      return shortened(number_of(value), std::stoi(rest));
    case '/':
      return joined_texts(std::get<Notes>(value), rest);
    default:
      return fixed(number_of(value), std::stoi(std::string(form)));
  }
}

std::string filled(std::string_view sentence, const Note& note) {
  std::string text;
  for (std::size_t at = 0; at < sentence.size();) {
    const std::size_t open = sentence.find('{', at);
    text += sentence.substr(at, open - at);
    if (open == std::string_view::npos) break;
    const std::size_t close = sentence.find('}', open);
    const Placeholder place = placeholders_of(sentence.substr(open, close + 1 - open)).front();
    at = close + 1;
    if (place.name == "about") {
      text += note.about;
      continue;
    }
    const auto value = note.numbers.find(place.name);
    if (value == note.numbers.end())
      fail(note, concatenated("expected a number ", place.name, ", found none"));
    text += shown(value->second, place.form);
  }
  return text;
}

}  // namespace

std::vector<Placeholder> placeholders_of(std::string_view sentence) {
  std::vector<Placeholder> places;
  for (std::size_t open = sentence.find('{'); open != std::string_view::npos;
       open = sentence.find('{', open + 1)) {
    const std::string_view inside = sentence.substr(open + 1, sentence.find('}', open) - open - 1);
    const std::size_t colon = inside.find(':');
    places.push_back(
        {inside.substr(0, colon), colon == std::string_view::npos ? "" : inside.substr(colon + 1)});
  }
  return places;
}

std::string text_of(const Note& note) {
  const Kind* const kind = kind_of(note.kind);
  if (kind == nullptr) fail(note, "expected a row in sim/report/words/kinds.cpp, found none");
  const bool names_it = note.about.empty() || kind->sentence.find("{about}") != std::string_view::npos;
  std::string text = names_it ? "" : note.about + ": ";
  text += filled(kind->sentence, note);
  return kind->advice.empty() ? text : text + "; " + filled(kind->advice, note);
}

std::string advice_of(const Note& note) {
  const Kind* const kind = kind_of(note.kind);
  return kind == nullptr || kind->advice.empty() ? "" : filled(kind->advice, note);
}

std::string line_of(const std::optional<Note>& note) {
  return note ? text_of(*note) + '\n' : "";
}

std::vector<std::string> texts_of(const Notes& notes) {
  return each_of(notes, [](const Note& note) { return text_of(note); });
}

std::string reason_text(const Notes& reasons) {
  return joined_texts(reasons, "; ");
}

std::string joined_texts(const Notes& notes, std::string_view between) {
  return all_joined(notes, between, [](const Note& note) { return text_of(note); });
}

}  // namespace equipoise

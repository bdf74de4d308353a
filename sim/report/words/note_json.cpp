#include "sim/report/words/note_json.h"

#include <nlohmann/json.hpp>

#include "sim/report/words/words.h"

namespace equipoise {

using nlohmann::json;

void to_json(json& out, const Note& note) {
  json numbers = json::object();
  for (const auto& [name, value] : note.numbers)
    std::visit([&number = numbers[name]](const auto& held) { number = held; },
               static_cast<const std::variant<std::int64_t, double, std::string, Notes>&>(value));
  out = {
      {"kind", note.kind}, {"about", note.about}, {"numbers", std::move(numbers)}, {"text", text_of(note)}};
}

static NoteValue value_of(const json& saved) {
  if (saved.is_number_integer()) return saved.get<std::int64_t>();
  if (saved.is_number()) return saved.get<double>();
  if (saved.is_string()) return saved.get<std::string>();
  Notes list;
  for (const json& one : saved) list.push_back(note_of(one));
  return list;
}

Note note_of(const json& saved) {
  if (saved.is_string()) return {"text", "", {{"text", saved.get<std::string>()}}};
  Note note{saved.at("kind").get<std::string>(), saved.at("about").get<std::string>(), {}};
  for (const auto& [name, value] : saved.at("numbers").items()) note.numbers.emplace(name, value_of(value));
  // A note of a kind that this version does not know keeps its saved words.
  try {
    (void)text_of(note);
  } catch (const std::exception&) {
    return {"text", "", {{"text", saved.at("text").get<std::string>()}}};
  }
  return note;
}

}  // namespace equipoise

// A note: what a user should know of a result, as facts. Code says which kind of note it is and gives its
// numbers; its sentence is in one place (sim/report/words), so that whoever edits English edits that
// alone.
//
//   notes.push_back({"bucket_broken", label, {{"micro_batches", broken}}});
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace equipoise {

struct Note;

// A number, a name, or further notes: the parts of a sentence that lists something.
struct NoteValue : std::variant<std::int64_t, double, std::string, std::vector<Note>> {
  NoteValue(std::integral auto value) : variant(static_cast<std::int64_t>(value)) {}
  NoteValue(double value) : variant(value) {}
  NoteValue(std::string value) : variant(std::move(value)) {}
  NoteValue(std::string_view value) : variant(std::string(value)) {}
  NoteValue(const char* value) : variant(std::string(value)) {}
  NoteValue(std::vector<Note> value) : variant(std::move(value)) {}
};

struct Note {
  std::string kind;   // a row of sim/report/words
  std::string about;  // a row's label, or a key or file; may be empty
  std::map<std::string, NoteValue, std::less<>> numbers;

  // The value of that name, which it has, and which is of that type.
  template <class Value>
  [[nodiscard]] const Value& get(std::string_view name) const {
    return std::get<Value>(numbers.find(name)->second);
  }
  [[nodiscard]] std::int64_t count(std::string_view name) const { return get<std::int64_t>(name); }
  [[nodiscard]] double number(std::string_view name) const { return get<double>(name); }
  [[nodiscard]] const std::string& text(std::string_view name) const { return get<std::string>(name); }
};

inline bool operator==(const Note& a, const Note& b) {
  using Facts = std::variant<std::int64_t, double, std::string, std::vector<Note>>;
  const auto same = [](const auto& x, const auto& y) {
    return x.first == y.first && static_cast<const Facts&>(x.second) == static_cast<const Facts&>(y.second);
  };
  return a.kind == b.kind && a.about == b.about && a.numbers.size() == b.numbers.size() &&
         std::equal(a.numbers.begin(), a.numbers.end(), b.numbers.begin(), same);
}

using Notes = std::vector<Note>;

inline Note about(std::string_view what, Note note) {
  note.about = what;
  return note;
}

// Says that a key changes nothing; `acts_when` says what it needs to act.
inline Note no_effect(std::string_view key, std::string_view acts_when) {
  return {"no_effect", "", {{"key", key}, {"with", acts_when}}};
}

// A key of a study and the value that it would have.
inline Note change_note(std::string_view key, NoteValue value) {
  return {"change", "", {{"key", key}, {"value", std::move(value)}}};
}

inline Note threshold_note(std::int64_t tokens) {
  return {"threshold", "", {{"tokens", tokens}}};
}

// Adds a note where there is one.
inline void add(Notes& notes, std::optional<Note> note) {
  if (note) notes.push_back(*std::move(note));
}

inline void add_about(Notes& notes, std::string_view row, const Notes& more) {
  for (const Note& note : more) notes.push_back(about(row, note));
}

}  // namespace equipoise

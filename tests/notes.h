// Asking for notes by kind; tests/sim/report/test_words.cpp alone asks for sentences.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/index.h"
#include "policies/base/note.h"

namespace equipoise::test {

// The first note of the kind; null: there is none.
inline const Note* find_note(const Notes& notes, std::string_view kind) {
  const auto found = std::ranges::find(notes, kind, &Note::kind);
  return found == notes.end() ? nullptr : &*found;
}

inline bool has_note(const Notes& notes, std::string_view kind) {
  return find_note(notes, kind) != nullptr;
}

inline std::vector<std::string> kinds_of(const Notes& notes) {
  return each_of(notes, &Note::kind);
}

}  // namespace equipoise::test

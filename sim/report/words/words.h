// From facts to sentences: the one place where a note or a verdict becomes English.
#pragma once

#include <string>
#include <vector>

#include "policies/base/note.h"
#include "sim/report/words/kinds.h"

namespace equipoise {

// "ABOUT: SENTENCE; ADVICE" from the row of the note's kind, with its numbers filled in. A kind without a row
// or a missing number is a fault of this program.
std::string text_of(const Note& note);

// Its ADVICE alone; empty if the kind has none.
std::string advice_of(const Note& note);

std::vector<std::string> texts_of(const Notes& notes);
std::string joined_texts(const Notes& notes, std::string_view between);

// Why a row did not run, and what would make it run, in one line.
std::string reason_text(const Notes& reasons);

// The text as a line of its own; empty without a note.
std::string line_of(const std::optional<Note>& note);

// A number's place in a sentence: "{tokens:,}" has the name "tokens" and the form ",".
struct Placeholder {
  std::string_view name, form;
};
std::vector<Placeholder> placeholders_of(std::string_view sentence);

}  // namespace equipoise

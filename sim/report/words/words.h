// From facts to sentences: the one place where a note or a verdict becomes English.
#pragma once

#include <string>
#include <vector>

#include "policies/base/note.h"
#include "sim/report/words/kinds.h"

namespace equipoise {

// "ABOUT: SENTENCE; ADVICE", as the row of the note's kind has them, with its numbers in their places. A kind
// without a row and a number that is missing are faults of this program.
std::string text_of(const Note& note);

std::vector<std::string> texts_of(const Notes& notes);
std::string joined_texts(const Notes& notes, std::string_view between);

// Why a row did not run, and what would make it, in one line.
std::string reason_text(const Notes& reasons);

// The text as a line of its own; empty where there is no note.
std::string line_of(const std::optional<Note>& note);

// A number's place in a sentence: "{tokens:,}" has the name "tokens" and the form ",".
struct Placeholder {
  std::string_view name, form;
};
std::vector<Placeholder> placeholders_of(std::string_view sentence);

}  // namespace equipoise

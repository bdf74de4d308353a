// The kinds of notes and verdicts, and what each says: whoever edits English edits kinds.cpp.
#pragma once

#include <span>
#include <string_view>

namespace equipoise {

// A sentence has numbers in braces: {tokens} as it is, {tokens:,} in groups of three, {seconds:3} with so
// many digits behind the point, {mean:~1} with at most so many, {share:%1} in percent, {mean:+1} with its
// sign, {layers:#layer} with its noun, {parts:/, } a list of notes with that between them. Where {about} is
// in it, the note is not begun by what it is about. A kind that is only a part of other sentences has no
// advice.
struct Kind {
  std::string_view id;
  std::string_view when;     // it is said
  std::string_view numbers;  // their names, a space between two
  std::string_view sentence;
  std::string_view advice = {};  // what to do about it
};

std::span<const Kind> kinds();
const Kind* kind_of(std::string_view id);  // null: there is none

}  // namespace equipoise

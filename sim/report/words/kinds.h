// The kinds of notes and verdicts, and what each says: whoever edits English edits kinds.cpp.
#pragma once

#include <span>
#include <string_view>

namespace equipoise {

// A sentence has numbers in braces: {tokens} as it is, {tokens:,} in groups of three, {seconds:3} with three
// decimals, {mean:~1} with at most one. {share:%1} is a percentage, {mean:+1} has its sign, {layers:#layer}
// is followed by its noun, and {parts:/, } is a list of notes separated by ", ". A note begins with what it
// is about, unless {about} is in the sentence. A kind that is only a part of other sentences has no advice.
struct Kind {
  std::string_view id;
  std::string_view when;     // when it is said
  std::string_view numbers;  // the names of its numbers, separated by spaces
  std::string_view sentence;
  std::string_view advice = {};  // advice for the user
};

std::span<const Kind> kinds();
const Kind* kind_of(std::string_view id);  // null if there is none

}  // namespace equipoise

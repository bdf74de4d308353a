// Notes in the JSON files of this program: {"kind", "about", "numbers", "text"}.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "policies/base/note.h"

namespace equipoise {

void to_json(nlohmann::json& out, const Note& note);

// The note of a saved file, whose text is made again. A file of an earlier version has only the text. Throws
// json::exception if it is no note.
Note note_of(const nlohmann::json& saved);

}  // namespace equipoise

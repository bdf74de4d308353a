// Training logs of which a line is an entry: an iteration's number and its time or rate, each behind its key.
// A form is a row of the table in line_log.cpp; Hugging Face's Trainer alone, whose lines have no time, is
// read by its progress bar.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sim/validation/measured_log.h"

namespace equipoise {

// Nothing where the text is no such log. Throws UserError for a line of one that has no number behind a key.
std::optional<MeasuredLog> read_line_log(std::string_view text, const std::string& name);

// The forms and the keys by which they are recognised, for an error.
std::string line_log_forms();

}  // namespace equipoise

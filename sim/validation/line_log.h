// Training logs in which each line is an entry: an iteration's number and its time or rate, each after its
// key. A form is a row of the table in line_log.cpp. Only Hugging Face's Trainer, whose lines have no time,
// is read by its progress bar.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sim/validation/measured_log.h"

namespace equipoise {

// Nothing if the text is no such log. Throws UserError for a line without a number after a key.
std::optional<MeasuredLog> read_line_log(std::string_view text, const std::string& name);

// The forms and the keys that identify them, for an error.
std::string line_log_forms();

}  // namespace equipoise

// The manual page, equipoise(1), from the same data as --help.
#pragma once

#include <string>

#include "sim/cli/command_text.h"

namespace equipoise {

// Text for man(7): `equipoise manual | man -l -`.
std::string manual_page(const CommandText& program, const std::string& version);

}  // namespace equipoise

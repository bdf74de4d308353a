// SHA-256 (FIPS 180-4).
#pragma once

#include <string>
#include <string_view>

namespace equipoise {

// In hexadecimal digits, as sha256sum prints it.
std::string sha256(std::string_view bytes);

}  // namespace equipoise

// A user's file as one string; why it cannot be had is one line.
#pragma once

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

#include "policies/base/error.h"

namespace equipoise {

inline std::string read_text_file(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw UserError(path + ": cannot be read: found a folder, expected a file");
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in.is_open() && in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
  if (!in.is_open() || in.bad() || text.fail())
    throw UserError(path + ": cannot be read" + (errno != 0 ? ": " + std::string(std::strerror(errno)) : ""));
  return std::move(text).str();
}

}  // namespace equipoise

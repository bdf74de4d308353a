// Output files are written whole or not at all: bytes go to a temporary file beside the target, which is
// renamed over it only after everything reached the disk without an error. An interrupted run leaves the old
// file (or none). A symbolic link stays one: its target is replaced. What is there and no file (a pipe, a
// device such as /dev/stdout) is never replaced but written to.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "policies/base/error.h"

namespace equipoise {

class AtomicFile {
 public:
  explicit AtomicFile(std::string path) : path_(std::move(path)), target_(path_) {
    std::error_code ignored;
    const std::filesystem::file_status there = std::filesystem::status(path_, ignored);
    if (std::filesystem::is_directory(there))
      throw UserError(path_ + ": cannot write: found a folder; expected the name of a file");
    direct_ = std::filesystem::exists(there) && !std::filesystem::is_regular_file(there);
    if (!direct_) target_ = behind_links(path_);
    temporary_ = direct_ ? target_ : target_ + ".tmp." + std::to_string(::getpid());
    file_ = std::fopen(temporary_.c_str(), "wb");
    if (file_ == nullptr) fail("cannot create");
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile() { discard(); }

  void write(std::string_view bytes) {
    if (!bytes.empty() && std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size())
      fail("cannot write");
  }

  // Makes the file appear under its name. Without this call the destructor removes what was written.
  void commit() {
    std::FILE* file = file_;
    file_ = nullptr;
    const bool flushed = std::fflush(file) == 0 && (direct_ || ::fsync(::fileno(file)) == 0);
    int error = flushed ? 0 : errno;  // closing a file that did not take its bytes may reset it
    if (std::fclose(file) != 0 && error == 0) error = errno;
    if (error == 0 && !direct_ && std::rename(temporary_.c_str(), target_.c_str()) != 0) error = errno;
    if (error != 0) {
      if (!direct_) std::remove(temporary_.c_str());
      errno = error;
      fail("cannot write");
    }
  }

 private:
  // Follows symbolic links, also one whose target is still to be made.
  static std::string behind_links(const std::string& path) {
    constexpr int kMostLinks = 32;
    std::error_code ignored;
    std::filesystem::path target = path;
    for (int i = 0; std::filesystem::is_symlink(target, ignored); ++i) {
      if (i == kMostLinks) throw UserError(path + ": cannot write: its symbolic links go round in a loop");
      target = target.parent_path() / std::filesystem::read_symlink(target, ignored);
    }
    return target.string();
  }
  void discard() {
    if (file_ == nullptr) return;
    std::fclose(file_);
    file_ = nullptr;
    if (!direct_) std::remove(temporary_.c_str());
  }
  [[noreturn]] void fail(const char* what) {
    const std::string reason = std::strerror(errno);
    discard();
    throw UserError(path_ + ": " + what + ": " + reason);
  }

  std::string path_;    // as the user wrote it
  std::string target_;  // where its links lead
  std::string temporary_;
  bool direct_ = false;
  std::FILE* file_ = nullptr;
};

inline void write_file_atomically(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

}  // namespace equipoise

// Output files are written whole or not at all: bytes go to a temporary file beside the target, which is
// renamed over it only after everything reached the disk without an error. An interrupted run leaves the old
// file (or none).
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "policies/error.h"

namespace equipoise {

class AtomicFile {
 public:
  explicit AtomicFile(std::string path)
      : path_(std::move(path)), temporary_(path_ + ".tmp." + std::to_string(::getpid())) {
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
    const bool flushed = std::fflush(file) == 0 && ::fsync(::fileno(file)) == 0;
    const bool closed = std::fclose(file) == 0;
    if (!flushed || !closed || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
      const int error = errno;
      std::remove(temporary_.c_str());
      errno = error;
      fail("cannot write");
    }
  }

 private:
  void discard() {
    if (file_ == nullptr) return;
    std::fclose(file_);
    file_ = nullptr;
    std::remove(temporary_.c_str());
  }
  [[noreturn]] void fail(const char* what) {
    const std::string reason = std::strerror(errno);
    discard();
    throw UserError(path_ + ": " + what + ": " + reason);
  }

  std::string path_;
  std::string temporary_;
  std::FILE* file_ = nullptr;
};

inline void write_file_atomically(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

}  // namespace equipoise

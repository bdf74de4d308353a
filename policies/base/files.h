// Files as the program reads and writes them: whole, or not at all.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace equipoise {

// Most bytes of one input, as it lies there and as it unpacks: --max-input-MB. Of the process, as its memory
// limit is: what reads files stands deep in every command.
inline constexpr double kDefaultInputMB = 1024;
struct InputLimit {
  double bytes = kDefaultInputMB * 1e6;
  bool is_stated = false;  // by the user
};
void set_input_limit(const InputLimit& limit);
const InputLimit& input_limit();
[[noreturn]] void refuse_input(const std::string& where, const std::string& found);

// Gives `add` a user's file block by block: a regular file or a pipe, no device, whose bytes never end.
// `holds`: what the error says that the file was to hold; may be empty. Throws UserError: why it cannot be
// had, or that it is larger than the limit, is one line.
void read_blocks(const std::string& path, std::string_view holds,
                 const std::function<void(std::string_view)>& add);
// All of it as one string.
std::string read_text_file(const std::string& path);

// Throws UserError for a pipe, where a file is read more than once; `why` says so.
void require_regular_file(const std::string& path, const std::string& why);

// A file that is written whole or not at all: bytes go to a temporary file beside the target, which is
// renamed over it only after everything reached the disk without an error. An interrupted run leaves the old
// file (or none). A symbolic link stays one: its target is replaced. What is there and no file (a pipe, a
// device such as /dev/stdout) is never replaced but written to.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile() { discard(); }

  void write(std::string_view bytes);

  // Makes the file appear under its name. Without this call the destructor removes what was written.
  void commit();

 private:
  void discard();
  [[noreturn]] void fail(const char* what);

  std::string path_;    // as the user wrote it
  std::string target_;  // where its links lead
  std::string temporary_;
  bool direct_ = false;
  std::FILE* file_ = nullptr;
};

void write_file_atomically(const std::string& path, std::string_view bytes);

// Throws UserError where no output folder can stand under that name: a file is there, or above it, or the
// folder that it would be made in takes no files. For commands that work long before they write. `option`
// names the option in errors.
void require_folder(const std::filesystem::path& target, const std::string& option);

// An output folder that is filled whole or not at all: files are written to a staging folder and moved into
// place together by commit(). Without commit nothing of the run is left. Moving must not cross file systems,
// so the staging folder stands inside a target that is there already (it may be a mount or a link), else
// beside it. A run that was killed leaves its staging folder behind: the next one to the same target removes
// it, unless its process still lives or belongs to another machine that shares the file system.
class StagedFolder {
 public:
  // `option` names the option in errors.
  StagedFolder(const std::filesystem::path& target, std::string option);
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;
  ~StagedFolder();

  [[nodiscard]] const std::filesystem::path& path() const { return staging_; }

  // Moves every file to its place in the target, over files of the same name.
  void commit();

 private:
  void make(const std::filesystem::path& folder) const;

  std::filesystem::path target_, staging_;
  std::string option_;
};

// --- NumPy's .npy files (format 1.0, little-endian, row-major).

// A file's bytes. `shape` multiplies to the number of values; {n} is a vector.
std::string npy_bytes(std::span<const std::int64_t> shape, std::span<const std::int64_t> values);
std::string npy_bytes(std::span<const std::int64_t> shape, std::span<const float> values);

void write_npy(const std::string& path, std::span<const std::int64_t> shape, std::span<const float> values);
void write_npy(const std::string& path, std::span<const std::int64_t> shape,
               std::span<const std::int64_t> values);

}  // namespace equipoise

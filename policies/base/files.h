// Reads and writes whole files. A file that cannot be written completely is not written at all, and none that
// was read is written over.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace equipoise {

// The most bytes of one input, both packed and unpacked (--max-input-MB). It is a setting of the process,
// like its memory limit, since files are read deep inside every command.
inline constexpr double kDefaultInputMB = 1024;
struct InputLimit {
  double bytes = kDefaultInputMB * 1e6;
  bool is_stated = false;  // whether the user set it
};
void set_input_limit(const InputLimit& limit);
const InputLimit& input_limit();
[[noreturn]] void refuse_input(const std::string& where, const std::string& found);

// Passes a user's file to `add` block by block. The file is regular or a pipe; a device, whose bytes may
// never end, is refused. A pipe is read once: whoever asks for it again gets the same bytes. `holds`: the
// expected contents, for errors; may be empty. Throws UserError where the file cannot be read or is larger
// than the limit.
void read_blocks(const std::string& path, std::string_view holds,
                 const std::function<void(std::string_view)>& add);
// Reads a user's file into a string.
std::string read_text_file(const std::string& path);

// Throws UserError where a file is there that read_blocks has read: what a command reads it does not write
// over, by whatever name, `..` or link. `path` is as the user wrote it.
void require_no_input(const std::string& path);
// The file is read to be replaced by a newer one, as a journal or an expectation is.
void forget_input(const std::string& path);
// What was read so far belongs to an earlier command; of Python, whose process runs many.
void forget_inputs();

// Throws UserError for a pipe, which cannot be read more than once. `why`: the reason for reading it again.
void require_regular_file(const std::string& path, const std::string& why);

// A file that is written completely or not at all. Bytes go to a temporary file next to the target, which
// replaces the target only after all bytes reached the disk without an error. An interrupted run leaves the
// old file (or none); what a killed one has left is removed by the next that writes into the folder. A
// symbolic link is kept, and its target replaced. An existing pipe or device (such as /dev/stdout) is written
// to and never replaced.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile() { discard(); }

  void write(std::string_view bytes);

  // Moves the file to its name. Without this call the destructor removes the written bytes.
  void commit();

 private:
  void discard();
  [[noreturn]] void fail(const char* what);

  std::string path_;    // as the user wrote it
  std::string target_;  // path after following links
  std::string temporary_;
  bool direct_ = false;
  std::FILE* file_ = nullptr;
};

void write_file_atomically(const std::string& path, std::string_view bytes);

// Throws UserError where no output folder of that name can be made: it or a parent is a file, or the parent
// accepts no files. Long-running commands call it before they start. `option` names the option in errors.
void require_folder(const std::filesystem::path& target, const std::string& option);

// An output folder that is filled completely or not at all. Files are written to a staging folder, and
// commit() moves them into place together. Without commit nothing of the run is left. Moving must not cross
// file systems, so the staging folder is inside an existing target (which may be a mount or a link), else
// next to it. A killed run leaves its staging folder behind. The next run with the same target removes it,
// unless its process is alive or belongs to another machine that shares the file system.
class StagedFolder {
 public:
  // `option` names the option in errors.
  StagedFolder(const std::filesystem::path& target, std::string option);
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;
  ~StagedFolder();

  [[nodiscard]] const std::filesystem::path& path() const { return staging_; }

  // Moves every file into the target and replaces files of the same name.
  void commit();

 private:
  void make(const std::filesystem::path& folder) const;

  std::filesystem::path target_, staging_;
  std::string option_;
};

// --- NumPy's .npy files (format 1.0, little-endian, row-major).

// The bytes of a file. The product of `shape` is the number of values; {n} is a vector.
std::string npy_bytes(std::span<const std::int64_t> shape, std::span<const std::int64_t> values);
std::string npy_bytes(std::span<const std::int64_t> shape, std::span<const float> values);

void write_npy(const std::string& path, std::span<const std::int64_t> shape, std::span<const float> values);
void write_npy(const std::string& path, std::span<const std::int64_t> shape,
               std::span<const std::int64_t> values);

}  // namespace equipoise

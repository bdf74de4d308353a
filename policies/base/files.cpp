#include "policies/base/files.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cassert>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "policies/base/error.h"

namespace equipoise {
namespace {

// Follows symbolic links, even to a target that does not exist yet.
std::string behind_links(const std::string& path) {
  constexpr int kMostLinks = 32;
  std::error_code ignored;
  std::filesystem::path target = path;
  for (int i = 0; std::filesystem::is_symlink(target, ignored); ++i) {
    if (i == kMostLinks) throw UserError(path, ": cannot write: its symbolic links go round in a loop");
    target = target.parent_path() / std::filesystem::read_symlink(target, ignored);
  }
  return target.string();
}

InputLimit limit_of_inputs;

// What the command has read. Files are known by their device and number, which all their names share.
struct Inputs {
  std::mutex mutex;
  std::set<std::pair<dev_t, ino_t>> files;
  std::map<std::string, std::string> pipes;  // their texts, by path
};
Inputs& inputs() {
  static Inputs all;
  return all;
}

constexpr std::string_view kStagingMark = ".partial.";

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

// What is not whole yet is called "<name>.partial.<pid>.<host>".
std::string partial_name(const std::string& name) {
  return concatenated(name, kStagingMark, ::getpid(), ".", host_name());
}

// Whose process it is that such a name names, and what it was to become. Nothing of other machines'.
struct Partial {
  std::string_view of;
  int process = 0;

  // Where threads of this process are at work on files, its folders are those of earlier runs.
  [[nodiscard]] bool has_ended(bool is_folder) const {
    return process == ::getpid() ? is_folder : ::kill(process, 0) != 0 && errno == ESRCH;
  }
};
std::optional<Partial> partial_of(std::string_view name) {
  const std::size_t mark = name.rfind(kStagingMark);
  if (mark == std::string_view::npos) return std::nullopt;
  Partial found{name.substr(0, mark)};
  const std::string_view rest = name.substr(mark + kStagingMark.size());
  const std::from_chars_result parsed =
      std::from_chars(rest.data(), rest.data() + rest.size(), found.process);
  const std::string_view host(parsed.ptr, static_cast<std::size_t>(rest.data() + rest.size() - parsed.ptr));
  if (parsed.ec != std::errc{} || found.process <= 0 || host != "." + host_name()) return std::nullopt;
  return found;
}

// Removes what killed runs have left in the folder of what `mine` names. What cannot be read or removed is
// left, since it does no harm.
void remove_stale(const std::filesystem::path& folder, const std::function<bool(std::string_view of)>& mine) {
  std::error_code ignored;
  std::vector<std::filesystem::path> stale;
  for (std::filesystem::directory_iterator entry(folder, ignored), end; entry != end;
       entry.increment(ignored)) {
    if (ignored) break;
    const std::string name = entry->path().filename().string();
    const std::optional<Partial> partial = partial_of(name);
    if (partial && mine(partial->of) && partial->has_ended(entry->is_directory(ignored)))
      stale.push_back(entry->path());
  }
  for (const std::filesystem::path& path : stale) std::filesystem::remove_all(path, ignored);
}

// Once a folder: a command may write thousands of files into one.
void remove_stale_once(const std::filesystem::path& folder) {
  static std::mutex mutex;
  static std::set<std::filesystem::path> done;
  const std::lock_guard lock(mutex);
  if (!done.insert(folder).second) return;
  remove_stale(folder.empty() ? "." : folder, [](std::string_view of) { return !of.empty(); });
}

}  // namespace

void require_no_input(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return;
  const std::lock_guard lock(inputs().mutex);
  if (inputs().files.contains({info.st_dev, info.st_ino}))
    throw UserError(path, ": cannot write: found a file that this command reads; expected another name");
}

void forget_input(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return;
  const std::lock_guard lock(inputs().mutex);
  inputs().files.erase({info.st_dev, info.st_ino});
}

void forget_inputs() {
  const std::lock_guard lock(inputs().mutex);
  inputs().files.clear();
  inputs().pipes.clear();
}

void set_input_limit(const InputLimit& limit) {
  limit_of_inputs = limit;
}

const InputLimit& input_limit() {
  return limit_of_inputs;
}

void refuse_input(const std::string& where, const std::string& found) {
  throw UserError(where, ": ", found, ", the limit of an input is ",
                  static_cast<std::int64_t>(input_limit().bytes / 1e6),
                  " MB; expected a smaller file, or more by --max-input-MB");
}

void read_blocks(const std::string& path, std::string_view holds,
                 const std::function<void(std::string_view)>& add) {
  const std::string expected = holds.empty() ? "expected a file" : "expected a file of " + std::string(holds);
  const auto fail = [&](const std::string& why) { throw UserError(path, ": cannot be read: ", why); };
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    fail(std::strerror(errno) + (holds.empty() ? std::string() : "; " + expected));
  if (S_ISDIR(info.st_mode)) fail("found a folder, " + expected);
  if (!S_ISREG(info.st_mode) && !S_ISFIFO(info.st_mode)) fail("found a device, " + expected);
  const double most = input_limit().bytes;
  const bool is_pipe = S_ISFIFO(info.st_mode);
  const std::string* known = nullptr;  // what the pipe had; an entry stays where it is
  {
    const std::lock_guard lock(inputs().mutex);
    if (!is_pipe) inputs().files.insert({info.st_dev, info.st_ino});
    if (const auto found = inputs().pipes.find(path); is_pipe && found != inputs().pipes.end())
      known = &found->second;
  }
  if (known != nullptr) return add(*known);
  if (static_cast<double>(info.st_size) > most)
    refuse_input(path, "found a file of " + std::to_string(info.st_size / 1'000'000) + " MB");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) fail(std::strerror(errno));
  std::string block(std::size_t{1} << 18U, '\0');
  double read = 0;
  std::string whole;  // of a pipe, for whoever asks again
  while (const std::size_t filled = std::fread(block.data(), 1, block.size(), file.get())) {
    read += static_cast<double>(filled);
    if (read > most)
      refuse_input(path, "found more than fits");  // a pipe, or a file that grows while it is read
    add(std::string_view(block).substr(0, filled));
    if (is_pipe) whole.append(block, 0, filled);
  }
  if (std::ferror(file.get()) != 0) fail(std::strerror(errno));
  if (!is_pipe) return;
  const std::lock_guard lock(inputs().mutex);
  inputs().pipes.emplace(path, std::move(whole));
}

std::string read_text_file(const std::string& path) {
  std::string text;
  read_blocks(path, "", [&](std::string_view block) { text += block; });
  return text;
}

void require_regular_file(const std::string& path, const std::string& why) {
  std::error_code ignored;
  if (std::filesystem::is_fifo(path, ignored))
    throw UserError(path, ": expected a regular file, found a pipe: ", why);
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), target_(path_) {
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::status(path_, ignored);
  if (std::filesystem::is_directory(there))
    throw UserError(path_, ": cannot write: found a folder; expected the name of a file");
  require_no_input(path_);
  direct_ = std::filesystem::exists(there) && !std::filesystem::is_regular_file(there);
  if (!direct_) target_ = behind_links(path_);
  temporary_ = direct_ ? target_ : partial_name(target_);
  if (!direct_) remove_stale_once(std::filesystem::path(target_).parent_path());
  file_ = std::fopen(temporary_.c_str(), "wb");
  if (file_ == nullptr) fail("cannot create");
}

void AtomicFile::write(std::string_view bytes) {
  if (!bytes.empty() && std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size())
    fail("cannot write");
}

void AtomicFile::commit() {
  std::FILE* file = file_;
  file_ = nullptr;
  const bool flushed = std::fflush(file) == 0 && (direct_ || ::fsync(::fileno(file)) == 0);
  int error = flushed ? 0 : errno;  // closing a file after a failed write may reset errno
  if (std::fclose(file) != 0 && error == 0) error = errno;
  if (error == 0 && !direct_ && std::rename(temporary_.c_str(), target_.c_str()) != 0) error = errno;
  if (error != 0) {
    if (!direct_) std::remove(temporary_.c_str());
    errno = error;
    fail("cannot write");
  }
}

void AtomicFile::discard() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  file_ = nullptr;
  if (!direct_) std::remove(temporary_.c_str());
}

void AtomicFile::fail(const char* what) {
  const std::string reason = std::strerror(errno);
  discard();
  throw UserError(path_, ": ", what, ": ", reason);
}

void write_file_atomically(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void require_folder(const std::filesystem::path& target, const std::string& option) {
  if (target.empty()) return;
  const std::string named = option + " " + target.string();
  const std::filesystem::path whole = std::filesystem::absolute(target).lexically_normal();
  std::filesystem::path there = whole;
  std::error_code ignored;
  while (!std::filesystem::exists(there, ignored) && there.has_relative_path()) there = there.parent_path();
  if (!std::filesystem::is_directory(there, ignored))
    throw UserError(named, ": expected a folder, found a file",
                    (there == whole ? "" : ": " + there.string()));
  if (::access(there.c_str(), W_OK | X_OK) != 0)
    throw UserError(named, ": cannot be written: ", std::strerror(errno));
}

StagedFolder::StagedFolder(const std::filesystem::path& target, std::string option)
    : target_(target.lexically_normal()), option_(std::move(option)) {
  if (!target_.has_filename()) target_ = target_.parent_path();  // "out/"
  const std::string name = partial_name("");
  require_folder(target_, option_);
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::status(target_, ignored);
  staging_ = std::filesystem::is_directory(there) ? target_ / name : target_;
  if (staging_ == target_) staging_ += name;
  remove_stale(target_, [](std::string_view of) { return of.empty(); });
  remove_stale(target_.has_parent_path() ? target_.parent_path() : ".",
               [own = target_.filename().string()](std::string_view of) { return of == own; });
  make(staging_);
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(staging_, ignored);
}

void StagedFolder::commit() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(staging_))
    if (!entry.is_directory()) files.push_back(entry.path());
  for (const auto& file : files) require_no_input((target_ / file.lexically_relative(staging_)).string());
  make(target_);
  for (const auto& file : files) {
    const std::filesystem::path place = target_ / file.lexically_relative(staging_);
    make(place.parent_path());
    std::error_code error;
    std::filesystem::rename(file, place, error);
    if (error) throw UserError(option_, " ", place.string(), ": cannot be written: ", error.message());
  }
}

void StagedFolder::make(const std::filesystem::path& folder) const {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw UserError(option_, " ", target_.string(), ": cannot be created: ", error.message());
}

// --- NumPy's files.

namespace {

static_assert(std::endian::native == std::endian::little, "values are written as they lie in memory");

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "(";
  for (const std::int64_t size : shape) text += std::to_string(size) + ",";  // (n,) is Python's tuple of one
  return text + ")";
}

// The header is the magic, the version, the length of the text, and the text, a Python dict padded with
// spaces so that the values begin at a multiple of 64 bytes.
std::string npy_header(std::string_view type, std::span<const std::int64_t> shape) {
  std::string text =
      "{'descr': '" + std::string(type) + "', 'fortran_order': False, 'shape': " + shape_text(shape) + ", }";
  constexpr std::size_t kBefore = 10;
  constexpr std::size_t kAlignment = 64;
  text.append((kAlignment - (kBefore + text.size() + 1) % kAlignment) % kAlignment, ' ');
  text += '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(text.size() & 0xffU);
  bytes += static_cast<char>(text.size() >> 8U);
  return bytes + text;
}

template <class Value>
std::string typed_npy(std::string_view type, std::span<const std::int64_t> shape,
                      std::span<const Value> values) {
  assert(static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1},
                                                  std::multiplies<>())) == values.size());
  std::string bytes = npy_header(type, shape);
  return bytes.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

}  // namespace

std::string npy_bytes(std::span<const std::int64_t> shape, std::span<const std::int64_t> values) {
  return typed_npy("<i8", shape, values);
}

std::string npy_bytes(std::span<const std::int64_t> shape, std::span<const float> values) {
  return typed_npy("<f4", shape, values);
}

void write_npy(const std::string& path, std::span<const std::int64_t> shape, std::span<const float> values) {
  write_file_atomically(path, npy_bytes(shape, values));
}

void write_npy(const std::string& path, std::span<const std::int64_t> shape,
               std::span<const std::int64_t> values) {
  write_file_atomically(path, npy_bytes(shape, values));
}

}  // namespace equipoise

// An output folder that is filled whole or not at all: files are written to a staging folder and moved into
// place together by commit(). Without commit nothing of the run is left. Moving must not cross file systems,
// so the staging folder stands inside a target that is there already (it may be a mount or a link), else
// beside it. A run that was killed leaves its staging folder behind: the next one to the same target removes
// it, unless its process still lives or belongs to another machine that shares the file system.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "policies/base/error.h"

namespace equipoise {

class StagedFolder {
 public:
  // `option` names the option in errors.
  StagedFolder(const std::filesystem::path& target, std::string option)
      : target_(target.lexically_normal()), option_(std::move(option)) {
    if (!target_.has_filename()) target_ = target_.parent_path();  // "out/"
    const std::string name = std::string(kMark) + std::to_string(::getpid()) + "." + host();
    std::error_code ignored;
    const std::filesystem::file_status there = std::filesystem::status(target_, ignored);
    if (std::filesystem::exists(there) && !std::filesystem::is_directory(there))
      throw UserError(option_ + " " + target_.string() + ": expected a folder, found a file");
    staging_ = std::filesystem::is_directory(there) ? target_ / name : target_;
    if (staging_ == target_) staging_ += name;
    remove_stale(target_, "");
    remove_stale(target_.has_parent_path() ? target_.parent_path() : ".", target_.filename().string());
    make(staging_);
  }
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;
  ~StagedFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(staging_, ignored);
  }

  [[nodiscard]] const std::filesystem::path& path() const { return staging_; }

  // Moves every file to its place in the target, over files of the same name.
  void commit() {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(staging_))
      if (!entry.is_directory()) files.push_back(entry.path());
    make(target_);
    for (const auto& file : files) {
      const std::filesystem::path place = target_ / file.lexically_relative(staging_);
      make(place.parent_path());
      std::error_code error;
      std::filesystem::rename(file, place, error);
      if (error) throw UserError(option_ + " " + place.string() + ": cannot be written: " + error.message());
    }
  }

 private:
  static constexpr std::string_view kMark = ".partial.";

  static std::string host() {
    std::array<char, 256> name{};
    return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
  }

  // "<before>.partial.<pid>.<host>" of a process of this machine that has ended.
  static bool is_stale(std::string_view name, const std::string& before) {
    if (name.substr(0, before.size()) != before) return false;
    name.remove_prefix(before.size());
    if (name.substr(0, kMark.size()) != kMark) return false;
    name.remove_prefix(kMark.size());
    int process = 0;
    const std::from_chars_result parsed = std::from_chars(name.data(), name.data() + name.size(), process);
    if (parsed.ec != std::errc{} || process <= 0) return false;
    if (std::string_view(parsed.ptr, static_cast<std::size_t>(name.data() + name.size() - parsed.ptr)) !=
        "." + host())
      return false;
    return process == ::getpid() || (::kill(process, 0) != 0 && errno == ESRCH);
  }

  // What cannot be read or removed stays: it is in nobody's way.
  static void remove_stale(const std::filesystem::path& folder, const std::string& before) {
    std::error_code ignored;
    std::vector<std::filesystem::path> stale;
    for (std::filesystem::directory_iterator entry(folder, ignored), end; entry != end;
         entry.increment(ignored)) {
      if (ignored) break;
      if (is_stale(entry->path().filename().string(), before) && entry->is_directory(ignored))
        stale.push_back(entry->path());
    }
    for (const std::filesystem::path& path : stale) std::filesystem::remove_all(path, ignored);
  }

  void make(const std::filesystem::path& folder) const {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) throw UserError(option_ + " " + target_.string() + ": cannot be created: " + error.message());
  }

  std::filesystem::path target_, staging_;
  std::string option_;
};

}  // namespace equipoise

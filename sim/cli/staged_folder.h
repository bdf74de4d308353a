// An output folder that is filled whole or not at all: files are written to a staging folder and moved into
// place together by commit(). Without commit nothing of the run is left. Moving must not cross file systems,
// so the staging folder stands inside a target that is there already (it may be a mount or a link), else
// beside it.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "policies/error.h"

namespace equipoise {

class StagedFolder {
 public:
  // `option` names the option in errors.
  StagedFolder(const std::filesystem::path& target, std::string option)
      : target_(target.lexically_normal()), option_(std::move(option)) {
    if (!target_.has_filename()) target_ = target_.parent_path();  // "out/"
    const std::string name = ".partial." + std::to_string(::getpid());
    std::error_code ignored;
    const std::filesystem::file_status there = std::filesystem::status(target_, ignored);
    if (std::filesystem::exists(there) && !std::filesystem::is_directory(there))
      throw UserError(option_ + " " + target_.string() + ": expected a folder, found a file");
    staging_ = std::filesystem::is_directory(there) ? target_ / name : target_;
    if (staging_ == target_) staging_ += name;
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
  void make(const std::filesystem::path& folder) const {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) throw UserError(option_ + " " + target_.string() + ": cannot be created: " + error.message());
  }

  std::filesystem::path target_, staging_;
  std::string option_;
};

}  // namespace equipoise

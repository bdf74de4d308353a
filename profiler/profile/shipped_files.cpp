#include "profiler/profile/shipped_files.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>

#include "policies/base/error.h"
#include "policies/base/text.h"

namespace equipoise {

namespace fs = std::filesystem;

namespace {

// Of the program; empty where nothing says which one runs.
fs::path program_folder() {
  std::error_code unreadable;
  return fs::read_symlink("/proc/self/exe", unreadable).parent_path();
}

// Where an installed program's files are.
fs::path installed(const char* share) {
  const fs::path program = program_folder();
  return program.empty() ? fs::path() : program.parent_path() / "share/equipoise" / share;
}

// The folder of the program, or of the shared library, that holds this code; empty where nobody knows. A
// program is known here by the word that started it: without a folder that would be the current one, whoever
// filled it.
fs::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) return {};
  const fs::path file = info.dli_fname;
  return file.has_parent_path() ? fs::absolute(file).parent_path() : program_folder();
}

}  // namespace

fs::path shipped_path(const char* share, const char* source_tree) {
  std::error_code unreadable;
  if (const fs::path own = own_folder() / "share" / share; fs::exists(own, unreadable)) return own;
  fs::path path = installed(share);
  return !path.empty() && fs::exists(path, unreadable) ? path : fs::path(source_tree);
}

std::vector<fs::path> ShippedFiles::directories() const {
  std::vector<fs::path> found;
  if (const char* own = std::getenv(variable)) found.emplace_back(own);
  if (const fs::path own = own_folder(); !own.empty())
    found.push_back(own / "share" / share);  // a Python package has it beside its library
  if (fs::path path = installed(share); !path.empty()) found.push_back(std::move(path));
  found.emplace_back(source_tree);
  return found;
}

std::vector<std::string> ShippedFiles::names() const {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const fs::path& directory : directories())
    for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored))
      if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

fs::path ShippedFiles::find(std::string_view name_or_path) const {
  fs::path as_file{std::string(name_or_path)};
  std::error_code unreadable;  // a name that is too long for the file system is no file
  if (as_file.extension() == ".json" || name_or_path.find('/') != std::string_view::npos) {
    if (fs::is_regular_file(as_file, unreadable)) return as_file;
    throw UserError(as_file.string() + ": no such file of a " + kind);
  }
  for (const fs::path& directory : directories()) {
    fs::path candidate = directory / (std::string(name_or_path) + ".json");
    if (fs::is_regular_file(candidate, unreadable)) return candidate;
  }
  const std::vector<std::string> known = names();
  throw UserError(std::string("unknown ") + kind + " \"" + std::string(name_or_path) + "\"" +
                  did_you_mean(name_or_path, known) + " (known: " + joined(known) + ", or " + or_path + ")");
}

}  // namespace equipoise

#include "policies/base/module.h"

#include <dlfcn.h>

#include <filesystem>
#include <vector>

namespace equipoise {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> folders() {
  std::vector<fs::path> found;
  Dl_info info{};
  // The word that started a program may lack its folder. Then /proc tells it, below.
  if (dladdr(reinterpret_cast<const void*>(&folders), &info) != 0 && info.dli_fname != nullptr &&
      fs::path(info.dli_fname).has_parent_path())
    found.push_back(fs::path(info.dli_fname).parent_path());
  std::error_code unreadable;
  const fs::path program = fs::read_symlink("/proc/self/exe", unreadable);
  if (!program.empty()) found.push_back(program.parent_path() / EQUIPOISE_LIBRARIES_FROM_PROGRAM);
  found.emplace_back(EQUIPOISE_MODULE_DIR);
  return found;
}

void* open(const fs::path& file, ModuleSymbols symbols) {
  return dlopen(file.c_str(), RTLD_NOW | (symbols == ModuleSymbols::for_all ? RTLD_GLOBAL : RTLD_LOCAL));
}

}  // namespace

void* module_symbol(const char* file, const char* symbol, const std::string& absent, std::string& reason,
                    ModuleSymbols symbols) {
  void* module = nullptr;
  std::error_code unreadable;
  for (const fs::path& folder : folders()) {
    if (folder.empty() || !fs::exists(folder / file, unreadable)) continue;
    module = open(folder / file, symbols);
    if (module == nullptr) {
      reason = dlerror();  // dlerror names the missing library
      return nullptr;
    }
    break;
  }
  if (module == nullptr) {
    reason = absent;
    return nullptr;
  }
  void* const found = dlsym(module, symbol);
  if (found == nullptr) reason = dlerror();
  return found;
}

}  // namespace equipoise

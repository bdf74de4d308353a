#include "profiler/profile/gpu_model.h"

#include <cctype>
#include <sstream>

namespace equipoise {

std::string gpu_model(const std::string& name) {
  std::istringstream words(name);
  for (std::string word; words >> word;) {
    const std::string model = word.substr(0, word.find('-'));
    if (!model.empty() && std::isupper(static_cast<unsigned char>(model[0])) != 0 &&
        model.find_first_of("0123456789") != std::string::npos)
      return model;
  }
  return "";
}

bool unlike_gpus(const std::string& a, const std::string& b) {
  const std::string first = gpu_model(a), second = gpu_model(b);
  return (first.empty() ? a : first) != (second.empty() ? b : second);
}

}  // namespace equipoise

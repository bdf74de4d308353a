#include "traces/known_names.h"

#include <string>

#include "policies/error.h"
#include "policies/policy.h"

namespace equipoise {

void refuse_name(std::string_view what, std::string_view name, std::span<const std::string_view> known) {
  std::string message = std::string(what) + ": unknown name '" + std::string(name) + "'; expected one of ";
  for (std::size_t i = 0; i < known.size(); ++i) message += (i == 0 ? "" : ", ") + std::string(known[i]);
  const std::string_view near = nearest_name(name, known);
  throw UserError(near.empty() ? message : message + "; did you mean '" + std::string(near) + "'?");
}

}  // namespace equipoise

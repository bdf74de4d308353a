// Puts the place of a user's text in front of an error of code that does not know it.
#pragma once

#include <string>

#include "policies/base/error.h"
#include "policies/loader.h"

namespace equipoise {

// Returns what `look_up` does. A UserError of it gets `where` in front.
template <class LookUp>
auto naming(const std::string& where, const LookUp& look_up) {
  try {
    return look_up();
  } catch (const UnplaceableDocument& e) {
    throw e.in(where);
  } catch (const UserError& e) {
    throw UserError(where, ": ", e.what());
  }
}

}  // namespace equipoise

// Adds the place of a user's text to an error of code that does not know it.
#pragma once

#include <string>

#include "policies/base/error.h"
#include "policies/loader.h"

namespace equipoise {

// Calls `look_up` and returns its result. A UserError gets `where` in front.
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

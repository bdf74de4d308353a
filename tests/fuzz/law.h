// The law of all readers: a file is read, or it is refused with a UserError of one line. Nothing else.
#pragma once

#include <doctest/doctest.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "policies/base/error.h"
#include "tests/fuzz/mutator.h"

namespace equipoise::test {

inline constexpr int kMutants = 5000;

// Reads every seed, which has to succeed, and kMutants mutants of them, of which so many have to be read: or
// they would be too wild to say anything. 0: of a reader that wants more than the file, and refuses even
// seeds.
template <class Read>
void check_reader(std::vector<std::string> seeds, const Read& read, int least_good = 20) {
  if (least_good > 0)
    for (const std::string& seed : seeds) CHECK_NOTHROW(read(seed));
  Mutator mutator(std::move(seeds), 10);
  int good = 0, refused = 0;
  for (int i = 0; i < kMutants; ++i) {
    const std::string bytes = mutator.next();
    std::string fault;
    try {
      read(bytes);
      ++good;
    } catch (const UserError& e) {
      ++refused;
      if (std::string_view(e.what()).empty()) fault = "refused without a word";
    } catch (const std::exception& e) {
      fault = e.what();
    }
    if (!fault.empty()) {
      CAPTURE(i);
      CAPTURE(bytes.substr(0, 2000));
      FAIL_CHECK("internal fault: ", fault);
    }
  }
  CHECK(good >= least_good);
  CHECK(refused > kMutants / 10);  // nor too tame
}

}  // namespace equipoise::test

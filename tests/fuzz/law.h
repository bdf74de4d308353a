// The law of all readers: a file is read, or it is refused with a UserError, which the program prints as one
// line whatever it quotes (sim/cli/main.cpp). Nothing else.
//
// Three ways to try it. Every build runs the seeds, kMutants mutants of them, and the corpus: inputs that
// together reach all the branches that libFuzzer found (corpus/, one file a reader). The fuzz preset
// (clang++) also lets libFuzzer grow that corpus by coverage: run.py.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "tests/fuzz/mutator.h"

namespace equipoise::test {

#ifdef __SANITIZE_ADDRESS__
inline constexpr int kMutants = 1000, kLeastGood = 2;  // more take minutes; libFuzzer tries millions at night
#else
inline constexpr int kMutants = 5000, kLeastGood = 20;
#endif

enum class Verdict { read, refused };

// Whether `read` takes the bytes. Throws std::logic_error with the fault where the law is broken.
template <class Read>
Verdict verdict_of(const Read& read, const std::string& bytes) {
  try {
    read(bytes);
    return Verdict::read;
  } catch (const UserError& e) {
    if (std::string_view(e.what()).empty()) throw std::logic_error("refused without a word");
    return Verdict::refused;
  } catch (const std::exception& e) {
    throw std::logic_error(e.what());
  }
}

// The inputs of a corpus file, each after a line with its size. A reader without one has none.
inline std::vector<std::string> corpus_of(const std::string& name) {
  const std::string path = EQUIPOISE_SOURCE_DIR "/tests/fuzz/corpus/" + name;
  std::vector<std::string> inputs;
  if (!std::filesystem::exists(path)) return inputs;
  const std::string packed = read_text_file(path);
  for (std::size_t at = 0; at < packed.size();) {
    const std::size_t line = packed.find('\n', at);
    const std::size_t size = std::stoul(packed.substr(at, line - at));
    inputs.push_back(packed.substr(line + 1, size));
    at = line + 1 + size;
  }
  return inputs;
}

// Whether run.py started this: other tests of the program are none of its business.
inline bool fuzzing() {
  return std::getenv("EQUIPOISE_FUZZ") != nullptr;
}

#ifdef EQUIPOISE_LIBFUZZER
// Fuzzes from the seeds until the time of run.py is over, and ends the process: libfuzzer.cpp.
void fuzz(const std::string& name, const std::vector<std::string>& seeds,
          const std::function<void(const std::string&)>& law);
#endif

// Reads every seed, which has to succeed, the corpus, and `mutants` mutants, of which so many have to be
// read: or they would be too wild to say anything. 0: of a reader that wants more than the file, and refuses
// even seeds. `name`: of its corpus.
template <class Read>
void check_reader(const std::string& name, std::vector<std::string> seeds, const Read& read,
                  int least_good = kLeastGood, int mutants = kMutants) {
#ifdef EQUIPOISE_LIBFUZZER
  if (fuzzing()) return fuzz(name, seeds, [&](const std::string& bytes) { (void)verdict_of(read, bytes); });
#endif
  if (least_good > 0)
    for (const std::string& seed : seeds) CHECK_NOTHROW(read(seed));
  int good = 0, refused = 0;
  const auto try_one = [&](const std::string& bytes) {
    try {
      ++(verdict_of(read, bytes) == Verdict::read ? good : refused);
    } catch (const std::logic_error& e) {
      CAPTURE(name);
      CAPTURE(bytes.substr(0, 2000));
      FAIL_CHECK("internal fault: ", e.what());
    }
  };
  for (const std::string& bytes : corpus_of(name)) try_one(bytes);
  good = refused = 0;
  Mutator mutator(std::move(seeds), 10);
  for (int i = 0; i < mutants; ++i) try_one(mutator.next());
  CHECK(good >= least_good);
  CHECK(refused > mutants / 10);  // nor too tame
}

}  // namespace equipoise::test

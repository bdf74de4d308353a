// libFuzzer as a library: doctest's program finds the reader, and this runs it.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/fuzz/law.h"

extern "C" {
int LLVMFuzzerRunDriver(int* count, char*** arguments,
                        int (*input)(const std::uint8_t* data, std::size_t size));
std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);
}

namespace equipoise::test {
namespace {

std::function<void(const std::string&)>& law_under_test() {
  static std::function<void(const std::string&)> law;
  return law;
}

int run(const std::uint8_t* data, std::size_t size) {
  try {
    law_under_test()(std::string(reinterpret_cast<const char*>(data), size));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "internal fault: %s\n", e.what());
    std::abort();
  }
  return 0;
}

// What a file's words are: everything between quotes. False: there are none, which libFuzzer refuses.
bool write_dictionary(const std::string& path, const std::vector<std::string>& seeds) {
  std::set<std::string> words;
  for (const std::string& seed : seeds)
    for (std::size_t at = seed.find('"'); at != std::string::npos;) {
      const std::size_t end = seed.find('"', at + 1);
      if (end == std::string::npos) break;
      const std::string word = seed.substr(at + 1, end - at - 1);
      const bool plain =
          word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-:. ") ==
          std::string::npos;
      if (!word.empty() && word.size() < 40 && plain) words.insert(word);
      at = seed.find('"', end + 1);
    }
  std::ofstream out(path);
  for (const std::string& word : words) out << "\"\\\"" << word << "\\\"\"\n";
  return !words.empty();
}

std::vector<std::string> command_line() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(in, word, '\0');) words.push_back(word);
  return words;
}

[[noreturn]] void drive(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int count = static_cast<int>(words.size());
  char** values = arguments.data();
  std::_Exit(LLVMFuzzerRunDriver(&count, &values, run));
}

}  // namespace

// EQUIPOISE_FUZZ: the reader's name, or "list", which prints the names. EQUIPOISE_FUZZ_FOLDER: of its corpus.
// EQUIPOISE_FUZZ_ARGS: libFuzzer's options; a file last: it alone.
void fuzz(const std::string& name, const std::vector<std::string>& seeds,
          const std::function<void(const std::string&)>& law) {
  const std::string wanted = std::getenv("EQUIPOISE_FUZZ");
  if (wanted == "list") std::printf("reader: %s\n", name.c_str());
  if (wanted != name) return;
  law_under_test() = law;
  const std::vector<std::string> mine = command_line();
  for (const std::string& word : mine)  // libFuzzer starts itself again for each part of a merge
    if (word.starts_with("-merge_control_file=")) drive(mine);
  const std::string folder = std::getenv("EQUIPOISE_FUZZ_FOLDER");
  std::size_t longest = 64;
  std::size_t number = 0;
  std::vector<std::string> all = seeds;
  for (const std::string& input : corpus_of(name)) all.push_back(input);
  for (const std::string& input : all) {
    std::ofstream(folder + "/seed-" + std::to_string(number++), std::ios::binary) << input;
    longest = std::max(longest, input.size());
  }
  const std::string dictionary = folder + ".dictionary";
  std::vector<std::string> words = {mine.front(), "-max_len=" + std::to_string(2 * longest)};
  if (write_dictionary(dictionary, seeds)) words.push_back("-dict=" + dictionary);
  std::string options = std::getenv("EQUIPOISE_FUZZ_ARGS");
  for (std::size_t at = 0, end = 0; end != std::string::npos; at = end + 1) {
    end = options.find(' ', at);
    if (end != at) words.push_back(options.substr(at, end - at));
  }
  // libFuzzer takes either files, to run each once, or a folder to go on from.
  if (!std::filesystem::is_regular_file(words.back())) words.push_back(folder);
  drive(words);
}

}  // namespace equipoise::test

// Every other mutant is one of the Mutator, who knows numbers and words; libFuzzer's own know neither.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned int seed) {
  if (seed % 2 == 0) return LLVMFuzzerMutate(data, size, most);
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const std::string changed = equipoise::test::Mutator({bytes}, seed).next();
  const std::size_t length = std::min(changed.size(), most);
  std::copy_n(changed.begin(), length, reinterpret_cast<char*>(data));
  return length;
}

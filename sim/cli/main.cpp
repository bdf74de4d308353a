#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <new>
#include <streambuf>
#include <string>
#include <string_view>

#include "kernels/collectives.h"
#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"
#include "sim/cli/command_line.h"
#include "sim/execution/launch.h"
#include "sim/execution/rank_health.h"
#include "sim/study/run_options.h"

namespace equipoise {
namespace {

constexpr int kInputError = 2;
constexpr int kInternalFault = 3;
constexpr std::size_t kMostNameShown = 200;

// Prints one line on stderr, whatever the message holds: names from files may contain any bytes and have any
// length. A long message is cut in the middle: it begins with the file and ends with the remedy.
void print_error(const std::string& message) {
  constexpr std::size_t kMostShown = 480;
  std::string shown = printable(message);
  if (shown.size() > kMostShown) {
    const std::string end = shown.substr(shown.size() - kMostShown / 3);
    const std::size_t letter = end.find_first_of(" ,;");  // so that no character is cut
    shown = shown.substr(0, utf8_prefix(shown.substr(0, kMostShown - kMostShown / 3 - 5))) + " ..." +
            end.substr(letter == std::string::npos ? 0 : letter);
  }
  std::cerr << "error: " << shown << '\n';
}

// Passes on what commands print, in whole lines and without bytes that would move a cursor or change the
// terminal. Names come from files and may contain any bytes.
class PrintableLines final : public std::streambuf {
 public:
  explicit PrintableLines(std::ostream& stream) : stream_(stream), to_(stream.rdbuf(this)) {}
  PrintableLines(const PrintableLines&) = delete;
  PrintableLines& operator=(const PrintableLines&) = delete;
  ~PrintableLines() override {
    sync();
    stream_.rdbuf(to_);
  }

 protected:
  int_type overflow(int_type c) override {
    const char letter = traits_type::to_char_type(c);
    return traits_type::eq_int_type(c, traits_type::eof()) || xsputn(&letter, 1) == 1
               ? traits_type::not_eof(c)
               : traits_type::eof();
  }
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    constexpr std::size_t kMostHeld = std::size_t{1} << 16;
    held_.append(text, static_cast<std::size_t>(size));
    if (const std::size_t end = held_.rfind('\n'); held_.size() > kMostHeld && end != std::string::npos)
      return put(end + 1) ? size : 0;
    return size;
  }
  int sync() override { return put(held_.size()) && to_->pubsync() == 0 ? 0 : -1; }

 private:
  // Passes on the first bytes of the buffer.
  bool put(std::size_t size) {
    const std::string_view first = std::string_view(held_).substr(0, size);
    const bool plain =
        std::ranges::all_of(first, [](char c) { return (c >= ' ' && c < '\x7f') || c == '\n' || c == '\t'; });
    const std::string text = plain ? std::string(first) : printable_lines(first);
    held_.erase(0, size);
    const auto bytes = static_cast<std::streamsize>(text.size());
    return to_->sputn(text.data(), bytes) == bytes;
  }

  std::ostream& stream_;
  std::streambuf* to_;
  std::string held_;
};

// nlohmann's values allocate when they are destroyed. If memory runs out there, a second std::bad_alloc
// leaves a destructor and nothing can catch it.
[[noreturn]] void end_without_memory() {
  try {
    if (std::current_exception()) std::rethrow_exception(std::current_exception());
  } catch (const std::bad_alloc&) {
    constexpr std::string_view kText =
        "error: what was asked needs more memory than is allowed: expected smaller sizes, or more by "
        "--max-memory-GB\n";
    const ssize_t written = ::write(STDERR_FILENO, kText.data(), kText.size());
    ::_exit(written < 0 ? kInternalFault : kInputError);
  } catch (...) {
  }
  std::abort();
}

// Returns the exit status: 0 success, 1 a check failed, 2 wrong input, 3 internal fault, 130 after Ctrl-C.
int run_program(int argc, char** argv) {
  std::set_terminate(end_without_memory);
  const PrintableLines printable(std::cout);
  std::signal(SIGXFSZ, SIG_IGN);  // above `ulimit -f` a write then fails, and the partial file is removed
  try {
    const int status = parse_and_run(argc, argv);
    if (!std::cout.flush()) throw UserError("standard output: cannot be written");
    return status;
  } catch (const Interrupted& e) {
    std::cerr << e.what() << '\n';
    return kInterrupted;
  } catch (const UserError& e) {
    print_error(e.what());
    return kInputError;
  } catch (const std::bad_alloc&) {
    print_error(
        "what was asked needs more memory than is allowed: expected smaller sizes, or more by "
        "--max-memory-GB (by default the least of 80% of the machine's, the cgroup's and RLIMIT_AS)");
    return kInputError;
  } catch (const std::filesystem::filesystem_error& e) {  // a name that no file system accepts
    const std::string name = e.path1().string().substr(0, kMostNameShown);
    print_error((name.empty() ? "" : name + ": ") + e.code().message());
    return kInputError;
  } catch (const std::exception& e) {
    print_error(std::string("internal fault: ") + e.what());
    return kInternalFault;
  }
}

// If the stack is limited to less than the program needs (`ulimit -s`), starts the program again with more,
// as far as the hard limit allows; else reports it. Threads have as much as the program.
void require_stack(char** argv) {
  constexpr rlim_t kLeast = rlim_t{1} << 20, kUsual = rlim_t{8} << 20;
  rlimit stack{};
  if (::getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= kLeast) return;
  if (stack.rlim_max >= kLeast) {
    stack.rlim_cur = std::min(kUsual, stack.rlim_max);
    if (::setrlimit(RLIMIT_STACK, &stack) == 0) ::execv("/proc/self/exe", argv);
  }
  constexpr std::string_view kText = "error: ulimit -s: expected a stack of at least 1024 KB, found less\n";
  const ssize_t written = ::write(STDERR_FILENO, kText.data(), kText.size());
  ::_exit(written < 0 ? kInternalFault : kInputError);
}

}  // namespace
}  // namespace equipoise

int main(int argc, char** argv) {
  equipoise::require_stack(argv);
  const int status = equipoise::run_program(argc, argv);
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  if (status == 0) {
    using equipoise::execution::RankStage;
    note_stage(RankStage::in_mpi_finalize);
    equipoise::kernels::finish_mpi();  // skipped on failure: it waits for the other ranks
    note_stage(RankStage::ended);
  }
#ifdef __SANITIZE_ADDRESS__
  // A normal exit of a rank that failed alone would wait for the others.
  if (status != 0 && equipoise::execution::under_launcher()) std::_Exit(status);
#endif
#ifndef __SANITIZE_ADDRESS__  // whose leak check runs at a normal exit
  // Does not wait for threads of libraries: with too little address space, OpenBLAS's ask for memory forever.
  std::_Exit(status);
#endif
  return status;
}

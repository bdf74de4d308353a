#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <new>
#include <string_view>

#include "kernels/collectives.h"
#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"
#include "sim/cli/command_line.h"
#include "sim/execution/launch.h"
#include "sim/study/run_options.h"

namespace equipoise {
namespace {

constexpr int kInputError = 2;
constexpr int kInternalFault = 3;
constexpr std::size_t kMostNameShown = 200;

// One line on stderr, whatever the message holds: names from files may carry any bytes, and be of any length.
// What is cut is the middle: it begins with the file and the key, and ends with what would do.
void print_error(const std::string& message) {
  constexpr std::size_t kMostShown = 480;
  std::string shown = printable(message);
  if (shown.size() > kMostShown) {
    const std::string end = shown.substr(shown.size() - kMostShown / 3);
    const std::size_t letter = end.find_first_of(" ,;");  // of no cut character
    shown = shown.substr(0, utf8_prefix(shown.substr(0, kMostShown - kMostShown / 3 - 5))) + " ..." +
            end.substr(letter == std::string::npos ? 0 : letter);
  }
  std::cerr << "error: " << shown << '\n';
}

// nlohmann's values allocate when they are destroyed: out of memory, a second std::bad_alloc leaves a
// destructor and nothing can catch it.
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
  } catch (const std::filesystem::filesystem_error& e) {  // a name that no file system takes
    print_error(e.path1().string().substr(0, kMostNameShown) + ": " + e.code().message());
    return kInputError;
  } catch (const std::exception& e) {
    print_error(std::string("internal fault: ") + e.what());
    return kInternalFault;
  }
}

}  // namespace
}  // namespace equipoise

int main(int argc, char** argv) {
  const int status = equipoise::run_program(argc, argv);
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  if (status == 0)
    equipoise::kernels::finish_mpi();  // a rank that failed alone would wait there for the others
#ifdef __SANITIZE_ADDRESS__
  // A normal exit of a rank that failed alone would wait for the others.
  if (status != 0 && equipoise::execution::under_launcher()) std::_Exit(status);
#endif
#ifndef __SANITIZE_ADDRESS__  // its leak check runs at a normal exit
  // Threads of libraries are not waited for: with too little address space OpenBLAS's ask for memory forever.
  std::_Exit(status);
#endif
  return status;
}

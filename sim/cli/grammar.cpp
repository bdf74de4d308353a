#include "sim/cli/grammar.h"

#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

#include "policies/error.h"

namespace equipoise {
namespace {

constexpr int kInputError = 2;
constexpr int kInternalFault = 3;

// One line on stderr, whatever the message holds.
void print_error(std::string message) {
  for (char& c : message)
    if (c == '\n') c = ' ';
  std::cerr << "error: " << message << '\n';
}

}  // namespace

int run_program(int argc, char** argv) {
  CLI::App app{"Compares packing and sharding policies of long-context training on a simulated cluster"};
  app.name("equipoise");
  app.set_version_flag("--version", EQUIPOISE_VERSION);
  app.require_subcommand(1);
  // Each command adds itself here: add_<command>(app).
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done);
  } catch (const CLI::ParseError& e) {
    print_error(e.what());
    return kInputError;
  } catch (const UserError& e) {
    print_error(e.what());
    return kInputError;
  } catch (const std::exception& e) {
    print_error(std::string("internal fault: ") + e.what());
    return kInternalFault;
  }
}

}  // namespace equipoise

#include "sim/cli/grammar.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/utf8.h"
#include "sim/cli/argument_errors.h"
#include "sim/cli/command_profile.h"
#include "sim/cli/command_schedule.h"
#include "sim/cli/grammar_parts.h"
#include "sim/cli/interrupt.h"
#include "sim/limits/memory_limit.h"

namespace equipoise {
namespace {

constexpr int kInputError = 2;
constexpr int kInternalFault = 3;
constexpr std::size_t kMostNameShown = 200;

// One line on stderr, whatever the message holds: names from files may carry any bytes, and be of any length.
void print_error(const std::string& message) {
  constexpr std::size_t kMostShown = 4000;
  std::string shown = printable(message);
  if (shown.size() > kMostShown)
    shown = shown.substr(0, kMostShown / 2) + " ... " + shown.substr(shown.size() - kMostShown / 2);
  std::cerr << "error: " << shown << '\n';
}

void add_schedule(CLI::App& app) {
  struct Arguments {
    ScheduleOptions options;
    std::string lengths;
    std::string chunk_size;
    std::string format = "table";
  };
  CLI::App* command = app.add_subcommand("schedule", "Draw one pipeline and its numbers, with time = length");
  command->footer(
      "Example: equipoise schedule --schedule state-aware-1f1b --stages 4 --lengths 1,1,2,4 --chunk-size 2 "
      "--keep 1");
  const auto arguments = std::make_shared<Arguments>();
  ScheduleOptions& options = arguments->options;
  command->add_option("--schedule", options.schedule, "See `equipoise list schedules`")->required();
  command->add_option("--stages", options.stages, "Pipeline stages")->required();
  command->add_option("--lengths", arguments->lengths, "Micro-batches; documents where --chunk-size is given")
      ->required();
  command->add_option("--chunk-size", arguments->chunk_size, "ChunkFlow: tokens of a chunk");
  command->add_option("--keep", options.keep, "ChunkFlow's K: chunks of a group that keep activations")
      ->capture_default_str();
  command->add_flag("--strict-keep", options.strict_keep, "Never hold K + 1 chunks of a group; slower");
  command
      ->add_option("--virtual-stages", options.virtual_stages, "Model chunks of a stage (interleaved-1f1b)")
      ->capture_default_str();
  command->add_flag(
      "--pairs", options.pairs,
      "Issue a forward and the backward of another micro-batch together (expert_overlap dualpipe)");
  command->add_option("--backward-ratio", options.backward_ratio, "Backward time / forward time")
      ->capture_default_str();
  command->add_option("--p2p", options.p2p, "Time of a hop between two stages")->capture_default_str();
  command->add_option("--profile", options.profile,
                      "Times from a profile, in seconds (table: ms), not from lengths");
  command->add_option("--model", options.model, "With --profile: the model")->capture_default_str();
  command->add_option("--tensor", options.tensor, "With --profile: tensor-parallel GPUs of a stage")
      ->capture_default_str();
  add_memory_option(*command, options.max_memory_GB);
  command->add_option("--format", arguments->format, "table, json or csv")->capture_default_str();
  command->callback([arguments] {
    bound_memory(memory_limit(arguments->options.max_memory_GB));
    ScheduleOptions run = arguments->options;
    run.lengths = parse_lengths(arguments->lengths, "--lengths");
    if (!arguments->chunk_size.empty()) run.chunk_size = parse_length(arguments->chunk_size, "--chunk-size");
    run.format = parse_format(arguments->format);
    run.columns = terminal_columns();
    run.color = colors_wanted();
    schedule_command(run, std::cout, std::cerr);
  });
}

void add_profile(CLI::App& app, int& status) {
  CLI::App* command =
      app.add_subcommand("profile", "Measure this machine's kernels: samples for `equipoise fit`");
  command->footer("Example: equipoise profile --device cpu --minutes 3 --out samples.json");
  const auto options = std::make_shared<ProfileOptions>();
  command->add_option("--device", options->session.device, "cpu or cuda")->capture_default_str();
  command
      ->add_option("--minutes", options->session.minutes, "Time budget; the most telling shapes come first")
      ->capture_default_str();
  command->add_option("--out", options->session.out, "Samples file; <file>.journal keeps finished samples")
      ->capture_default_str();
  command->add_flag("--resume", options->session.resume, "Keep the samples of the journal and go on");
  command->add_option("--models", options->session.models, "GEMM shapes of these models only")
      ->delimiter(',');
  command
      ->add_option("--only", options->session.families,
                   "Of attention, gemm, elementwise, copy, launch; under mpirun collective")
      ->delimiter(',');
  command
      ->add_option("--lengths", options->lengths, "Documents of packed mixes: a trace file or a distribution")
      ->capture_default_str();
  command->add_option("--seed", options->session.seed, "Of the shapes that are drawn at random")
      ->capture_default_str();
  command->add_flag("--quiet", options->session.quiet, "No progress");
  command->callback(
      [options, &status] { status = run_profile(*options, std::cout, std::cerr, stop_on_interrupt()); });
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

}  // namespace

void add_memory_option(CLI::App& command, double& max_memory_GB) {
  command
      .add_option("--max-memory-GB", max_memory_GB,
                  "Most memory to plan for; the least of 80% of the machine's, the cgroup's and RLIMIT_AS "
                  "by default")
      ->check([](const std::string& typed) {  // 0 is what stands for "not typed"
        double value = 0;
        const bool is_zero = CLI::detail::lexical_cast(typed, value) && value == 0;
        return std::string(is_zero ? "expected a number from 0.1 to 1000000, found 0" : "");
      });
}

void add_run_options(CLI::App& command, int& jobs, double& max_memory_GB, std::string& format, bool& quiet) {
  command.add_option("--jobs", jobs, "Threads; all cores by default")->check(CLI::Range(0, 4096));
  add_memory_option(command, max_memory_GB);
  command.add_option("--format", format, "table, json or csv")->capture_default_str();
  command.add_flag("--quiet", quiet, "No notes on stderr");
}

void bound_run(double max_memory_GB, int jobs) {
  constexpr int kRows = 2;  // at a time (run_study.h), each of which may have helpers
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  bound_memory(memory_limit(max_memory_GB), kRows * std::max(cores, jobs));
}

int run_program(int argc, char** argv) {
  CLI::App app{"Compares packing and sharding policies of long-context training on a simulated cluster"};
  app.name("equipoise");
  app.set_version_flag("--version", EQUIPOISE_VERSION);
  app.require_subcommand(1);
  // Each command adds itself here: add_<command>(app).
  int status = 0;  // of the command that ran: 1 where a check failed, 130 after Ctrl-C
  add_study(app, status);
  add_check(app, status);
  add_tune(app, status);
  add_merge(app, status);
  add_pack(app);
  add_shard(app);
  add_schedule(app);
  add_profile(app, status);
  add_fit(app);
  add_profiles(app);
  add_predict(app);
  add_list(app);
  add_trace(app);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  add_execute(app, arguments, status);
  add_validate(app, arguments, status);
  add_self_description(app);
  check_numbers(app);
  check_outputs(app);
  std::set_terminate(end_without_memory);
  try {
    check_command_names(app, argc, argv);
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& done) {  // --help, --version
      status = app.exit(done);
    }
    if (!std::cout.flush()) throw UserError("standard output: cannot be written");
    return status;
  } catch (const CLI::ParseError& e) {
    print_error(explained(app, e));
    return kInputError;
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

}  // namespace equipoise

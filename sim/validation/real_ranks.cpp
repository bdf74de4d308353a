#include <chrono>
#include <cstdio>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "kernels/collectives.h"
#include "policies/base/error.h"
#include "policies/base/names.h"
#include "sim/execution/communicators.h"
#include "sim/execution/launch.h"
#include "sim/execution/watchdog.h"
#include "sim/validation/real_run.h"

namespace equipoise {
namespace {

std::unique_ptr<kernels::Backend> make_backend(const std::string& device) {
  std::vector<std::string_view> names;
  for (const kernels::BackendKind& kind : kernels::kBackends) {
    names.push_back(kind.name);
    if (kind.name != device) continue;
    std::string reason;
    auto backend = kind.make(reason);
    if (!backend) throw UserError("--device " + device + ": " + reason);
    return backend;
  }
  refuse_name("--device", device, names);
}

bool is_gpu(const std::string& device) {
  for (const kernels::BackendKind& kind : kernels::kBackends)
    if (kind.name == device) return kind.gpu;
  return false;
}

void as_threads(int ranks, const std::string& device, bool turns,
                const std::function<void(const RealRank&)>& body) {
  kernels::Turn turn;
  kernels::run_in_process(
      ranks,
      [&](kernels::Communicator& world) {
        const auto backend = make_backend(device);
        if (!is_gpu(device)) return body({*backend, world, world, nullptr});
        const auto elements = execution::staged(world, *backend);
        body({*backend, *elements, world, nullptr});
      },
      turns ? &turn : nullptr);
}

void as_process(int ranks, const std::string& device, kernels::Communicator& world,
                execution::Watchdog& watchdog, const std::function<void(const RealRank&)>& body) {
  if (world.size() != ranks)
    throw UserError("the study has " + std::to_string(ranks) +
                    " ranks (tensor x context x pipeline x data), but " + std::to_string(world.size()) +
                    " processes were started");
  const auto backend = make_backend(device);
  const auto floats = execution::watched(world, watchdog.progress());
  RealRank rank{*backend, *floats, *floats, &watchdog};
  if (!is_gpu(device)) return body(rank);
  std::string reason;
  const auto nccl =
      kernels::make_nccl_world(world, backend->element_type() == kernels::ElementType::bf16, reason);
  if (!nccl) throw UserError("--device " + device + ": " + reason);
  const auto elements = execution::watched(*nccl, watchdog.progress());
  body({*backend, *elements, *floats, &watchdog});
}

// An error that all ranks see is told by rank 0, whose end ends all. If this rank alone has it, it speaks.
[[noreturn]] void end_unless_rank_0_does(execution::Watchdog& watchdog, const UserError& error) {
  std::this_thread::sleep_for(std::chrono::seconds(15));
  std::fprintf(stderr, "error: %s\n", error.what());
  watchdog.end_all(2);
}

}  // namespace

bool needs_launcher(int ranks, bool turns) {
  return ranks > 1 && !turns && !execution::under_launcher();
}

void on_ranks(int ranks, const std::string& device, bool turns, const execution::HealthLimits& limits,
              const std::function<void(const RealRank&)>& body) {
  if (turns || !execution::under_launcher()) return as_threads(ranks, device, turns, body);
  std::string reason;
  const auto world = kernels::make_mpi_world(reason);
  if (!world) throw UserError("ranks as processes: " + reason);
  execution::Watchdog watchdog(*world, limits);
  try {
    as_process(ranks, device, *world, watchdog, body);
  } catch (const std::bad_alloc&) {
    watchdog.fail("ran out of memory");
  } catch (const UserError& e) {
    if (world->rank() == 0) throw;  // who prints, and whose status is the job's
    end_unless_rank_0_does(watchdog, e);
  } catch (const std::exception& e) {
    watchdog.fail(std::string("failed: ") + e.what());
  }
}

}  // namespace equipoise

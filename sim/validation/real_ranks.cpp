#include "sim/validation/real_ranks.h"

#include <memory>
#include <vector>

#include "kernels/turn.h"
#include "policies/base/error.h"
#include "policies/base/names.h"
#include "sim/execution/launch.h"
#include "sim/execution/staged_communicator.h"

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
        if (!is_gpu(device)) return body({*backend, world, world});
        execution::StagedCommunicator elements(world, *backend);
        body({*backend, elements, world});
      },
      turns ? &turn : nullptr);
}

}  // namespace

bool needs_launcher(int ranks, bool turns) {
  return ranks > 1 && !turns && !execution::under_launcher();
}

void on_ranks(int ranks, const std::string& device, bool turns,
              const std::function<void(const RealRank&)>& body) {
  if (turns || !execution::under_launcher()) return as_threads(ranks, device, turns, body);
  std::string reason;
  const auto world = kernels::make_mpi_world(reason);
  if (!world) throw UserError("ranks as processes: " + reason);
  if (world->size() != ranks)
    throw UserError("the study has " + std::to_string(ranks) +
                    " ranks (tensor x context x pipeline x data), but " + std::to_string(world->size()) +
                    " processes were started");
  const auto backend = make_backend(device);
  if (!is_gpu(device)) return body({*backend, *world, *world});
  const auto elements =
      kernels::make_nccl_world(*world, backend->element_type() == kernels::ElementType::bf16, reason);
  if (!elements) throw UserError("--device " + device + ": " + reason);
  body({*backend, *elements, *world});
}

}  // namespace equipoise

// Stands in where cuDNN or its frontend was missing at build time: every attention call says so.
#include <stdexcept>

#include "kernels/cuda/attention_graph.h"

namespace equipoise::kernels::cuda {
namespace {

constexpr const char* kReason = "this program was built without cuDNN attention";

}  // namespace

struct AttentionGraph::Graph {};

DeclaredAttention declared_for(const AttentionShape&, Pass, bool, std::int64_t, std::int64_t, std::int64_t,
                               std::int64_t, std::int64_t) {
  return {};
}
AttentionGraph::AttentionGraph(const DeclaredAttention&, int) {
  throw std::runtime_error(kReason);
}
AttentionGraph::~AttentionGraph() = default;
std::string AttentionGraph::validate() {
  return kReason;
}
void AttentionGraph::build(void*) {}
std::size_t AttentionGraph::workspace_bytes() const {
  return 0;
}
void AttentionGraph::execute(void*, const AttentionPointers&, void*) const {}

void* make_cudnn_handle() {
  return nullptr;
}
void destroy_cudnn_handle(void*) noexcept {}
std::string cudnn_version() {
  return "absent";
}

}  // namespace equipoise::kernels::cuda

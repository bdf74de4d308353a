#include "kernels/collectives.h"
#include "kernels/cuda/module.h"

namespace equipoise::kernels {

std::unique_ptr<Communicator> cuda::open_nccl_world(Communicator&, bool, std::string& reason) {
  reason = "this program was built without NCCL";
  return nullptr;
}

}  // namespace equipoise::kernels

extern "C" void equipoise_open_nccl_world(std::unique_ptr<equipoise::kernels::Communicator>* world,
                                          equipoise::kernels::Communicator* host, bool bf16,
                                          std::string* reason) {
  *world = equipoise::kernels::cuda::open_nccl_world(*host, bf16, *reason);
}

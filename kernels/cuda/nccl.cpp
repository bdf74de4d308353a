// Ranks as GPUs, over NCCL, on the default stream: calls return before they are done.
#include <nccl.h>

#include <array>
#include <stdexcept>

#include "kernels/collectives.h"
#include "kernels/cuda/error.h"
#include "kernels/cuda/module.h"

namespace equipoise::kernels {
namespace {

void check_nccl(ncclResult_t status, const char* call) {
  if (status != ncclSuccess) throw std::runtime_error(std::string(call) + ": " + ncclGetErrorString(status));
}

std::size_t size_of(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

class Nccl : public Communicator {
 public:
  Nccl(ncclComm_t comm, ncclDataType_t type)
      : comm_(comm), type_(type), bytes_(type == ncclBfloat16 ? 2 : 4) {
    check_nccl(ncclCommUserRank(comm_, &rank_), "ncclCommUserRank");
    check_nccl(ncclCommCount(comm_, &size_), "ncclCommCount");
    cuda::check(cudaMalloc(&token_, sizeof(float)), "cudaMalloc");
  }
  ~Nccl() override {
    cudaFree(token_);
    ncclCommDestroy(comm_);
  }

  [[nodiscard]] std::string_view name() const override { return "nccl"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  void barrier() override {
    check_nccl(ncclAllReduce(token_, token_, 1, ncclFloat, ncclMax, comm_, nullptr), "ncclAllReduce");
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  void all_gather(const void* send, void* receive, std::int64_t count) override {
    check_nccl(ncclAllGather(send, receive, size_of(count), type_, comm_, nullptr), "ncclAllGather");
  }
  void reduce_scatter(const void* send, void* receive, std::int64_t count) override {
    check_nccl(ncclReduceScatter(send, receive, size_of(count), type_, ncclSum, comm_, nullptr),
               "ncclReduceScatter");
  }
  void all_reduce(const void* send, void* receive, std::int64_t count) override {
    check_nccl(ncclAllReduce(send, receive, size_of(count), type_, ncclSum, comm_, nullptr), "ncclAllReduce");
  }
  void all_to_all(const void* send, void* receive, std::int64_t count) override {
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    for (int peer = 0; peer < size_; ++peer) {
      const std::size_t offset = static_cast<std::size_t>(peer) * size_of(count) * bytes_;
      check_nccl(
          ncclSend(static_cast<const char*>(send) + offset, size_of(count), type_, peer, comm_, nullptr),
          "ncclSend");
      check_nccl(ncclRecv(static_cast<char*>(receive) + offset, size_of(count), type_, peer, comm_, nullptr),
                 "ncclRecv");
    }
    check_nccl(ncclGroupEnd(), "ncclGroupEnd");
  }
  void send(const void* data, std::int64_t count, int peer) override {
    check_nccl(ncclSend(data, size_of(count), type_, peer, comm_, nullptr), "ncclSend");
  }
  void receive(void* data, std::int64_t count, int peer) override {
    check_nccl(ncclRecv(data, size_of(count), type_, peer, comm_, nullptr), "ncclRecv");
  }
  void send_receive(const void* data, int target, void* incoming, int source, std::int64_t count) override {
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    send(data, count, target);
    receive(incoming, count, source);
    check_nccl(ncclGroupEnd(), "ncclGroupEnd");
  }

  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override {
    ncclComm_t part = nullptr;
    check_nccl(ncclCommSplit(comm_, color, key, &part, nullptr), "ncclCommSplit");
    return std::make_unique<Nccl>(part, type_);
  }

 private:
  ncclComm_t comm_;
  ncclDataType_t type_;
  std::size_t bytes_;
  int rank_ = 0;
  int size_ = 1;
  void* token_ = nullptr;
};

// Rank 0 makes the identifier; the others learn it through the host's ranks, a byte a float, which is exact.
ncclUniqueId shared_id(Communicator& host) {
  ncclUniqueId id{};
  std::array<float, NCCL_UNIQUE_ID_BYTES> mine{};
  std::array<float, NCCL_UNIQUE_ID_BYTES> all{};
  if (host.rank() == 0) {
    check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    for (std::size_t i = 0; i < mine.size(); ++i)
      mine[i] = static_cast<float>(static_cast<unsigned char>(id.internal[i]));
  }
  host.all_reduce(mine.data(), all.data(), static_cast<std::int64_t>(mine.size()));
  for (std::size_t i = 0; i < all.size(); ++i) {
    id.internal[i] = static_cast<char>(static_cast<unsigned char>(all[i]));
  }
  return id;
}

}  // namespace

std::unique_ptr<Communicator> cuda::open_nccl_world(Communicator& host_world, bool bf16,
                                                    std::string& reason) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    reason = "no device";
    return nullptr;
  }
  try {
    const ncclUniqueId id = shared_id(host_world);
    ncclComm_t comm = nullptr;
    check_nccl(ncclCommInitRank(&comm, host_world.size(), id, host_world.rank()), "ncclCommInitRank");
    return std::make_unique<Nccl>(comm, bf16 ? ncclBfloat16 : ncclFloat);
  } catch (const std::exception& e) {
    reason = e.what();
    return nullptr;
  }
}

}  // namespace equipoise::kernels

extern "C" void equipoise_open_nccl_world(std::unique_ptr<equipoise::kernels::Communicator>* world,
                                          equipoise::kernels::Communicator* host, bool bf16,
                                          std::string* reason) {
  *world = equipoise::kernels::cuda::open_nccl_world(*host, bf16, *reason);
}

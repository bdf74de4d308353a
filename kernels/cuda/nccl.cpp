// Ranks as GPUs, over NCCL, on the default stream: calls return before they are done.
//
// A send on the default stream would hold up all that follows until the other side receives. So messages have
// two communicators of their own, one to higher ranks and one to lower ranks, and start_send has a stream for
// each. The default stream goes on computing, and a gradient that nobody takes yet holds up no activations.
// NCCL runs the calls on one communicator in their order, whatever their streams. So a rank receives from
// lower ranks in the order of its calls, behind its own sends to higher ranks. Pipelines send along one
// direction and therefore cannot wait in a circle (tests/execution/nccl_order.h looks for one). Tags mean
// nothing: a pair receives in the order of sending.
#include "kernels/collectives.h"

#ifdef EQUIPOISE_NCCL

#include <nccl.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "kernels/cuda/ops.h"

namespace equipoise::kernels {
namespace {

void check_nccl(ncclResult_t status, const char* call) {
  if (status != ncclSuccess) throw std::runtime_error(std::string(call) + ": " + ncclGetErrorString(status));
}

std::size_t size_of(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

class Event {
 public:
  Event() { cuda::check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  // Lets later work on `later` wait for the present work on `earlier`.
  void order(cudaStream_t earlier, cudaStream_t later) {
    record(earlier);
    hold(later);
  }
  void record(cudaStream_t stream) { cuda::check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  void hold(cudaStream_t stream) {
    cuda::check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Only the default stream waits: the host goes on, and what it launches next finds the message sent.
class NcclSend : public Pending {
 public:
  explicit NcclSend(cudaStream_t stream) { sent_.record(stream); }
  ~NcclSend() override {
    try {
      wait();
    } catch (const std::exception&) {  // the device is lost, so nothing will be launched after it
    }
  }
  void wait() override {
    if (!waited_) sent_.hold(nullptr);
    waited_ = true;
  }

 private:
  Event sent_;
  bool waited_ = false;
};

class Nccl : public Communicator {
 public:
  Nccl(ncclComm_t comm, ncclDataType_t type)
      : comm_(comm), type_(type), bytes_(type == ncclBfloat16 ? 2 : 4) {
    check_nccl(ncclCommUserRank(comm_, &rank_), "ncclCommUserRank");
    check_nccl(ncclCommCount(comm_, &size_), "ncclCommCount");
    cuda::check(cudaMalloc(&token_, sizeof(float)), "cudaMalloc");
    for (cudaStream_t& sends : sends_)
      cuda::check(cudaStreamCreateWithFlags(&sends, cudaStreamNonBlocking), "cudaStreamCreate");
    for (ncclComm_t* messages : {&upward_, &downward_})
      check_nccl(ncclCommSplit(comm_, 0, rank_, messages, nullptr), "ncclCommSplit");
  }
  ~Nccl() override {
    cudaFree(token_);
    for (cudaStream_t sends : sends_) cudaStreamSynchronize(sends);
    for (ncclComm_t comm : {upward_, downward_, comm_}) ncclCommDestroy(comm);
    for (cudaStream_t sends : sends_) cudaStreamDestroy(sends);
  }

  [[nodiscard]] std::string_view name() const override { return "nccl"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  void barrier() override {
    check_nccl(ncclAllReduce(token_, token_, 1, ncclFloat, ncclMax, comm_, nullptr), "ncclAllReduce");
    cuda::check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");  // messages may still be on their
                                                                           // way
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
  void send(const void* data, std::int64_t count, int target, int) override {
    check_nccl(ncclSend(data, size_of(count), type_, target, messages(rank_, target), nullptr), "ncclSend");
  }
  [[nodiscard]] std::unique_ptr<Pending> start_send(const void* data, std::int64_t count, int target,
                                                    int) override {
    const cudaStream_t sends = sends_[rank_ < target ? 0 : 1];
    ready_.order(nullptr, sends);  // because `data` may still be under computation
    check_nccl(ncclSend(data, size_of(count), type_, target, messages(rank_, target), sends), "ncclSend");
    return std::make_unique<NcclSend>(sends);
  }
  void receive(void* data, std::int64_t count, int source, int) override {
    check_nccl(ncclRecv(data, size_of(count), type_, source, messages(source, rank_), nullptr), "ncclRecv");
  }
  void send_receive(const void* data, int target, void* incoming, int source, std::int64_t count) override {
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    check_nccl(ncclSend(data, size_of(count), type_, target, comm_, nullptr), "ncclSend");
    check_nccl(ncclRecv(incoming, size_of(count), type_, source, comm_, nullptr), "ncclRecv");
    check_nccl(ncclGroupEnd(), "ncclGroupEnd");
  }

  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override {
    ncclComm_t part = nullptr;
    check_nccl(ncclCommSplit(comm_, color, key, &part, nullptr), "ncclCommSplit");
    return std::make_unique<Nccl>(part, type_);
  }

  // The process ends at once, since what it would wait for may never arrive. Its launcher ends the rest.
  void abort(const std::string& reason) override {
    std::fprintf(stderr, "rank %d: %s\n", rank_, reason.c_str());
    std::_Exit(1);
  }

 private:
  [[nodiscard]] ncclComm_t messages(int from, int target) const {
    return from < target ? upward_ : downward_;
  }

  ncclComm_t comm_;
  ncclComm_t upward_ = nullptr;  // for messages to higher ranks
  ncclComm_t downward_ = nullptr;
  std::array<cudaStream_t, 2> sends_{};  // to higher ranks and to lower ranks
  Event ready_;
  ncclDataType_t type_;
  std::size_t bytes_;
  int rank_ = 0;
  int size_ = 1;
  void* token_ = nullptr;
};

// Rank 0 makes the identifier. The others receive it through the host's ranks, exactly, one byte per float.
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
  for (std::size_t i = 0; i < all.size(); ++i)
    id.internal[i] = static_cast<char>(static_cast<unsigned char>(all[i]));
  return id;
}

}  // namespace

static std::unique_ptr<Communicator> open_nccl_world(Communicator& host_world, bool bf16,
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

#else  // NCCL was missing when this was compiled

namespace equipoise::kernels {

static std::unique_ptr<Communicator> open_nccl_world(Communicator&, bool, std::string& reason) {
  reason = "this program was built without NCCL";
  return nullptr;
}

}  // namespace equipoise::kernels

#endif

extern "C" void equipoise_open_nccl_world(std::unique_ptr<equipoise::kernels::Communicator>* world,
                                          equipoise::kernels::Communicator* host, bool bf16,
                                          std::string* reason) {
  *world = equipoise::kernels::open_nccl_world(*host, bf16, *reason);
}

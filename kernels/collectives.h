// How ranks communicate: one interface over MPI (processes), threads of one process, and NCCL (GPUs). Counts
// are elements. Buffers are host f32 except with NCCL, whose communicators take device memory of the cuda
// backend. Every member calls the same collectives in the same order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace equipoise::kernels {

class Turn;

// A rank waited for others, of which one failed.
class Aborted : public std::runtime_error {
 public:
  explicit Aborted(const std::string& reason) : std::runtime_error(reason) {}
};

// A message on its way. Its data must not change until wait() or the destructor returns, which waits, too.
// Only while an exception unwinds it does not wait, and the message may be lost.
class Pending {
 public:
  Pending() = default;
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  virtual ~Pending() = default;

  virtual void wait() = 0;
};

class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;  // "mpi", "in-process", "nccl"
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  virtual void barrier() = 0;
  // A barrier for long waits: a process sleeps meanwhile and leaves its core to others.
  virtual void patient_barrier() { barrier(); }
  // receive: size * count elements, in rank order.
  virtual void all_gather(const void* send, void* receive, std::int64_t count) = 0;
  // send: size * count elements; this rank receives the sum over ranks of its part.
  virtual void reduce_scatter(const void* send, void* receive, std::int64_t count) = 0;
  virtual void all_reduce(const void* send, void* receive, std::int64_t count) = 0;
  // send and receive: size * count elements; part i goes to rank i.
  virtual void all_to_all(const void* send, void* receive, std::int64_t count) = 0;
  // Returns when `data` may be overwritten, perhaps only once the other side receives.
  virtual void send(const void* data, std::int64_t count, int to, int tag = 0) = 0;
  // Returns at once. Messages of one pair of ranks with one tag arrive in the order in which they were sent.
  // Those with different tags may be received in any order. NCCL has no tags, so a pair receives in order.
  [[nodiscard]] virtual std::unique_ptr<Pending> start_send(const void* data, std::int64_t count, int to,
                                                            int tag = 0) = 0;
  virtual void receive(void* data, std::int64_t count, int from, int tag = 0) = 0;
  // Sends and receives at once, so that a ring step cannot deadlock.
  virtual void send_receive(const void* data, int to, void* incoming, int from, std::int64_t count) = 0;

  // The ranks of one color form a group, ordered by key, then by rank here.
  [[nodiscard]] virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  // Ends the communication because this rank cannot go on. With threads of one process, any rank of the whole
  // group that waits in a call or calls later throws Aborted with the first reason. Processes all end.
  virtual void abort(const std::string& reason) = 0;
};

// One communicator per rank, each for a thread of its own. With a turn, a rank that holds it releases it
// while it waits for others and takes it again before a call returns, so that one rank computes at a time.
std::vector<std::unique_ptr<Communicator>> make_in_process_group(int ranks, Turn* turn = nullptr);

// Runs `body` on so many ranks, each a thread, and waits for all. With a turn, each holds it when `body`
// starts. If one throws, the others are aborted and the first exception is thrown here.
void run_in_process(int ranks, const std::function<void(Communicator&)>& body, Turn* turn = nullptr);

// The most elements of one MPI call, whose counts are ints. Longer messages take several calls.
inline constexpr std::int64_t kMostMpiElements = std::numeric_limits<int>::max();

// All processes that mpirun or srun started. Null if this program has no MPI or was started alone; `reason`
// says which. The first call initialises MPI, and the end of the process finalises it. Tests make
// `most_elements` small, so that messages are cut.
std::unique_ptr<Communicator> make_mpi_world(std::string& reason,
                                             std::int64_t most_elements = kMostMpiElements);

// Leaves the other processes, if MPI was initialised; all call it. A program that ends without a normal exit
// needs it, because launchers take a process that disappears for a failed one and end the rest.
void finish_mpi();

// Ends all processes of the job with this exit status if this one is a rank of MPI; may be called from any
// thread. Otherwise it returns without effect.
void end_mpi_job(int exit_status);

// NCCL over the world's ranks, one GPU each (local rank modulo the devices); device buffers of `bf16` or f32.
std::unique_ptr<Communicator> make_nccl_world(Communicator& host_world, bool bf16, std::string& reason);

// One device for ranks that are threads: the holder of the turn computes, and the others queue.
//
// The queue is first come, first served, so the order of ranks depends only on when each became ready.
class Turn {
 public:
  void take();
  // Returns false, without effect, if the calling thread does not hold it.
  bool give_if_mine();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_ticket_ = 0;
  std::uint64_t serving_ = 0;
  std::thread::id holder_;
};

}  // namespace equipoise::kernels

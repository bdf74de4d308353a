// What ranks say to each other. One interface over MPI (processes), threads of one process, and NCCL (GPUs).
// Counts are elements; buffers are host f32 except with NCCL, whose communicators take device memory of the
// cuda backend. Every member calls the same collectives in the same order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace equipoise::kernels {

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
  // receive: size * count elements, in rank order.
  virtual void all_gather(const void* send, void* receive, std::int64_t count) = 0;
  // send: size * count elements; this rank receives the sum over ranks of its part.
  virtual void reduce_scatter(const void* send, void* receive, std::int64_t count) = 0;
  virtual void all_reduce(const void* send, void* receive, std::int64_t count) = 0;
  // send and receive: size * count elements; part i goes to rank i.
  virtual void all_to_all(const void* send, void* receive, std::int64_t count) = 0;
  virtual void send(const void* data, std::int64_t count, int to) = 0;
  virtual void receive(void* data, std::int64_t count, int from) = 0;
  // Both at once, so that a ring step cannot deadlock.
  virtual void send_receive(const void* data, int to, void* incoming, int from, std::int64_t count) = 0;

  // The ranks of one color form a group, ordered by key, then by rank here.
  [[nodiscard]] virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
};

// One communicator per rank; each is used by a thread of its own.
std::vector<std::unique_ptr<Communicator>> make_in_process_group(int ranks);

// All processes that mpirun or srun started; null when this program has no MPI or was started alone, and then
// `reason` says which. The first call initialises MPI, the end of the process finalises it.
std::unique_ptr<Communicator> make_mpi_world(std::string& reason);

// NCCL over the world's ranks, one GPU each (local rank modulo the devices); device buffers of `bf16` or f32.
std::unique_ptr<Communicator> make_nccl_world(Communicator& host_world, bool bf16, std::string& reason);

}  // namespace equipoise::kernels

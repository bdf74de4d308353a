// Ranks as processes, over MPI.
#include "kernels/collectives.h"

#ifdef EQUIPOISE_MPI

#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

namespace equipoise::kernels {
namespace {

void check(int status, const char* call) {
  if (status != MPI_SUCCESS)
    throw std::runtime_error(std::string(call) + " failed with MPI error " + std::to_string(status));
}

int to_int(std::int64_t count) {
  if (count > 0x7fffffff)
    throw std::length_error("an MPI message of " + std::to_string(count) + " elements: at most 2^31 - 1");
  return static_cast<int>(count);
}

class Mpi : public Communicator {
 public:
  Mpi(MPI_Comm comm, bool owned) : comm_(comm), owned_(owned) {
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  ~Mpi() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (owned_ && finalized == 0) MPI_Comm_free(&comm_);
  }

  [[nodiscard]] std::string_view name() const override { return "mpi"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  void barrier() override { check(MPI_Barrier(comm_), "MPI_Barrier"); }
  void all_gather(const void* send, void* receive, std::int64_t count) override {
    check(MPI_Allgather(send, to_int(count), MPI_FLOAT, receive, to_int(count), MPI_FLOAT, comm_),
          "MPI_Allgather");
  }
  void reduce_scatter(const void* send, void* receive, std::int64_t count) override {
    check(MPI_Reduce_scatter_block(send, receive, to_int(count), MPI_FLOAT, MPI_SUM, comm_),
          "MPI_Reduce_scatter_block");
  }
  void all_reduce(const void* send, void* receive, std::int64_t count) override {
    check(MPI_Allreduce(send, receive, to_int(count), MPI_FLOAT, MPI_SUM, comm_), "MPI_Allreduce");
  }
  void all_to_all(const void* send, void* receive, std::int64_t count) override {
    check(MPI_Alltoall(send, to_int(count), MPI_FLOAT, receive, to_int(count), MPI_FLOAT, comm_),
          "MPI_Alltoall");
  }
  void send(const void* data, std::int64_t count, int to) override {
    check(MPI_Send(data, to_int(count), MPI_FLOAT, to, 0, comm_), "MPI_Send");
  }
  void receive(void* data, std::int64_t count, int from) override {
    check(MPI_Recv(data, to_int(count), MPI_FLOAT, from, 0, comm_, MPI_STATUS_IGNORE), "MPI_Recv");
  }
  void send_receive(const void* data, int to, void* incoming, int from, std::int64_t count) override {
    check(MPI_Sendrecv(data, to_int(count), MPI_FLOAT, to, 0, incoming, to_int(count), MPI_FLOAT, from, 0,
                       comm_, MPI_STATUS_IGNORE),
          "MPI_Sendrecv");
  }

  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override {
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(comm_, color, key, &part), "MPI_Comm_split");
    return std::make_unique<Mpi>(part, true);
  }

 private:
  MPI_Comm comm_;
  bool owned_;
  int rank_ = 0;
  int size_ = 1;
};

// Launchers say so in the environment; initialising MPI without one would only cost a user time.
bool started_by_a_launcher() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMI_SIZE") != nullptr ||
         std::getenv("PMIX_RANK") != nullptr;
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_world(std::string& reason) {
  if (!started_by_a_launcher()) {
    reason = "not started by mpirun or srun";
    return nullptr;
  }
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized == 0) {
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    std::atexit([] {
      int finalized = 0;
      MPI_Finalized(&finalized);
      if (finalized == 0) MPI_Finalize();
    });
  }
  return std::make_unique<Mpi>(MPI_COMM_WORLD, false);
}

}  // namespace equipoise::kernels

#else

namespace equipoise::kernels {

std::unique_ptr<Communicator> make_mpi_world(std::string& reason) {
  reason = "this program was built without MPI";
  return nullptr;
}

}  // namespace equipoise::kernels

#endif

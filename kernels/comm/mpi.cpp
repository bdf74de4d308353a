// Ranks as processes, over MPI. This file is the whole module.
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <vector>

#include "kernels/modules.h"

namespace equipoise::kernels {
namespace {

void check(int status, const char* call) {
  if (status != MPI_SUCCESS)
    throw std::runtime_error(std::string(call) + " failed with MPI error " + std::to_string(status));
}

// Floats of one rank's share that are `stride` apart from the next rank's, as a cut all-gather moves them.
class StridedShare {
 public:
  StridedShare(int count, std::int64_t stride) {
    MPI_Datatype plain = MPI_DATATYPE_NULL;
    check(MPI_Type_contiguous(count, MPI_FLOAT, &plain), "MPI_Type_contiguous");
    const int status = MPI_Type_create_resized(
        plain, 0, static_cast<MPI_Aint>(stride) * static_cast<MPI_Aint>(sizeof(float)), &type_);
    MPI_Type_free(&plain);
    check(status, "MPI_Type_create_resized");
    check(MPI_Type_commit(&type_), "MPI_Type_commit");
  }
  ~StridedShare() { MPI_Type_free(&type_); }
  StridedShare(const StridedShare&) = delete;
  StridedShare& operator=(const StridedShare&) = delete;
  [[nodiscard]] MPI_Datatype type() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

class MpiSend : public Pending {
 public:
  ~MpiSend() override {
    if (std::uncaught_exceptions() > exceptions_) {
      for (MPI_Request& request : requests_) MPI_Request_free(&request);
    } else {
      finish();
    }
  }
  void wait() override { check(finish(), "MPI_Waitall"); }
  MPI_Request* add() { return &requests_.emplace_back(MPI_REQUEST_NULL); }

 private:
  int finish() {
    const int status = MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE);
    requests_.clear();
    return status;
  }

  std::vector<MPI_Request> requests_;
  int exceptions_ = std::uncaught_exceptions();
};

class Mpi : public Communicator {
 public:
  Mpi(MPI_Comm comm, bool owned, std::int64_t most) : comm_(comm), owned_(owned), most_(most) {
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
  void patient_barrier() override {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibarrier(comm_, &request), "MPI_Ibarrier");
    for (int done = 0;;) {
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done != 0) return;
      usleep(2000);
    }
  }
  void all_gather(const void* send, void* receive, std::int64_t count) override {
    if (count <= most_) {
      const int whole = static_cast<int>(count);
      check(MPI_Allgather(send, whole, MPI_FLOAT, receive, whole, MPI_FLOAT, comm_), "MPI_Allgather");
      return;
    }
    for_parts(count, [&](std::int64_t at, int part) {
      const StridedShare share(part, count);
      check(MPI_Allgather(in(send) + at, part, MPI_FLOAT, to(receive) + at, 1, share.type(), comm_),
            "MPI_Allgather");
    });
  }
  // Pairwise, so that sums have one fixed order and use memory that is kept. MPI allocates and frees memory
  // with every call, which by chance makes its own reduction two to four times as slow.
  void reduce_scatter(const void* send, void* receive, std::int64_t count) override {
    std::copy_n(in(send) + rank_ * count, count, to(receive));
    incoming_.resize(static_cast<std::size_t>(size_ > 1 ? count : 0));
    for (int distance = 1; distance < size_; ++distance) {
      const int target = (rank_ + distance) % size_;
      send_receive(in(send) + target * count, target, incoming_.data(), (rank_ + size_ - distance) % size_,
                   count);
      for (std::int64_t i = 0; i < count; ++i) to(receive)[i] += incoming_[static_cast<std::size_t>(i)];
    }
  }
  void all_reduce(const void* send, void* receive, std::int64_t count) override {
    for_parts(count, [&](std::int64_t at, int part) {
      check(MPI_Allreduce(in(send) + at, to(receive) + at, part, MPI_FLOAT, MPI_SUM, comm_), "MPI_Allreduce");
    });
  }
  void all_to_all(const void* send, void* receive, std::int64_t count) override {
    if (count <= most_) {
      const int whole = static_cast<int>(count);
      check(MPI_Alltoall(send, whole, MPI_FLOAT, receive, whole, MPI_FLOAT, comm_), "MPI_Alltoall");
      return;
    }
    for_parts(count, [&](std::int64_t at, int part) {
      const StridedShare share(part, count);
      check(MPI_Alltoall(in(send) + at, 1, share.type(), to(receive) + at, 1, share.type(), comm_),
            "MPI_Alltoall");
    });
  }
  void send(const void* data, std::int64_t count, int target, int tag) override {
    for_parts(count, [&](std::int64_t at, int part) {
      check(MPI_Send(in(data) + at, part, MPI_FLOAT, target, tag, comm_), "MPI_Send");
    });
  }
  [[nodiscard]] std::unique_ptr<Pending> start_send(const void* data, std::int64_t count, int target,
                                                    int tag) override {
    auto pending = std::make_unique<MpiSend>();
    for_parts(count, [&](std::int64_t at, int part) {
      check(MPI_Isend(in(data) + at, part, MPI_FLOAT, target, tag, comm_, pending->add()), "MPI_Isend");
    });
    return pending;
  }
  void receive(void* data, std::int64_t count, int source, int tag) override {
    for_parts(count, [&](std::int64_t at, int part) {
      check(MPI_Recv(to(data) + at, part, MPI_FLOAT, source, tag, comm_, MPI_STATUS_IGNORE), "MPI_Recv");
    });
  }
  void send_receive(const void* data, int target, void* incoming, int source, std::int64_t count) override {
    for_parts(count, [&](std::int64_t at, int part) {
      check(MPI_Sendrecv(in(data) + at, part, MPI_FLOAT, target, 0, to(incoming) + at, part, MPI_FLOAT,
                         source, 0, comm_, MPI_STATUS_IGNORE),
            "MPI_Sendrecv");
    });
  }

  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override {
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(comm_, color, key, &part), "MPI_Comm_split");
    return std::make_unique<Mpi>(part, true, most_);
  }

  void abort(const std::string& reason) override {
    std::fprintf(stderr, "rank %d: %s\n", rank_, reason.c_str());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }

 private:
  static const float* in(const void* data) { return static_cast<const float*>(data); }
  static float* to(void* data) { return static_cast<float*>(data); }

  // Calls body(first element, elements) for parts that one call can move. An empty message also gets one
  // call, since the other side waits for it.
  template <class Body>
  void for_parts(std::int64_t count, Body body) const {
    std::int64_t at = 0;
    do {
      const std::int64_t part = std::min(count - at, most_);
      body(at, static_cast<int>(part));
      at += part;
    } while (at < count);
  }

  MPI_Comm comm_;
  bool owned_;
  std::int64_t most_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<float> incoming_;  // of a reduction
};

void finish() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized != 0 && finalized == 0) MPI_Finalize();
}

void make_world(std::int64_t most_elements, std::unique_ptr<Communicator>& world) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized == 0) {
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    std::atexit(finish);
  }
  world = std::make_unique<Mpi>(MPI_COMM_WORLD, false, most_elements);
}

void end_job(int exit_status) {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized != 0 && finalized == 0) MPI_Abort(MPI_COMM_WORLD, exit_status);
}

}  // namespace

}  // namespace equipoise::kernels

extern "C" const equipoise::kernels::MpiModule equipoise_mpi_module;
const equipoise::kernels::MpiModule equipoise_mpi_module{
    equipoise::kernels::make_world, equipoise::kernels::finish, equipoise::kernels::end_job};

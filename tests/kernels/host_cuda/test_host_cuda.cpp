// The row kernels of kernels/cuda on the host, each against its float64 reference.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "kernels/checks.h"
#include "kernels/cuda/ops.h"
#include "tests/kernels/host_cuda/launch.h"

using namespace equipoise::kernels;

namespace {

// A GPU of two multiprocessors, whose memory is the host's.
class HostCuda : public Backend {
 public:
  [[nodiscard]] std::string_view name() const override { return "cuda"; }
  [[nodiscard]] ElementType element_type() const override { return ElementType::bf16; }
  [[nodiscard]] DeviceDescription describe() const override { return {}; }
  [[nodiscard]] double clock_mhz() const override { return 0; }
  [[nodiscard]] void* allocate(std::size_t bytes) override {
    void* data = nullptr;
    if (posix_memalign(&data, 256, bytes) != 0) throw std::bad_alloc();
    return data;
  }
  void release(void* device) noexcept override { std::free(device); }
  void to_device(void* device, const void* host, std::size_t bytes) override { copy(device, host, bytes); }
  void to_host(void* host, const void* device, std::size_t bytes) override { copy(host, device, bytes); }
  void synchronize() override {}
  void start_timer() override {}
  Elapsed stop_timer() override { return {}; }
  void empty_op() override { cuda::launch_empty(); }
  void spin(double seconds) override { cuda::launch_spin(seconds); }
  void copy(void* target, const void* source, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(target, source, bytes);
  }
  void clear(void* target, std::size_t bytes) override { std::memset(target, 0, bytes); }
  [[nodiscard]] std::unique_ptr<AttentionPlan> plan_attention(const AttentionShape&, std::span<const Piece>,
                                                              Pass, const AttentionRows&) override {
    throw std::logic_error("cuDNN's");
  }
  void attention_forward(AttentionPlan&, const void*, const void*, const void*, void*, float*) override {}
  void attention_backward(AttentionPlan&, const void*, const void*, const void*, const void*, const float*,
                          const void*, const AttentionGradients&) override {}
  void gemm(const GemmShape&, const void*, const void*, void*) override {
    throw std::logic_error("cuBLASLt's");
  }
  void run(const RowCall& call) override { cuda::launch(call, 2); }
};

// With rests of a pack, a warp and a block, more rows than a block has threads, and rows that ask for more
// shared memory than is had unasked. Of one column a gradient of the norm is the difference of two equal
// numbers, which no limit holds.
constexpr Rows kShapes[] = {{1, 2},    {1, 8},   {3, 5},   {7, 64},   {10, 896},
                            {2, 2049}, {9, 257}, {260, 3}, {1, 12296}};

}  // namespace

TEST_CASE(
    "every row kernel equals its reference on the host, in either order of the threads, with the same "
    "numbers") {
  HostCuda backend;
  std::vector<double> errors;
  for (const bool descending : {false, true}) {
    host_cuda::run_threads_descending(descending);
    std::size_t at = 0;
    for (const CheckResult& result : check_row_shapes(backend, 17, kShapes)) {
      CAPTURE(result.op);
      CAPTURE(result.tensor);
      CAPTURE(result.shape);
      CAPTURE(result.error);
      CHECK(result.passed());
      if (descending)
        CHECK(result.error == errors[at++]);
      else
        errors.push_back(result.error);
    }
  }
  host_cuda::run_threads_descending(false);
}

TEST_CASE("launches that a GPU refuses are refused, by name") {
  HostCuda backend;
  CHECK_THROWS_WITH(
      backend.run(RmsNormBackward{{1, 60000}}),
      "rms_norm_backward: columns do not fit shared memory: what the device does not have was asked for");
  CHECK_NOTHROW(backend.run(RmsNorm{}));
  CHECK_NOTHROW(backend.empty_op());
  CHECK_NOTHROW(backend.spin(1e-4));
}

#ifdef EQUIPOISE_HOST_CUDA_RACES

namespace {

// What a run ends with: a fault, or the first op whose numbers are wrong; empty: neither. Rows are more than
// rms_norm_backward has blocks.
std::string outcome() {
  constexpr Rows kFew[] = {{9, 264}, {20, 5}};
  HostCuda backend;
  try {
    for (const CheckResult& result : check_row_shapes(backend, 3, kFew))
      if (!result.passed()) return "wrong " + result.op;
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "";
}

std::string outcome_without(const host_cuda::Site& site) {
  host_cuda::drop_barrier(site);
  const std::string found = outcome();
  host_cuda::drop_no_barrier();
  return found;
}

}  // namespace

TEST_CASE("no access to shared memory waits for another of its warp") {
  host_cuda::take_most_turns();
  HostCuda backend;
  for (const Rows shape : {Rows{3, 512}, Rows{2, 4104}, Rows{5, 257}}) {
    CAPTURE(shape.columns);
    check_row_shapes(backend, 3, std::span(&shape, 1));
    CHECK(host_cuda::take_most_turns() == 1);
  }
}

TEST_CASE("a kernel without one of its barriers has a race, which is found in either order of the threads") {
  REQUIRE(outcome() == "");
  const std::set<host_cuda::Site> sites = host_cuda::sites();
  CHECK(sites.size() == 6);
  for (const bool descending : {false, true}) {
    host_cuda::run_threads_descending(descending);
    int spare = 0;
    for (const host_cuda::Site& site : sites) {
      CAPTURE(site.first);
      CAPTURE(site.second);
      const std::string found = outcome_without(site);
      if (found.empty())
        ++spare;
      else
        CHECK(found.find(" memory: block ") != std::string::npos);
    }
    CHECK(spare == 1);  // the first of block_max, which no kernel calls twice
  }
  host_cuda::run_threads_descending(false);
}

#elif defined(__SANITIZE_ADDRESS__)

TEST_CASE("a kernel that reads or writes beyond its memory ends the program") {
  const auto ends = [](std::int64_t rows_of_buffers, const Rows& called) {
    const pid_t child = fork();
    if (child == 0) {
      std::fclose(stderr);
      HostCuda backend;
      const Buffer memory(backend, static_cast<std::size_t>(rows_of_buffers * called.columns) * 2);
      backend.run(Swiglu{called, memory.data(), memory.data()});
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return status != 0;
  };
  CHECK(!ends(4, {2, 24}));  // gate and up are two of its columns
  CHECK(ends(4, {3, 24}));
}

#endif

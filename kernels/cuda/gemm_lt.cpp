#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <tuple>

#include "kernels/cuda/ops.h"
#include "policies/base/text.h"

namespace equipoise::kernels::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20U;  // what cuBLAS recommends on Hopper
constexpr int kCandidates = 16;

void check_lt(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string(call) + ": " + cublasLtGetStatusString(status));
}

// Descriptors of one shape, with the chosen algorithm.
struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t left = nullptr;
  cublasLtMatrixLayout_t right = nullptr;
  cublasLtMatrixLayout_t product = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool tuned = false;

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (product != nullptr) cublasLtMatrixLayoutDestroy(product);
    if (right != nullptr) cublasLtMatrixLayoutDestroy(right);
    if (left != nullptr) cublasLtMatrixLayoutDestroy(left);
    if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
  }
};

cublasLtMatrixLayout_t layout(std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t made = nullptr;
  check_lt(cublasLtMatrixLayoutCreate(&made, CUDA_R_16BF, static_cast<std::uint64_t>(rows),
                                      static_cast<std::uint64_t>(columns), rows),
           "cublasLtMatrixLayoutCreate");
  return made;
}

// cuBLASLt is column-major: our row-major C = A B is its C^T = B^T A^T, so B comes first, and a row-major
// matrix [r, c] is its c x r.
void describe(const GemmShape& shape, Plan& plan) {
  check_lt(cublasLtMatmulDescCreate(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
           "cublasLtMatmulDescCreate");
  const cublasOperation_t first = shape.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = shape.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  check_lt(cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first),
           "cublasLtMatmulDescSetAttribute");
  check_lt(
      cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second),
      "cublasLtMatmulDescSetAttribute");
  plan.left = shape.transpose_b ? layout(shape.k, shape.n) : layout(shape.n, shape.k);
  plan.right = shape.transpose_a ? layout(shape.m, shape.k) : layout(shape.k, shape.m);
  plan.product = layout(shape.n, shape.m);
}

// The largest power of two that divides the address, up to what cudaMalloc guarantees. Kernels that load 16
// bytes at a time must not be chosen for less.
std::uint32_t alignment_of(const void* address) {
  constexpr std::uintptr_t kMost = 256;
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  return static_cast<std::uint32_t>(number == 0 ? kMost : std::min(kMost, number & (~number + 1)));
}

struct Alignments {
  std::uint32_t left = 0;
  std::uint32_t right = 0;
  std::uint32_t product = 0;

  [[nodiscard]] auto order() const { return std::tuple(left, right, product); }
  friend bool operator<(const Alignments& a, const Alignments& b) { return a.order() < b.order(); }
};

using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, bool, Alignments>;

// What cuBLASLt may choose from.
class Preference {
 public:
  explicit Preference(const Alignments& alignments) {
    check_lt(cublasLtMatmulPreferenceCreate(&preference_), "cublasLtMatmulPreferenceCreate");
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    // If k is split, the parts are summed in f32, not in the output's bf16.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        std::uint32_t{CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments.left);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments.right);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments.product);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments.product);
  }
  ~Preference() { cublasLtMatmulPreferenceDestroy(preference_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  [[nodiscard]] cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  template <class Value>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
    const cublasStatus_t status =
        cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof value);
    if (status == CUBLAS_STATUS_SUCCESS) return;
    cublasLtMatmulPreferenceDestroy(preference_);
    check_lt(status, "cublasLtMatmulPreferenceSetAttribute");
  }
  cublasLtMatmulPreference_t preference_ = nullptr;
};

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  [[nodiscard]] cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

constexpr float kLong = 1;  // milliseconds beyond which one run suffices
constexpr int kRuns = 8;    // runs of a shorter call, after the first

// How many calls a candidate costs: the warm-up, one run, and further runs of a short call.
int calls_timed(float milliseconds) {
  return milliseconds > kLong ? 2 : 2 + kRuns;
}

}  // namespace

struct GemmLt::State {
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  std::map<Key, Plan> plans;

  [[nodiscard]] cublasStatus_t try_run(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const void* a,
                                       const void* b, void* c, float beta) const {
    const float alpha = 1;
    return cublasLtMatmul(handle, plan.operation, &alpha, b, plan.left, a, plan.right, &beta, c, plan.product,
                          c, plan.product, &algorithm, workspace, kWorkspaceBytes, nullptr);
  }

  // Milliseconds of a call; negative if the library does not run this algorithm here after all.
  [[nodiscard]] float milliseconds(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const void* a,
                                   const void* b, void* c) const {
    const Event start;
    const Event stop;
    if (try_run(plan, algorithm, a, b, c, 0) != CUBLAS_STATUS_SUCCESS) return -1;  // this is also the warm-up
    float elapsed = kLong;
    for (const int runs : {1, kRuns}) {
      launch_spin(2e-5 * runs);  // so that the host's pace has no effect
      check(cudaEventRecord(start.get()), "cudaEventRecord");
      for (int i = 0; i < runs; ++i) check_lt(try_run(plan, algorithm, a, b, c, 0), "cublasLtMatmul");
      check(cudaEventRecord(stop.get()), "cudaEventRecord");
      check(cudaEventSynchronize(stop.get()), "cudaEventSynchronize");
      check(cudaEventElapsedTime(&elapsed, start.get(), stop.get()), "cudaEventElapsedTime");
      elapsed /= static_cast<float>(runs);
      if (elapsed > kLong) break;
    }
    return elapsed;
  }

  // Times the proposals in the order of the heuristic, whose first is seldom far from the best, until their
  // calls have taken `kEnough`. Otherwise large products would take minutes.
  void tune(const GemmShape& shape, const Alignments& alignments, Plan& plan, const void* a,
            const void* b) const {
    constexpr float kEnough = 40;  // milliseconds
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> candidates{};
    int found = 0;
    const Preference preference(alignments);
    check_lt(cublasLtMatmulAlgoGetHeuristic(handle, plan.operation, plan.left, plan.right, plan.product,
                                            plan.product, preference.get(), kCandidates, candidates.data(),
                                            &found),
             "cublasLtMatmulAlgoGetHeuristic");
    void* memory = nullptr;  // a copy, because the caller's C must not be written before its turn
    check(cudaMalloc(&memory, static_cast<std::size_t>(shape.m * shape.n) * 2), "cudaMalloc");
    const std::unique_ptr<void, cudaError_t (*)(void*)> scratch(memory, cudaFree);
    float best = 0;
    float spent = 0;
    for (int i = 0; i < found && spent < kEnough; ++i) {
      const cublasLtMatmulHeuristicResult_t& candidate = candidates.at(static_cast<std::size_t>(i));
      if (candidate.state != CUBLAS_STATUS_SUCCESS) continue;
      const float time = milliseconds(plan, candidate.algo, a, b, scratch.get());
      if (time < 0) continue;
      spent += static_cast<float>(calls_timed(time)) * time;
      if (plan.tuned && time >= best) continue;
      best = time;
      plan.algorithm = candidate.algo;
      plan.tuned = true;
    }
    if (!plan.tuned) throw std::runtime_error("cuBLASLt has no algorithm for this GEMM");
  }
};

GemmLt::GemmLt() : state_(std::make_unique<State>()) {
  check_lt(cublasLtCreate(&state_->handle), "cublasLtCreate");
  check(cudaMalloc(&state_->workspace, kWorkspaceBytes), "cudaMalloc");
}

GemmLt::~GemmLt() {
  state_->plans.clear();
  cudaFree(state_->workspace);
  cublasLtDestroy(state_->handle);
}

void GemmLt::operator()(const GemmShape& shape, const void* a, const void* b, void* c) {
  if (shape.m == 0 || shape.n == 0) return;
  if (shape.k == 0) {  // the library refuses an empty sum
    if (!shape.accumulate)
      check(cudaMemsetAsync(c, 0, static_cast<std::size_t>(shape.m * shape.n) * 2), "cudaMemsetAsync");
    return;
  }
  const Alignments alignments{alignment_of(b), alignment_of(a), alignment_of(c)};
  Plan& plan = state_->plans[{shape.m, shape.n, shape.k, shape.transpose_a, shape.transpose_b, alignments}];
  if (plan.operation == nullptr) describe(shape, plan);
  if (!plan.tuned) state_->tune(shape, alignments, plan, a, b);
  check_lt(state_->try_run(plan, plan.algorithm, a, b, c, shape.accumulate ? 1.0F : 0.0F), "cublasLtMatmul");
}

std::string GemmLt::version() {
  const std::size_t version = cublasLtGetVersion();  // 130100
  return concatenated(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace equipoise::kernels::cuda

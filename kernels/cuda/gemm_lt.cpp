#include "kernels/cuda/gemm_lt.h"

#include <cublasLt.h>

#include <array>
#include <stdexcept>
#include <tuple>

#include "kernels/cuda/error.h"

namespace equipoise::kernels::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20U;  // what cuBLAS recommends on Hopper
constexpr int kCandidates = 16;

void check_lt(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(std::string(call) + ": " + cublasLtGetStatusString(status));
  }
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

using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, bool>;

}  // namespace

struct GemmLt::State {
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  std::map<Key, Plan> plans;

  void run(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const void* a, const void* b, void* c,
           float beta) const {
    const float alpha = 1;
    check_lt(cublasLtMatmul(handle, plan.operation, &alpha, b, plan.left, a, plan.right, &beta, c,
                            plan.product, c, plan.product, &algorithm, workspace, kWorkspaceBytes, nullptr),
             "cublasLtMatmul");
  }

  [[nodiscard]] float milliseconds(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const void* a,
                                   const void* b, void* c) const {
    constexpr int kRuns = 3;
    cudaEvent_t start = nullptr;
    cudaEvent_t stop = nullptr;
    check(cudaEventCreate(&start), "cudaEventCreate");
    check(cudaEventCreate(&stop), "cudaEventCreate");
    run(plan, algorithm, a, b, c, 0);  // warm-up
    check(cudaEventRecord(start), "cudaEventRecord");
    for (int i = 0; i < kRuns; ++i) run(plan, algorithm, a, b, c, 0);
    check(cudaEventRecord(stop), "cudaEventRecord");
    check(cudaEventSynchronize(stop), "cudaEventSynchronize");
    float elapsed = 0;
    check(cudaEventElapsedTime(&elapsed, start, stop), "cudaEventElapsedTime");
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    return elapsed / kRuns;
  }

  void tune(const GemmShape& shape, Plan& plan, const void* a, const void* b) const {
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> candidates{};
    cublasLtMatmulPreference_t preference = nullptr;
    check_lt(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    int found = 0;
    const cublasStatus_t limit = cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes, sizeof kWorkspaceBytes);
    const cublasStatus_t asked =
        cublasLtMatmulAlgoGetHeuristic(handle, plan.operation, plan.left, plan.right, plan.product,
                                       plan.product, preference, kCandidates, candidates.data(), &found);
    cublasLtMatmulPreferenceDestroy(preference);
    check_lt(limit, "cublasLtMatmulPreferenceSetAttribute");
    check_lt(asked, "cublasLtMatmulAlgoGetHeuristic");
    if (found == 0) throw std::runtime_error("cuBLASLt has no algorithm for this GEMM");
    void* scratch = nullptr;  // the caller's C must not be written before its turn
    check(cudaMalloc(&scratch, static_cast<std::size_t>(shape.m * shape.n) * 2), "cudaMalloc");
    float best = 0;
    for (int i = 0; i < found; ++i) {
      const cublasLtMatmulAlgo_t& algorithm = candidates.at(static_cast<std::size_t>(i)).algo;
      const float time = milliseconds(plan, algorithm, a, b, scratch);
      if (i == 0 || time < best) {
        best = time;
        plan.algorithm = algorithm;
      }
    }
    cudaFree(scratch);
    plan.tuned = true;
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
  Plan& plan = state_->plans[{shape.m, shape.n, shape.k, shape.transpose_a, shape.transpose_b}];
  if (plan.operation == nullptr) describe(shape, plan);
  if (!plan.tuned) state_->tune(shape, plan, a, b);
  state_->run(plan, plan.algorithm, a, b, c, shape.accumulate ? 1.0F : 0.0F);
}

std::string GemmLt::version() {
  const std::size_t version = cublasLtGetVersion();  // 130100
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace equipoise::kernels::cuda

// The CPU backend: one rank is one thread, f32 throughout.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <new>
#include <variant>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/isa.h"
#include "kernels/modules.h"
#include "policies/base/module.h"

namespace equipoise::kernels {
namespace {

// The value of the first line of /proc/cpuinfo that starts with `key`, or "".
std::string cpu_info(std::string_view key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) != 0) continue;
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos && colon + 2 <= line.size()) return line.substr(colon + 2);
  }
  return {};
}

// The library of matrix products; null where there is none.
const OneDnnModule* onednn() {
  static const OneDnnModule* const opened = [] {
    std::string reason;
    return static_cast<const OneDnnModule*>(module_symbol(kOneDnnFile, kOneDnnModule, "", reason));
  }();
  return opened;
}

class CpuAttentionPlan : public AttentionPlan {
 public:
  AttentionShape shape;
  std::vector<Piece> pieces;
  std::int64_t query_rows = 0;
  std::int64_t key_rows = 0;
  float* workspace = nullptr;

  explicit CpuAttentionPlan(std::size_t floats)
      : workspace(static_cast<float*>(::operator new (floats * sizeof(float), std::align_val_t{64}))) {}
  ~CpuAttentionPlan() override { ::operator delete (workspace, std::align_val_t{64}); }
};

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const CpuKernels& kernels) : kernels_(kernels) {}

  [[nodiscard]] std::string_view name() const override { return "cpu"; }
  [[nodiscard]] ElementType element_type() const override { return ElementType::f32; }

  [[nodiscard]] DeviceDescription describe() const override {
    DeviceDescription description;
    // Under a hypervisor several generations of cores have the same name.
    const std::string model = cpu_info("model name"), family = cpu_info("cpu family"),
                      number = cpu_info("model");
    description.name = (model.empty() ? "CPU" : model) +
                       (family.empty() ? "" : ", family " + family + " model " + number) + " (" +
                       kernels_.isa + ", one thread)";
    description.libraries["isa"] = kernels_.isa;
    description.libraries["gemm"] = gemm_library();
    std::ifstream file("/proc/meminfo");
    std::string label;
    double kilobytes = 0;
    if (file >> label >> kilobytes) description.memory_bytes = kilobytes * 1024;
    return description;
  }

  [[nodiscard]] double clock_mhz() const override { return std::atof(cpu_info("cpu MHz").c_str()); }

  // GFLOP/s of the register tiles on 20 KB that stay in the first cache. It takes some ten microseconds and
  // is the best of three tries, because the first has to load the operands.
  [[nodiscard]] double pace() override {
    constexpr GemmShape kTile{32, 64, 32, false, false, false};
    constexpr int kProducts = 8;
    constexpr double kFlops = 2.0 * kTile.m * kTile.n * kTile.k * kProducts;
    double best = 0;
    for (int go = 0; go < 3; ++go) {
      const double start = thread_cpu_seconds();
      for (int i = 0; i < kProducts; ++i)
        kernels_.gemm(kTile, pace_operands_.left, pace_operands_.right, pace_operands_.product);
      const double seconds = thread_cpu_seconds() - start;
      if (seconds > 0) best = std::max(best, 1e-9 * kFlops / seconds);
    }
    return best;
  }

  [[nodiscard]] void* allocate(std::size_t bytes) override {
    return ::operator new (bytes == 0 ? 1 : bytes, std::align_val_t{64});
  }
  void release(void* device) noexcept override { ::operator delete (device, std::align_val_t{64}); }
  void to_device(void* device, const void* host, std::size_t bytes) override { copy(device, host, bytes); }
  void to_host(void* host, const void* device, std::size_t bytes) override { copy(host, device, bytes); }
  void synchronize() override {}

  void start_timer() override {
    start_cpu_ = thread_cpu_seconds();
    start_ = std::chrono::steady_clock::now();
  }
  Elapsed stop_timer() override {
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start_;
    return {wall.count(), thread_cpu_seconds() - start_cpu_};
  }

  void empty_op() override {}
  void spin(double seconds) override {
    const double end = thread_cpu_seconds() + seconds;
    while (thread_cpu_seconds() < end) {
    }
  }
  void copy(void* target, const void* source, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(target, source, bytes);
  }
  void clear(void* target, std::size_t bytes) override {
    if (bytes > 0) std::memset(target, 0, bytes);
  }

  [[nodiscard]] std::unique_ptr<AttentionPlan> plan_attention(const AttentionShape& shape,
                                                              std::span<const Piece> pieces, Pass,
                                                              const AttentionRows& rows) override {
    validate_attention(shape, pieces);
    std::int64_t queries = 0;
    std::int64_t keys = 0;
    for (const Piece& piece : pieces) {
      queries = std::max(queries, piece.queries);
      keys = std::max(keys, piece.keys);
    }
    auto plan = std::make_unique<CpuAttentionPlan>(kernels_.attention_workspace(shape, queries, keys));
    plan->shape = shape;
    plan->pieces.assign(pieces.begin(), pieces.end());
    plan->query_rows = std::max(rows.query, query_rows_of(pieces));
    plan->key_rows = std::max(rows.key, key_rows_of(pieces));
    return plan;
  }

  void attention_forward(AttentionPlan& plan, const void* query, const void* key, const void* value,
                         void* out, float* log_sum) override {
    auto& mine = static_cast<CpuAttentionPlan&>(plan);
    const AttentionInputs in = inputs(mine, query, key, value);
    for (const Piece& piece : mine.pieces)
      kernels_.attention_forward(in, piece, mine.workspace, static_cast<float*>(out), log_sum);
  }

  void attention_backward(AttentionPlan& plan, const void* query, const void* key, const void* value,
                          const void* out, const float* log_sum, const void* out_gradient,
                          const AttentionGradients& gradients) override {
    auto& mine = static_cast<CpuAttentionPlan&>(plan);
    const AttentionBackwardInputs all{inputs(mine, query, key, value), static_cast<const float*>(out),
                                      log_sum, static_cast<const float*>(out_gradient)};
    const auto head_bytes = static_cast<std::size_t>(mine.shape.head_dim) * sizeof(float);
    const auto query_bytes = static_cast<std::size_t>(mine.query_rows * mine.shape.query_heads) * head_bytes;
    const auto key_bytes = static_cast<std::size_t>(mine.key_rows * mine.shape.kv_heads) * head_bytes;
    clear(gradients.query, query_bytes);
    clear(gradients.key, key_bytes);
    clear(gradients.value, key_bytes);
    for (const Piece& piece : mine.pieces) {
      kernels_.attention_backward(all, piece, mine.workspace, static_cast<float*>(gradients.query),
                                  static_cast<float*>(gradients.key), static_cast<float*>(gradients.value));
    }
  }

  void gemm(const GemmShape& shape, const void* a, const void* b, void* c) override {
    if (shape.m == 0 || shape.n == 0) return;
    if (shape.k == 0) {  // libraries refuse an empty sum
      if (!shape.accumulate) clear(c, static_cast<std::size_t>(shape.m * shape.n) * sizeof(float));
      return;
    }
    const auto* const left = static_cast<const float*>(a);
    const auto* const right = static_cast<const float*>(b);
    if (const OneDnnModule* const library = onednn())
      library->gemm(shape, left, right, static_cast<float*>(c));
    else
      kernels_.gemm(shape, left, right, static_cast<float*>(c));
  }

  void run(const RowCall& call) override {
    std::visit([&](const auto& one) { kernels_.row_op(call.index(), &one); }, call);
  }

 private:
  static AttentionInputs inputs(const CpuAttentionPlan& plan, const void* query, const void* key,
                                const void* value) {
    return {plan.shape, static_cast<const float*>(query), static_cast<const float*>(key),
            static_cast<const float*>(value)};
  }

  static std::string gemm_library() {
    std::string text = "own tiles";
    if (const OneDnnModule* const library = onednn()) library->version(text);
    return text;
  }

  struct alignas(64) PaceOperands {
    float left[32 * 32];
    float right[32 * 64];
    float product[32 * 64];
    PaceOperands() {
      std::fill(std::begin(left), std::end(left), 0.5F);
      std::fill(std::begin(right), std::end(right), 0.25F);
    }
  };

  const CpuKernels& kernels_;
  PaceOperands pace_operands_;
  std::chrono::steady_clock::time_point start_;
  double start_cpu_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend() {
  return make_cpu_backend(cpu_kernels());
}

std::unique_ptr<Backend> make_cpu_backend(const CpuKernels& kernels) {
  return std::make_unique<CpuBackend>(kernels);
}

// --- The choice among the instruction sets.

#ifdef EQUIPOISE_X86
namespace avx512 {
extern const CpuKernels kKernels;
}
namespace avx2 {
extern const CpuKernels kKernels;
}
#endif
namespace baseline {
extern const CpuKernels kKernels;
}

CpuKernelChoices cpu_kernel_choices() {
  CpuKernelChoices choices;
#ifdef EQUIPOISE_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) choices.tables[choices.count++] = &avx512::kKernels;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    choices.tables[choices.count++] = &avx2::kKernels;
#endif
  choices.tables[choices.count++] = &baseline::kKernels;
  return choices;
}

const CpuKernels& cpu_kernels() {
  static const CpuKernels& best = *cpu_kernel_choices().tables[0];
  return best;
}

}  // namespace equipoise::kernels

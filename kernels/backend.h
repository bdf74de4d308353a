// One small interface to everything a rank computes, with a backend for CPUs and one for NVIDIA GPUs. The
// profiler times these calls, the checkers compare them with float64 references, real execution runs on them.
//
// Pointers are device memory of the backend. `void` stands for elements of `element_type()`; statistics and
// indices have their own types. Calls are asynchronous on a GPU: `synchronize` waits. A virtual call costs
// nanoseconds against microseconds of work, so the interface stays an ordinary class.
#pragma once

#include <time.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/ops.h"
#include "kernels/row_ops.h"

namespace equipoise::kernels {

// The device on which a measurement ran, recorded with it.
struct DeviceDescription {
  std::string name;                              // "NVIDIA H200", "AMD EPYC ... (avx512)"
  std::map<std::string, std::string> libraries;  // library -> version
  int compute_units = 1;                         // SMs; 1 for a CPU rank, which is a single thread
  int devices = 1;                               // devices that the process sees on this machine; 1 for a CPU
  double peak_tflops = 0;                        // dense, in the element type; 0 if unknown, then measured
  double memory_bytes = 0;
};

// What an attention call needs besides its tensors, made once for a list of pieces and reused: workspaces,
// device copies of the lengths, and on a GPU the compiled execution plan.
class AttentionPlan {
 public:
  AttentionPlan() = default;
  AttentionPlan(const AttentionPlan&) = delete;
  AttentionPlan& operator=(const AttentionPlan&) = delete;
  virtual ~AttentionPlan() = default;
};

struct AttentionGradients {
  void* query = nullptr;
  void* key = nullptr;
  void* value = nullptr;
};

// One timed interval. On a GPU `seconds` is device time between two events and `cpu_seconds` the host's time
// in the calls. On a CPU `seconds` is wall time and `cpu_seconds` the thread's CPU time, and their ratio
// shows stolen time.
struct Elapsed {
  double seconds = 0;
  double cpu_seconds = 0;
  bool starved = false;  // whether a GPU waited for its host meanwhile, so that the time is the host's
};

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;  // "cpu" or "cuda"
  [[nodiscard]] virtual ElementType element_type() const = 0;
  [[nodiscard]] virtual DeviceDescription describe() const = 0;
  [[nodiscard]] virtual double clock_mhz() const = 0;  // at present; 0 if it cannot be read
  // The present speed of the device, in a unit that compares only with itself. For a GPU it is the clock. For
  // a CPU it is the GFLOP/s of a tiny product in the first cache, which fall when a sibling hardware thread
  // or a hypervisor's other guests take a part of the core, whatever the clock says. It is 0 if unknown.
  [[nodiscard]] virtual double pace() { return clock_mhz(); }

  [[nodiscard]] virtual void* allocate(std::size_t bytes) = 0;  // throws std::bad_alloc
  virtual void release(void* device) noexcept = 0;
  virtual void to_device(void* device, const void* host, std::size_t bytes) = 0;
  virtual void to_host(void* host, const void* device, std::size_t bytes) = 0;
  virtual void synchronize() = 0;
  virtual void start_timer() = 0;
  virtual Elapsed stop_timer() = 0;  // waits for the work since start_timer
  // The same for many short calls, which take the host `issue_seconds` to issue. A GPU is first kept busy for
  // so long, outside the timed interval. So it finds them queued, and the measured time is its own.
  virtual void start_queued_timer(double /*issue_seconds*/) { start_timer(); }

  // An op that does nothing, to measure the cost of a launch alone.
  virtual void empty_op() = 0;
  // Keeps the device busy for this long by its own clock (a CPU's is the thread's CPU time), to test the
  // timer.
  virtual void spin(double seconds) = 0;
  virtual void copy(void* target, const void* source, std::size_t bytes) = 0;
  virtual void clear(void* target, std::size_t bytes) = 0;  // to zero

  // Softmax scale is 1 / sqrt(head_dim). `log_sum` is (query rows, query_heads): log of the softmax
  // denominator in units of the scaled scores, which the backward pass needs. Rows outside every piece are
  // not written by the forward pass. The backward pass writes gradients of rows inside pieces and sums over
  // pieces that share keys; the other rows up to the last that a piece reaches, and up to `rows` where that
  // is more, become zero. A plan of no pieces is fine: its forward pass does nothing, its backward pass
  // clears.
  //
  // `out` and `log_sum` of a backward call may be those over more keys than the pieces hold (AttentionMerge):
  // then its gradients are the pieces' part, and those of all parts add up to the whole.
  [[nodiscard]] virtual std::unique_ptr<AttentionPlan> plan_attention(const AttentionShape& shape,
                                                                      std::span<const Piece> pieces,
                                                                      Pass pass,
                                                                      const AttentionRows& rows = {}) = 0;
  virtual void attention_forward(AttentionPlan& plan, const void* query, const void* key, const void* value,
                                 void* out, float* log_sum) = 0;
  virtual void attention_backward(AttentionPlan& plan, const void* query, const void* key, const void* value,
                                  const void* out, const float* log_sum, const void* out_gradient,
                                  const AttentionGradients& gradients) = 0;

  virtual void gemm(const GemmShape& shape, const void* a, const void* b, void* c) = 0;

  // Runs a row-wise or elementwise op of row_ops.h, e.g. run(Swiglu{shape, gate_up, out}).
  virtual void run(const RowCall& call) = 0;
};

std::unique_ptr<Backend> make_cpu_backend();

// Null when this program has no CUDA part or the machine no usable GPU; then `reason` is one line that says
// why.
std::unique_ptr<Backend> make_cuda_backend(std::string& reason);

// Every backend, with the name that a user types and Backend::name returns.
struct BackendKind {
  std::string_view name;
  bool gpu = false;
  std::unique_ptr<Backend> (*make)(std::string& reason) = nullptr;  // null if absent, for the `reason` given
};
inline constexpr BackendKind kBackends[] = {{"cpu", false, [](std::string&) { return make_cpu_backend(); }},
                                            {"cuda", true, make_cuda_backend}};

// (positions, head_dim / 2, {cos, sin}) in float64 arithmetic, rounded once.
void fill_rope_table(std::span<float> table, int head_dim, double base);

// Device memory that returns itself.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend& backend, std::size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] float* floats() const { return static_cast<float*>(data_); }
  [[nodiscard]] std::int32_t* integers() const { return static_cast<std::int32_t*>(data_); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  Backend* backend_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// --- The clocks for the host's side of a measurement. Only differences of times have a meaning.

// The same clock in all processes of a machine.
inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace equipoise::kernels

// The CUDA backend: bf16, one device, everything on the default stream.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/ops.h"
#include "kernels/ops.h"

namespace equipoise::kernels {
namespace cuda {
namespace {

constexpr double kLongestHead = 0.05;  // limit of the seconds that a GPU is kept busy while calls are queued
constexpr double kStarvedShare = 0.1;  // a GPU is not starved if issuing calls takes less of their time

// The few declarations of nvml.h that are needed; 0 is NVML_SUCCESS, 1 NVML_CLOCK_SM.
using Init = int (*)();
using HandleByPciBusId = int (*)(const char*, void**);
using HandleByIndex = int (*)(unsigned int, void**);
using ClockInfo = int (*)(void*, int, unsigned int*);
constexpr int kSmClock = 1;

template <class Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

// The GPU's present SM clock, from NVML if the driver brought it: the library is opened at run time, since no
// toolkit carries it.
class Clock {
 public:
  // `index` serves if NVML does not know the bus address, as in some virtual machines.
  Clock(const char* pci_bus_id, int index) : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    const auto init = symbol<Init>(library_, "nvmlInit_v2");
    const auto find = symbol<HandleByPciBusId>(library_, "nvmlDeviceGetHandleByPciBusId_v2");
    const auto count_off = symbol<HandleByIndex>(library_, "nvmlDeviceGetHandleByIndex_v2");
    if (init == nullptr || init() != 0) return;
    if (find != nullptr && find(pci_bus_id, &device_) == 0) return;
    if (count_off == nullptr || count_off(static_cast<unsigned int>(index), &device_) != 0) device_ = nullptr;
  }
  ~Clock() {
    if (library_ != nullptr) dlclose(library_);
  }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  [[nodiscard]] double mhz() const {  // 0: not known
    if (device_ == nullptr) return 0;
    const auto read = symbol<ClockInfo>(library_, "nvmlDeviceGetClockInfo");
    unsigned int value = 0;
    return read != nullptr && read(device_, kSmClock, &value) == 0 ? static_cast<double>(value) : 0;
  }

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;
};

class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) {
    if (bytes > 0) check(cudaMalloc(&data_, bytes), "cudaMalloc");
  }
  ~DeviceMemory() {
    if (data_ != nullptr) cudaFree(data_);
  }
  DeviceMemory(DeviceMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  [[nodiscard]] void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

template <class Number>
DeviceMemory on_device(const std::vector<Number>& values) {
  DeviceMemory memory(values.size() * sizeof(Number));
  check(cudaMemcpy(memory.data(), values.data(), values.size() * sizeof(Number), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  return memory;
}

// The lengths and offsets of one cuDNN call.
struct CallLists {
  DeviceMemory query_lengths;
  DeviceMemory key_lengths;
  DeviceMemory query_offsets;
  DeviceMemory key_offsets;
  DeviceMemory log_sum_offsets;
};

CallLists lists_of(const AttentionShape& shape, std::span<const Piece> pieces, std::int64_t slots) {
  const CallRows rows = call_rows(pieces, slots);
  const CallOffsets offsets = call_offsets(shape, rows);
  return {on_device(rows.query_lengths), on_device(rows.key_lengths), on_device(offsets.query),
          on_device(offsets.key), on_device(offsets.log_sum)};
}

struct Round {
  std::shared_ptr<AttentionGraph> graph;
  CallLists lists;
  bool covers_keys = false;  // if so, the call writes every row of the key gradients
};

class CudaAttentionPlan : public AttentionPlan {
 public:
  std::vector<Round> rounds;
  bool covers_queries = false;
  std::size_t query_bytes = 0;  // the parts of the query and the key buffers that the pieces reach
  std::size_t key_bytes = 0;
  DeviceMemory workspace{0};
  DeviceMemory more_dk{0};  // gradients from rounds after the first
  DeviceMemory more_dv{0};

  CudaAttentionPlan(std::vector<Round> all_rounds, bool all_queries, std::size_t workspace_bytes,
                    std::size_t query_size, std::size_t key_size, Pass pass)
      : rounds(std::move(all_rounds)),
        covers_queries(all_queries),
        query_bytes(query_size),
        key_bytes(key_size),
        workspace(workspace_bytes),
        more_dk(pass == Pass::backward && rounds.size() > 1 ? key_size : 0),
        more_dv(pass == Pass::backward && rounds.size() > 1 ? key_size : 0) {}
};

std::string pci_bus_id(int device) {
  char text[32] = {};
  check(cudaDeviceGetPCIBusId(text, sizeof text, device), "cudaDeviceGetPCIBusId");
  return text;
}

class CudaBackend : public Backend {
 public:
  // `device` must be the current one.
  explicit CudaBackend(int device) : device_(device), clock_(pci_bus_id(device).c_str(), device) {
    check(cudaGetDeviceProperties(&properties_, device), "cudaGetDeviceProperties");
    check(cudaEventCreate(&start_), "cudaEventCreate");
    check(cudaEventCreate(&stop_), "cudaEventCreate");
    cudnn_ = make_cudnn_handle();
  }
  ~CudaBackend() override {
    graphs_.clear();
    destroy_cudnn_handle(cudnn_);
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }

  [[nodiscard]] std::string_view name() const override { return "cuda"; }
  [[nodiscard]] ElementType element_type() const override { return ElementType::bf16; }

  [[nodiscard]] DeviceDescription describe() const override {
    DeviceDescription description;
    description.name = properties_.name;
    description.compute_units = properties_.multiProcessorCount;
    description.memory_bytes = static_cast<double>(properties_.totalGlobalMem);
    if (cudaGetDeviceCount(&description.devices) != cudaSuccess) description.devices = 1;
    int kilohertz = 0;
    if (cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, device_) == cudaSuccess) {
      // 4 tensor cores per SM, 512 bf16 multiply-adds per clock each (Hopper).
      description.peak_tflops = properties_.multiProcessorCount * 4 * 512 * 2 * (kilohertz * 1e3) * 1e-12;
    }
    int runtime = 0;
    int driver = 0;
    check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    description.libraries = {{"CUDA runtime", std::to_string(runtime)},
                             {"CUDA driver", std::to_string(driver)},
                             {"cuDNN", cudnn_version()},
                             {"cuBLASLt", GemmLt::version()}};
    return description;
  }

  [[nodiscard]] double clock_mhz() const override { return clock_.mhz(); }

  [[nodiscard]] void* allocate(std::size_t bytes) override {
    void* data = nullptr;
    check(cudaMalloc(&data, std::max<std::size_t>(bytes, 1)), "cudaMalloc");
    return data;
  }
  void release(void* device) noexcept override { cudaFree(device); }
  void to_device(void* device, const void* host, std::size_t bytes) override {
    check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  void to_host(void* host, const void* device, std::size_t bytes) override {
    check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  }
  void synchronize() override { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

  void start_timer() override { start_queued_timer(0); }
  void start_queued_timer(double issue_seconds) override {
    synchronize();
    if (issue_seconds > 0) launch_spin(std::min(issue_seconds, kLongestHead));
    start_host_ = wall_seconds();
    check(cudaEventRecord(start_), "cudaEventRecord");
  }
  Elapsed stop_timer() override {
    check(cudaEventRecord(stop_), "cudaEventRecord");
    const double host = wall_seconds() - start_host_;
    // Checks whether the first call had begun before the last was issued.
    const cudaError_t begun = cudaEventQuery(start_);
    if (begun == cudaErrorNotReady)
      static_cast<void>(cudaGetLastError());  // that is an answer, not an error
    else
      check(begun, "cudaEventQuery");
    check(cudaEventSynchronize(stop_), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start_, stop_), "cudaEventElapsedTime");
    const double seconds = 1e-3 * static_cast<double>(milliseconds);
    return {seconds, host, begun == cudaSuccess && host > kStarvedShare * seconds};
  }

  void empty_op() override { launch_empty(); }
  void spin(double seconds) override { launch_spin(seconds); }
  void copy(void* target, const void* source, std::size_t bytes) override {
    check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice), "cudaMemcpyAsync");
  }
  void clear(void* target, std::size_t bytes) override {
    if (bytes > 0) check(cudaMemsetAsync(target, 0, bytes), "cudaMemsetAsync");
  }

  [[nodiscard]] std::unique_ptr<AttentionPlan> plan_attention(const AttentionShape& shape,
                                                              std::span<const Piece> pieces, Pass pass,
                                                              const AttentionRows& rows) override {
    validate_attention(shape, pieces);
    const std::vector<std::vector<Piece>> groups =
        pass == Pass::backward || split_shared_keys_ ? ascending_rounds(pieces) : by_mask(pieces);
    const std::int64_t query_rows = std::max(rows.query, query_rows_of(pieces));
    const std::int64_t key_rows = std::max(rows.key, key_rows_of(pieces));
    std::vector<Round> rounds;
    std::size_t workspace = 0;
    for (const std::vector<Piece>& group : groups) {
      const DeclaredAttention declared = declare(shape, group, pass);
      std::shared_ptr<AttentionGraph> graph = graph_for(declared);
      workspace = std::max(workspace, graph->workspace_bytes());
      rounds.push_back(
          {std::move(graph), lists_of(shape, group, declared.pieces), cover_keys(group, key_rows)});
    }
    const auto row_bytes = static_cast<std::size_t>(shape.head_dim) * sizeof(bf16);
    return std::make_unique<CudaAttentionPlan>(
        std::move(rounds), cover_queries(pieces, query_rows), workspace,
        static_cast<std::size_t>(query_rows) * static_cast<std::size_t>(shape.query_heads) * row_bytes,
        static_cast<std::size_t>(key_rows) * static_cast<std::size_t>(shape.kv_heads) * row_bytes, pass);
  }

  void attention_forward(AttentionPlan& plan, const void* query, const void* key, const void* value,
                         void* out, float* log_sum) override {
    auto& mine = static_cast<CudaAttentionPlan&>(plan);
    for (const Round& round : mine.rounds) {
      AttentionPointers pointers = pointers_of(round, query, key, value, out, log_sum);
      round.graph->execute(cudnn_, pointers, mine.workspace.data());
    }
  }

  void attention_backward(AttentionPlan& plan, const void* query, const void* key, const void* value,
                          const void* out, const float* log_sum, const void* out_gradient,
                          const AttentionGradients& gradients) override {
    auto& mine = static_cast<CudaAttentionPlan&>(plan);
    if (!mine.covers_queries) clear(gradients.query, mine.query_bytes);
    if (mine.rounds.empty()) {
      clear(gradients.key, mine.key_bytes);
      clear(gradients.value, mine.key_bytes);
    }
    for (std::size_t i = 0; i < mine.rounds.size(); ++i) {
      const Round& round = mine.rounds[i];
      AttentionPointers pointers =
          pointers_of(round, query, key, value, const_cast<void*>(out), const_cast<float*>(log_sum));
      pointers.out_gradient = const_cast<void*>(out_gradient);
      pointers.query_gradient = gradients.query;
      pointers.key_gradient = i == 0 ? gradients.key : mine.more_dk.data();
      pointers.value_gradient = i == 0 ? gradients.value : mine.more_dv.data();
      if (!round.covers_keys) {
        clear(pointers.key_gradient, mine.key_bytes);
        clear(pointers.value_gradient, mine.key_bytes);
      }
      round.graph->execute(cudnn_, pointers, mine.workspace.data());
      if (i == 0) continue;
      const auto elements = static_cast<std::int64_t>(mine.key_bytes / sizeof(bf16));
      run(ResidualAdd{elements, gradients.key, pointers.key_gradient, gradients.key});
      run(ResidualAdd{elements, gradients.value, pointers.value_gradient, gradients.value});
    }
  }

  void gemm(const GemmShape& shape, const void* a, const void* b, void* c) override { gemm_(shape, a, b, c); }

  void run(const RowCall& call) override { launch(call, properties_.multiProcessorCount); }

 private:
  static DeclaredAttention declare(const AttentionShape& shape, std::span<const Piece> pieces, Pass pass) {
    std::int64_t most_queries = 1;
    std::int64_t most_keys = 1;
    for (const Piece& piece : pieces) {
      most_queries = std::max(most_queries, piece.queries);
      most_keys = std::max(most_keys, piece.keys);
    }
    DeclaredAttention declared =
        declared_for(shape, pass, pieces.front().full, static_cast<std::int64_t>(pieces.size()), most_queries,
                     most_keys, query_rows_of(pieces), key_rows_of(pieces));
    declared.square = std::ranges::all_of(pieces, [](const Piece& p) { return p.queries == p.keys; });
    return declared;
  }

  std::shared_ptr<AttentionGraph> graph_for(const DeclaredAttention& declared) {
    std::shared_ptr<AttentionGraph>& graph = graphs_[declared];
    if (graph == nullptr) {
      auto made = std::make_shared<AttentionGraph>(declared, 10 * properties_.major + properties_.minor);
      made->build(cudnn_);
      graph = std::move(made);
    }
    return graph;
  }

  static AttentionPointers pointers_of(const Round& round, const void* query, const void* key,
                                       const void* value, void* out, float* log_sum) {
    AttentionPointers pointers;
    pointers.query = const_cast<void*>(query);  // cuDNN takes all tensors as void*; inputs are not written
    pointers.key = const_cast<void*>(key);
    pointers.value = const_cast<void*>(value);
    pointers.out = out;
    pointers.log_sum = log_sum;
    pointers.query_lengths = round.lists.query_lengths.data();
    pointers.key_lengths = round.lists.key_lengths.data();
    pointers.query_offsets = round.lists.query_offsets.data();
    pointers.key_offsets = round.lists.key_offsets.data();
    pointers.log_sum_offsets = round.lists.log_sum_offsets.data();
    return pointers;
  }

  int device_;
  Clock clock_;
  cudaDeviceProp properties_{};
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
  double start_host_ = 0;
  // For cuDNN versions that would not let two pieces of a forward call share keys.
  bool split_shared_keys_ = std::getenv("EQUIPOISE_SPLIT_SHARED_KEYS") != nullptr;
  void* cudnn_ = nullptr;
  std::map<DeclaredAttention, std::shared_ptr<AttentionGraph>> graphs_;
  GemmLt gemm_;
};

// Chooses the GPU of this process: by its local rank under a launcher, else the first.
int chosen_device(int devices) {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})
    if (const char* text = std::getenv(name)) return std::atoi(text) % devices;
  return 0;
}

}  // namespace

static std::unique_ptr<Backend> open_backend(std::string& reason) {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    reason =
        std::string("no device: ") + (status != cudaSuccess ? cudaGetErrorString(status) : "none is visible");
    return nullptr;
  }
  const int device = chosen_device(devices);
  int major = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess || major < 9) {
    reason = "device " + std::to_string(device) + " has compute capability " + std::to_string(major) +
             ".x; the kernels are for Hopper (9.0) and later";
    return nullptr;
  }
  try {
    check(cudaSetDevice(device), "cudaSetDevice");  // must come first, since handles and workspaces belong to
                                                    // the current device
    return std::make_unique<CudaBackend>(device);
  } catch (const std::exception& e) {
    reason = e.what();
    return nullptr;
  }
}

}  // namespace cuda
}  // namespace equipoise::kernels

extern "C" void equipoise_open_cuda_backend(std::unique_ptr<equipoise::kernels::Backend>* backend,
                                            std::string* reason) {
  *backend = equipoise::kernels::cuda::open_backend(*reason);
}

#include "kernels/cuda/clock.h"

#include <dlfcn.h>

namespace equipoise::kernels::cuda {
namespace {

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

}  // namespace

Clock::Clock(const char* pci_bus_id, int index)
    : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) return;
  const auto init = symbol<Init>(library_, "nvmlInit_v2");
  const auto find = symbol<HandleByPciBusId>(library_, "nvmlDeviceGetHandleByPciBusId_v2");
  const auto count_off = symbol<HandleByIndex>(library_, "nvmlDeviceGetHandleByIndex_v2");
  if (init == nullptr || init() != 0) return;
  if (find != nullptr && find(pci_bus_id, &device_) == 0) return;
  if (count_off == nullptr || count_off(static_cast<unsigned int>(index), &device_) != 0) device_ = nullptr;
}

Clock::~Clock() {
  if (library_ != nullptr) dlclose(library_);
}

double Clock::mhz() const {
  if (device_ == nullptr) return 0;
  const auto read = symbol<ClockInfo>(library_, "nvmlDeviceGetClockInfo");
  unsigned int value = 0;
  return read != nullptr && read(device_, kSmClock, &value) == 0 ? static_cast<double>(value) : 0;
}

}  // namespace equipoise::kernels::cuda

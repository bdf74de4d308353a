// The GPU's present SM clock, from NVML if the driver brought it: the library is opened at run time, since no
// toolkit carries it.
#pragma once

namespace equipoise::kernels::cuda {

class Clock {
 public:
  // The index is asked where NVML does not know the bus address, as in some virtual machines.
  Clock(const char* pci_bus_id, int index);
  ~Clock();
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  [[nodiscard]] double mhz() const;  // 0: not known

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;
};

}  // namespace equipoise::kernels::cuda

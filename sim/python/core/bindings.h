// The border between Python and the simulator: values cross it as JSON text, lengths as arrays of int64.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <span>
#include <utility>
#include <vector>

namespace equipoise::python {

namespace nb = nanobind;

// The lengths of documents in Python's own array, which is not copied.
using Lengths = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

inline std::span<const std::int64_t> span_of(const Lengths& lengths) {
  return {lengths.data(), lengths.size()};
}

// The values as a NumPy array that owns them.
inline nb::object array_of(std::vector<std::int64_t> values, std::size_t columns = 1) {
  auto* const held = new std::vector<std::int64_t>(std::move(values));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<std::int64_t>*>(p); });
  const std::size_t shape[] = {held->size() / columns, columns};
  return nb::cast(nb::ndarray<nb::numpy, std::int64_t>(held->data(), columns == 1 ? 1 : 2, shape, owner));
}

// Runs work(stop) on a thread of its own, without the interpreter's lock. Ctrl-C sets `stop`, waits for the
// work to end and raises KeyboardInterrupt.
template <class Work>
auto interruptible(const Work& work) {
  constexpr std::chrono::milliseconds kLook{50};
  std::atomic<bool> stop{false};
  const nb::gil_scoped_release released;
  auto result = std::async(std::launch::async, [&] { return work(stop); });
  while (result.wait_for(kLook) != std::future_status::ready) {
    const nb::gil_scoped_acquire acquired;
    if (PyErr_CheckSignals() == 0) continue;
    nb::python_error interrupted;
    {
      const nb::gil_scoped_release waiting;
      stop = true;
      result.wait();
    }
    throw interrupted;
  }
  return result.get();
}

}  // namespace equipoise::python

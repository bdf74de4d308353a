// The border between Python and the simulator: values cross it as JSON text, lengths as arrays of int64.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "policies/loader.h"
#include "sim/study/read/study.h"

namespace equipoise::python {

namespace nb = nanobind;

// Lengths of documents, read where they lie.
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

// work(stop) on a thread of its own and without the interpreter's lock, so that Ctrl-C is seen: it sets
// `stop`, waits for the work to end and raises KeyboardInterrupt.
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

// What a policy of Python's is told beside the documents: the shape of a step, as JSON (open_study.cpp).
std::string shape_of(PackOptions batch, std::int64_t steps, const DocumentSet* documents);
// Documents as their global batches: rows of batch, document, begin, end.
nb::object rows_of(const DocumentSet& documents);

void bind_plans(nb::module_& m);    // packed_plan.cpp
void bind_studies(nb::module_& m);  // open_study.cpp
void bind_traces(nb::module_& m);   // bindings.cpp

}  // namespace equipoise::python

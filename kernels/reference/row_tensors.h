// The tensors of one call of a row op that is to be timed, by whoever owns the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/row_ops.h"

namespace equipoise::kernels {

// Device memory of random numbers without zeros. The `shared` ones are made for the first call and taken
// again, in the same order, by every further call of the same op.
class RowTensors {
 public:
  RowTensors() = default;
  RowTensors(const RowTensors&) = delete;
  RowTensors& operator=(const RowTensors&) = delete;
  virtual ~RowTensors() = default;

  virtual void* elements(std::int64_t count) = 0;  // of the backend's type
  virtual float* floats(std::int64_t count) = 0;
  virtual float* positive_floats(std::int64_t count) = 0;
  virtual const void* shared_elements(std::int64_t count) = 0;
  virtual const float* shared_floats(const std::function<std::vector<float>()>& make) = 0;
  virtual const std::int32_t* shared_integers(const std::function<std::vector<std::int32_t>()>& make) = 0;
};

// A call of the op at `op` in kRowOps on rows * columns numbers. It has no tensor that the op leaves alone,
// so that its footprint is what the table says.
RowCall row_call(std::size_t op, const Rows& shape, RowTensors& tensors);

}  // namespace equipoise::kernels

// Inputs for checks and measurements, and their way to the device. They are never zero: a GPU's power and
// clock depend on the bits that toggle, and a kernel that skips work would look correct on zeros.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "policies/base/random.h"

namespace equipoise::kernels {

// `count` values of either sign with magnitudes in [scale / 20, scale).
std::vector<float> random_values(std::int64_t count, float scale, SplitMix64& random);

// Values as the element type holds them (round to nearest even for bf16).
std::vector<float> rounded_to(ElementType type, std::vector<float> values);

// A device buffer of the backend's element type that holds `values`.
Buffer upload(Backend& backend, std::span<const float> values);
Buffer upload_f32(Backend& backend, std::span<const float> values);
Buffer upload_integers(Backend& backend, std::span<const std::int32_t> values);

// A device buffer for `count` elements filled with NaNs, which show what an op forgets to write.
Buffer poisoned(Backend& backend, std::int64_t count);
Buffer poisoned_f32(Backend& backend, std::int64_t count);

std::vector<float> download(Backend& backend, const Buffer& buffer);  // elements of the backend's type
std::vector<float> download_f32(Backend& backend, const Buffer& buffer);

// --- The tensors of one timed call of a row op, for any owner of the memory.

// Device memory of random numbers without zeros. The `shared` ones are made for the first call and reused, in
// the same order, by every further call of the same op.
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

// A call of the op at `op` in kRowOps on rows * columns numbers. It has no tensor that the op does not use,
// so that its footprint is that of the table.
RowCall row_call(std::size_t op, const Rows& shape, RowTensors& tensors);

}  // namespace equipoise::kernels

// Inputs for checks and measurements, and their way to the device. Never zeros: power, and with it the clock
// of a GPU, depends on the bits that toggle, and a kernel that skips work looks right on zeros.
#pragma once

#include <cstdint>
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

// A device buffer for `count` elements filled with NaNs: what an op forgets to write shows.
Buffer poisoned(Backend& backend, std::int64_t count);
Buffer poisoned_f32(Backend& backend, std::int64_t count);

std::vector<float> download(Backend& backend, const Buffer& buffer);  // elements of the backend's type
std::vector<float> download_f32(Backend& backend, const Buffer& buffer);

}  // namespace equipoise::kernels

// What a step looks like, derived from the options in one place: how many micro-batches, over how many
// lanes, how long a pack. Every function throws UserError where the options make no step at all.
#pragma once

#include <cstdint>

#include "policies/parameter.h"
#include "policies/plan.h"

namespace equipoise {

// Of policies that fill packs of one length.
enum class PackOrder { shuffled, created };  // of finished packs, before iterations are cut
inline constexpr std::string_view kPackOrderNames[] = {"shuffled", "created"};
struct PackLengthOptions {
  std::int64_t pack_length = 0;  // 0: context_window
  PackOrder pack_order = PackOrder::shuffled;
};
inline constexpr PackParameter kPackLength = parameter::integer<&PackLengthOptions::pack_length>(
    "pack_length", 1, kLongestSize, "Tokens of a pack; the window by default");
inline constexpr PackParameter kPackOrder = parameter::choice<&PackLengthOptions::pack_order>(
    "pack_order", kPackOrderNames,
    "finished packs are shuffled once before iterations are cut, or stay as created");

// N: micro-batches of a step over all lanes.
std::int64_t micro_batches_of_step(const PackOptions& options);

// Tokens of a window.
std::int64_t window_tokens(const PackOptions& options);

// Tokens that fit in one micro-batch of a fixed-length policy: micro_batch_size windows.
std::int64_t micro_batch_capacity(const PackOptions& options);

// Length a pack-length packer fills.
std::int64_t pack_length(const PackOptions& options);

// Tokens of one iteration of a policy that sees the whole set.
std::int64_t tokens_of_iteration(const PackOptions& options);

// Packs of length `length` in one iteration: at least 1.
std::int64_t packs_of_iteration(const PackOptions& options, std::int64_t length);

// GPUs of the DP x CP grid.
std::int64_t grid_gpus(const PackOptions& options);

// A step of `options.lanes` empty lanes with the study's CP degree.
Step empty_step(const PackOptions& options);

}  // namespace equipoise

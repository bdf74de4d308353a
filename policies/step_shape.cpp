#include "policies/step_shape.h"

#include <algorithm>
#include <string>

#include "policies/base/error.h"

namespace equipoise {
namespace {

void require_positive(std::int64_t value, const char* name) {
  if (value <= 0) {
    throw UserError(std::string(name) + ": expected a number >= 1, found " + std::to_string(value));
  }
}

}  // namespace

std::int64_t micro_batches_of_step(const PackOptions& options) {
  if (options.micro_batches > 0) return options.micro_batches;
  require_positive(options.sequences_per_step, "sequences_per_step");
  require_positive(options.micro_batch_size, "micro_batch_size");
  if (options.sequences_per_step % options.micro_batch_size != 0) {
    throw UserError("micro_batch_size: " + std::to_string(options.micro_batch_size) +
                    " does not divide sequences_per_step " + std::to_string(options.sequences_per_step));
  }
  return options.sequences_per_step / options.micro_batch_size;
}

std::int64_t window_tokens(const PackOptions& options) {
  require_positive(options.context_window, "context_window");
  return options.context_window;
}

std::int64_t micro_batch_capacity(const PackOptions& options) {
  require_positive(options.micro_batch_size, "micro_batch_size");
  // Fewer micro-batches than the windows ask for: they share the windows, as plain's do.
  const std::int64_t shared =
      options.micro_batches > 0
          ? (options.sequences_per_step + options.micro_batches - 1) / options.micro_batches
          : 0;
  return window_tokens(options) * std::max(options.micro_batch_size, shared);
}

std::int64_t pack_length(const PackOptions& options) {
  const std::int64_t own = options.of<PackLengthOptions>().pack_length;
  const std::int64_t length = own > 0 ? own : options.context_window;
  require_positive(length, "pack_length");
  if (length > kLongestSize) {
    throw UserError("pack_length: expected at most " + std::to_string(kLongestSize) + ", found " +
                    std::to_string(length));
  }
  return length;
}

std::int64_t tokens_of_iteration(const PackOptions& options) {
  if (options.global_tokens > 0) return options.global_tokens;
  require_positive(options.context_window, "context_window");
  require_positive(options.sequences_per_step, "sequences_per_step");
  return options.context_window * options.sequences_per_step;
}

std::int64_t packs_of_iteration(const PackOptions& options, std::int64_t length) {
  return std::max<std::int64_t>(1, tokens_of_iteration(options) / length);
}

std::int64_t grid_gpus(const PackOptions& options) {
  if (options.gpus > 0) return options.gpus;
  require_positive(options.lanes, "lanes");
  require_positive(options.context, "context");
  return static_cast<std::int64_t>(options.lanes) * options.context;
}

Step empty_step(const PackOptions& options) {
  require_positive(options.lanes, "lanes");
  require_positive(options.context, "context");
  Step step;
  step.lanes.resize(static_cast<std::size_t>(options.lanes));
  for (Lane& lane : step.lanes) lane.context = options.context;
  return step;
}

}  // namespace equipoise

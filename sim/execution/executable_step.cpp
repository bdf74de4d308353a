#include "sim/execution/executable_step.h"

#include <utility>

namespace equipoise::execution {
namespace {

// Gradient buckets become the first ops of the stage's end.
void reduce_at_the_end(StageEnd& end) {
  std::vector<OpStep> steps;
  std::vector<Picoseconds> durations;
  for (std::size_t i = 0; i < end.buckets.size(); ++i) {
    OpStep step{OpName::dp_reduce, Stream::dp};
    if (!end.bucket_bytes.empty()) step.bytes = end.bucket_bytes[i];
    steps.push_back(step);
    durations.push_back(end.buckets[i]);
  }
  steps.insert(steps.end(), end.steps.begin(), end.steps.end());
  durations.insert(durations.end(), end.durations.begin(), end.durations.end());
  end = {{}, std::move(steps), std::move(durations), {}};
}

// Tokens of the sample that a micro-batch's slice belongs to: the slice, or the whole group of chunks.
std::int64_t sample_tokens(const Lane& lane, std::size_t j, const Slice& slice) {
  const MicroBatch& micro_batch = lane.micro_batches[j];
  if (micro_batch.chunk.count <= 1) return slice.tokens();
  std::int64_t tokens = 0;
  for (const MicroBatch& other : lane.micro_batches)
    if (other.chunk.count > 1 && other.chunk.sequence == micro_batch.chunk.sequence &&
        other.chunk.group_begin == micro_batch.chunk.group_begin)
      tokens += other.tokens();
  return tokens;
}

struct Samples {
  double count = 0;
  double tokens = 0;
};

Samples samples_of(const Lane& lane) {
  Samples all;
  for (const MicroBatch& micro_batch : lane.micro_batches) {
    all.tokens += static_cast<double>(micro_batch.tokens());
    if (micro_batch.chunk.count <= 1)
      all.count += static_cast<double>(micro_batch.slices.size());
    else if (micro_batch.chunk.index == 0)
      all.count += 1;
  }
  return all;
}

}  // namespace

OpProgram sequential(OpProgram program) {
  for (OpLane& lane : program.lanes) {
    for (OpBlock& block : lane.blocks)
      for (OpStep& step : block.steps) {
        step.with_next = false;
        step.over = 0;
      }
    for (BlockRun& run : lane.runs) run.bucket = kNoBucket;
  }
  for (StageEnd& end : program.ends) reduce_at_the_end(end);
  return program;
}

std::vector<std::vector<std::vector<double>>> loss_weights(const Step& step, LossNormalizer normalizer) {
  Samples all;
  double lanes = 0;
  for (const Lane& lane : step.lanes) {
    const Samples of_lane = samples_of(lane);
    all.count += of_lane.count;
    all.tokens += of_lane.tokens;
    lanes += of_lane.count > 0 ? 1 : 0;
  }
  std::vector<std::vector<std::vector<double>>> weights(step.lanes.size());
  for (std::size_t l = 0; l < step.lanes.size(); ++l) {
    const Lane& lane = step.lanes[l];
    const double samples = samples_of(lane).count;
    for (std::size_t j = 0; j < lane.micro_batches.size(); ++j) {
      std::vector<double>& of_slices = weights[l].emplace_back();
      for (const Slice& slice : lane.micro_batches[j].slices) {
        double weight = 1;
        if (normalizer == LossNormalizer::token) weight = 1 / all.tokens;
        if (normalizer == LossNormalizer::sample)
          weight = 1 / (all.count * static_cast<double>(sample_tokens(lane, j, slice)));
        if (normalizer == LossNormalizer::stable) weight = 1 / (samples * all.tokens / all.count) / lanes;
        of_slices.push_back(weight);
      }
    }
  }
  return weights;
}

}  // namespace equipoise::execution

// The end of a step on one rank: gradients are reduced over the replicas, part by part, the optimizer runs on
// what the rank owns, the parameters are gathered again (ZeRO-1). And what checks gather.
#include <cmath>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "sim/execution/rank_context.h"
#include "sim/execution/rank_executor.h"

namespace equipoise::execution {
namespace {

constexpr float kBeta1 = 0.9F, kBeta2 = 0.95F, kEpsilon = 1e-8F, kLearningRate = 1e-4F;

}  // namespace

void RankExecutor::run_end(const ExecutableStep& step, StepRecord& record, Gathered* gathered) {
  const StageEnd& end = step.program.ends[at(rank_.place.stage)];
  std::vector<Part*> buckets;
  for (auto& stage : parts_)
    for (Part& part : stage) buckets.push_back(&part);
  std::size_t reduced = 0;
  for (std::size_t i = 0; i < end.steps.size(); ++i) {
    const OpName name = end.steps[i].name;
    RecordedOp op;
    op.step = static_cast<std::int32_t>(i);
    op.name = static_cast<std::int32_t>(name);
    if (name == OpName::optimizer && gathered != nullptr) gather_gradients(gathered->gradients);
    begin_op(setup_.progress, name);
    op.begin_ns = now_ns();
    if (name == OpName::dp_reduce)
      reduce(*buckets.at(reduced++));
    else if (name == OpName::optimizer)
      for (Part* part : buckets) optimize(*part);
    else if (name == OpName::dp_all_gather)
      for (Part* part : buckets) gather_parameters(*part);
    else
      throw EngineError("real execution: the step ends with an op that no rank can run: ", name_of(name));
    if (setup_.times_ops) setup_.backend.synchronize();
    op.end_ns = now_ns();
    record.ops.push_back(op);
  }
  if (reduced != buckets.size()) throw EngineError("real execution: a part's gradients are reduced by no op");
}

void RankExecutor::reduce(Part& part) {
  for (std::size_t shard = 0; shard < part.tensors.size(); ++shard)
    if (part.touched[shard] == 0) {
      if (part.tensors[shard].offset >= part.first_norm && part.norm_elements > 0)
        norm_gradient_to_add_to(rank_, part, shard);
      else
        gradient_to_add_to(rank_, part, shard);
    }
  add_over_tensor_ranks(part);
  if (setup_.model.tied_embeddings && setup_.layout.pipeline > 1 && !is_layer(part.kind)) share_tied(part);
  part.reduced.reset();
  if (rank_.replica_count == 1) return;
  part.reduced = rank_.elements(part.owned);
  if (setup_.layout.zero >= 1)
    rank_.replicas.elements->reduce_scatter(part.gradients.data(), part.reduced.data(), part.owned);
  else
    rank_.replicas.elements->all_reduce(part.gradients.data(), part.reduced.data(), part.elements);
}

// Norms have seen other rows on every TP rank; a KV head that several ranks hold has other queries.
void RankExecutor::add_over_tensor_ranks(Part& part) {
  const bool f32 = setup_.backend.element_type() == kernels::ElementType::f32;
  if (part.norm_elements > 0) {
    void* norms = f32 ? rank_.at(part.gradients, part.first_norm) : part.norm_gradients.data();
    std::vector<float> mine(static_cast<std::size_t>(part.norm_elements)), sum(mine.size());
    setup_.backend.to_host(mine.data(), norms, mine.size() * sizeof(float));
    if (rank_.tensor.size() > 1)
      rank_.tensor.floats->all_reduce(mine.data(), sum.data(), part.norm_elements);
    else
      sum = mine;
    if (rank_.tensor.size() > 1 || !f32)
      write_elements(setup_.backend, rank_.at(part.gradients, part.first_norm), sum);
  }
  if (same_kv_->size() == 1) return;
  for (const TensorShard& shard : part.tensors) {
    if (!shard.everywhere || shard.offset >= part.first_norm) continue;
    const Memory sum = rank_.elements(shard.elements());
    same_kv_->all_reduce(rank_.at(part.gradients, shard.offset), sum.data(), shard.elements());
    rank_.copy(rank_.at(part.gradients, shard.offset), sum.data(), shard.elements());
  }
}

// A tied head on another stage than the embedding: both add what the other found.
void RankExecutor::share_tied(Part& part) {
  const int last = setup_.layout.pipeline - 1;
  const int other = part.kind == ModelPart::head ? 0 : last;
  const std::int64_t count = part.tensors[0].elements();
  const Memory incoming = rank_.elements(count);
  const int peer = world_rank(other, rank_.place.replica, rank_.place.tensor);
  setup_.elements.send_receive(part.gradients.data(), peer, incoming.data(), peer, count);
  rank_.add(part.gradients.data(), incoming.data(), count);
}

void* RankExecutor::owned_gradients(Part& part) const {
  return part.reduced ? part.reduced.data() : rank_.at(part.gradients, part.first_owned);
}

// Adam. Its corrections for the first steps are in its rates.
void RankExecutor::optimize(Part& part) {
  const auto step = static_cast<float>(steps_done_ + 1);
  const float first = 1 - std::pow(kBeta1, step), second = std::sqrt(1 - std::pow(kBeta2, step));
  kernels::Adam call;
  call.step = {part.owned, kBeta1, kBeta2, kEpsilon * second, kLearningRate * second / first};
  call.gradient = owned_gradients(part);
  call.master = part.master.floats();
  call.mean = part.mean.floats();
  call.square = part.square.floats();
  call.weights = rank_.at(part.weights, part.first_owned);
  setup_.backend.run(call);
}

void RankExecutor::gather_parameters(Part& part) {
  if (setup_.layout.zero == 0 || rank_.replica_count == 1) return;
  const Memory own = rank_.elements(part.owned);
  rank_.copy(own.data(), rank_.at(part.weights, part.first_owned), part.owned);
  rank_.replicas.elements->all_gather(own.data(), part.weights.data(), part.owned);
}

std::vector<float> RankExecutor::whole_gradients(Part& part) {
  Memory whole;
  const void* from = owned_gradients(part);
  if (part.owned < part.elements) {
    whole = rank_.elements(part.elements);
    rank_.replicas.elements->all_gather(from, whole.data(), part.owned);
    from = whole.data();
  }
  std::vector<float> values(static_cast<std::size_t>(part.elements));
  read_elements(setup_.backend, from, values);
  return values;
}

void RankExecutor::gather_gradients(std::vector<std::vector<float>>& out) {
  gather_tensors([this](Part& part) { return whole_gradients(part); }, out);
}

std::vector<std::vector<float>> RankExecutor::gather_weights() {
  std::vector<std::vector<float>> out;
  gather_tensors(
      [this](Part& part) {
        std::vector<float> values(static_cast<std::size_t>(part.elements));
        read_elements(setup_.backend, part.weights.data(), values);
        return values;
      },
      out);
  return out;
}

// The first replica of every stage and TP rank sends its parts to rank 0, which puts them into whole tensors.
void RankExecutor::gather_tensors(const std::function<std::vector<float>(Part&)>& values_of,
                                  std::vector<std::vector<float>>& out) {
  const bool assembles = setup_.floats.rank() == 0;
  const std::vector<Tensor> tensors = inventory(setup_.model);
  if (assembles)
    for (const Tensor& tensor : tensors) out.emplace_back(static_cast<std::size_t>(tensor.elements()), 0.0F);
  std::vector<std::vector<float>> mine;
  for (auto& stage : parts_)
    for (Part& part : stage) mine.push_back(values_of(part));
  if (!assembles && rank_.place.replica == 0)
    for (const std::vector<float>& values : mine)
      setup_.floats.send(values.data(), static_cast<std::int64_t>(values.size()), 0);
  if (!assembles) return;
  for (int s = 0; s < setup_.layout.pipeline; ++s)
    for (int t = 0; t < setup_.layout.tensor; ++t) {
      const int from = world_rank(s, 0, t);
      std::size_t number = 0;
      for (int local = 0; local < setup_.layout.virtual_pipeline; ++local)
        for (const Part& part : part_shapes(setup_.model, setup_.layout, local * setup_.layout.pipeline + s,
                                            {rank_.replica_count, 0, t, setup_.seed})) {
          std::vector<float> values(static_cast<std::size_t>(part.elements));
          if (from == 0)
            values = mine[number];
          else
            setup_.floats.receive(values.data(), part.elements, from);
          ++number;
          for (const TensorShard& shard : part.tensors)
            put_shard(tensors[shard.tensor], shard, values, out[shard.tensor]);
        }
    }
}

void RankExecutor::gather_losses(const ExecutableStep& step, Gathered& out) {
  std::vector<double> mine;
  for (std::size_t l = 0; l < step.step.lanes.size(); ++l)
    for (std::size_t j = 0; j < step.step.lanes[l].micro_batches.size(); ++j) {
      const std::size_t slices = step.step.lanes[l].micro_batches[j].slices.size();
      for (std::size_t i = 0; i < slices; ++i)
        mine.push_back(runs_[l].empty() ? 0 : runs_[l][j].slice_losses[i]);
    }
  // Doubles travel as pairs of floats, bit by bit.
  const auto count = static_cast<std::int64_t>(2 * mine.size());
  std::vector<double> all(mine.size() * static_cast<std::size_t>(setup_.floats.size()));
  setup_.floats.all_gather(mine.data(), all.data(), count);
  if (setup_.floats.rank() != 0) return;
  for (std::size_t i = mine.size(); i < all.size(); ++i) all[i % mine.size()] += all[i];
  std::size_t next = 0;
  for (const Lane& lane : step.step.lanes) {
    auto& of_lane = out.losses.emplace_back();
    for (const MicroBatch& micro_batch : lane.micro_batches) {
      auto& of_slices = of_lane.emplace_back();
      for (std::size_t i = 0; i < micro_batch.slices.size(); ++i) of_slices.push_back(all[next++]);
    }
  }
}

}  // namespace equipoise::execution

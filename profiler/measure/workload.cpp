#include "profiler/measure/workload.h"

#include <algorithm>
#include <cmath>

#include "kernels/random_inputs.h"

namespace equipoise::measure {
namespace {

using kernels::Backend;
using kernels::Buffer;

constexpr std::int64_t kPoolElements = 1 << 22;
constexpr double kMostSets = 16;
constexpr double kLargeFootprint =
    64e6;  // the same on a GPU, where even small products need many sets to exceed the cache
constexpr double kMostLargeSets = 64;
constexpr double kMostRowSets =
    1024;  // for ops that only move memory, where small ones need many to exceed the cache

std::size_t sets_for(const Point& point, kernels::ElementType type, double footprint) {
  const double bytes = std::max(bytes_of(point, type), 1.0);
  const double most_sets = footprint > kLargeFootprint ? kMostLargeSets : kMostSets;
  const bool moves_memory =
      std::holds_alternative<RowPoint>(point.what) || std::holds_alternative<CopyPoint>(point.what);
  return static_cast<std::size_t>(
      std::clamp(std::ceil(footprint / bytes), 1.0, moves_memory ? kMostRowSets : most_sets));
}

// The buffers of one set. The call's closure owns them.
struct AttentionSet {
  Buffer query, key, value, out, log_sum, out_gradient, dq, dk, dv;
};

Workload attention_workload(Backend& backend, RandomPool& pool, const AttentionPoint& point,
                            std::size_t sets) {
  const auto plan = std::shared_ptr(backend.plan_attention(point.shape, point.pieces, point.pass));
  const std::int64_t queries =
      kernels::query_rows_of(point.pieces) * point.shape.query_heads * point.shape.head_dim;
  const std::int64_t keys = kernels::key_rows_of(point.pieces) * point.shape.kv_heads * point.shape.head_dim;
  const bool backward = point.pass == kernels::Pass::backward;
  auto buffers = std::make_shared<std::vector<AttentionSet>>();
  for (std::size_t i = 0; i < sets; ++i) {
    AttentionSet set{pool.elements(queries),
                     pool.elements(keys),
                     pool.elements(keys),
                     pool.elements(queries),
                     pool.floats(queries / point.shape.head_dim),
                     {},
                     {},
                     {},
                     {}};
    if (backward) {
      set.out_gradient = pool.elements(queries);
      set.dq = pool.elements(queries);
      set.dk = pool.elements(keys);
      set.dv = pool.elements(keys);
    }
    buffers->push_back(std::move(set));
  }
  const auto forward = [&backend](kernels::AttentionPlan& with, AttentionSet& s) {
    backend.attention_forward(with, s.query.data(), s.key.data(), s.value.data(), s.out.data(),
                              s.log_sum.floats());
  };
  if (!backward) return {sets, [forward, plan, buffers](std::size_t i) { forward(*plan, (*buffers)[i]); }};
  const auto forward_plan = backend.plan_attention(point.shape, point.pieces, kernels::Pass::forward);
  for (AttentionSet& set : *buffers)
    forward(*forward_plan, set);  // the backward pass needs real outputs and statistics
  backend.synchronize();
  return {sets, [&backend, plan, buffers](std::size_t i) {
            AttentionSet& s = (*buffers)[i];
            backend.attention_backward(*plan, s.query.data(), s.key.data(), s.value.data(), s.out.data(),
                                       s.log_sum.floats(), s.out_gradient.data(),
                                       {s.dq.data(), s.dk.data(), s.dv.data()});
          }};
}

Workload gemm_workload(Backend& backend, RandomPool& pool, const GemmPoint& point, std::size_t sets) {
  struct Set {
    Buffer a, b, c;
  };
  auto buffers = std::make_shared<std::vector<Set>>();
  for (std::size_t i = 0; i < sets; ++i) {
    buffers->push_back({pool.elements(point.shape.m * point.shape.k),
                        pool.elements(point.shape.k * point.shape.n),
                        pool.elements(point.shape.m * point.shape.n)});
  }
  return {sets, [&backend, shape = point.shape, buffers](std::size_t i) {
            const Set& set = (*buffers)[i];
            backend.gemm(shape, set.a.data(), set.b.data(), set.c.data());
          }};
}

Workload copy_workload(Backend& backend, RandomPool& pool, const CopyPoint& point, std::size_t sets) {
  struct Set {
    Buffer source, target;
  };
  auto buffers = std::make_shared<std::vector<Set>>();
  const std::int64_t floats = point.bytes / 4;
  for (std::size_t i = 0; i < sets; ++i) buffers->push_back({pool.floats(floats), pool.floats(floats)});
  return {sets, [&backend, buffers, bytes = static_cast<std::size_t>(point.bytes)](std::size_t i) {
            backend.copy((*buffers)[i].target.data(), (*buffers)[i].source.data(), bytes);
          }};
}

// The tensors of one call of a row op.
class RowSets : public kernels::RowTensors {
 public:
  RowSets(Backend& backend, RandomPool& pool) : backend_(backend), pool_(pool) {}
  void next_set() { next_shared_ = 0; }

  void* elements(std::int64_t count) override { return own(pool_.elements(count)).data(); }
  float* floats(std::int64_t count) override { return own(pool_.floats(count)).floats(); }
  float* positive_floats(std::int64_t count) override { return own(pool_.positive_floats(count)).floats(); }
  const void* shared_elements(std::int64_t count) override {
    return shared([&] { return pool_.elements(count); }).data();
  }
  const float* shared_floats(const std::function<std::vector<float>()>& make) override {
    return shared([&] { return kernels::upload_f32(backend_, make()); }).floats();
  }
  const std::int32_t* shared_integers(const std::function<std::vector<std::int32_t>()>& make) override {
    return shared([&] { return kernels::upload_integers(backend_, make()); }).integers();
  }

 private:
  const Buffer& own(Buffer buffer) { return own_.emplace_back(std::move(buffer)); }
  template <class Make>
  const Buffer& shared(const Make& make) {
    if (next_shared_ == shared_.size()) shared_.push_back(make());
    return shared_[next_shared_++];
  }

  Backend& backend_;
  RandomPool& pool_;
  std::vector<Buffer> own_;
  std::vector<Buffer> shared_;
  std::size_t next_shared_ = 0;
};

Workload row_workload(Backend& backend, RandomPool& pool, const RowPoint& point, std::size_t sets) {
  const auto tensors = std::make_shared<RowSets>(backend, pool);
  std::vector<kernels::RowCall> calls;
  for (std::size_t i = 0; i < sets; ++i) {
    tensors->next_set();
    calls.push_back(kernels::row_call(point.op, {point.rows, point.columns}, *tensors));
  }
  return {sets, [tensors, calls, &backend](std::size_t i) { backend.run(calls[i]); }};
}

}  // namespace

RandomPool::RandomPool(Backend& backend, std::uint64_t seed) : backend_(backend) {
  SplitMix64 random(seed);
  std::vector<float> values = kernels::random_values(kPoolElements, 1.0F, random);
  elements_ = kernels::upload(backend, values);
  floats_ = kernels::upload_f32(backend, values);
  for (float& value : values) value = std::abs(value);
  positive_ = kernels::upload_f32(backend, values);
}

Buffer RandomPool::filled(const Buffer& pool, std::size_t bytes) {
  Buffer made(backend_, bytes);
  auto* target = static_cast<char*>(made.data());
  // Each buffer starts 4 KiB further into the pool, so that no two inputs are equal.
  const std::size_t start = (++turn_ * 4096) % (pool.bytes() / 2);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t from = done == 0 ? start : 0;
    const std::size_t part = std::min(bytes - done, pool.bytes() - from);
    backend_.copy(target + done, static_cast<const char*>(pool.data()) + from, part);
    done += part;
  }
  return made;
}

Buffer RandomPool::elements(std::int64_t count) {
  return filled(elements_, static_cast<std::size_t>(count) * kernels::bytes_of(backend_.element_type()));
}
Buffer RandomPool::floats(std::int64_t count) {
  return filled(floats_, static_cast<std::size_t>(count) * sizeof(float));
}
Buffer RandomPool::positive_floats(std::int64_t count) {
  return filled(positive_, static_cast<std::size_t>(count) * sizeof(float));
}

Workload make_workload(Backend& backend, RandomPool& pool, const Point& point, double footprint) {
  const std::size_t sets = sets_for(point, backend.element_type(), footprint);
  if (const auto* attention = std::get_if<AttentionPoint>(&point.what))
    return attention_workload(backend, pool, *attention, sets);
  if (const auto* gemm = std::get_if<GemmPoint>(&point.what))
    return gemm_workload(backend, pool, *gemm, sets);
  if (const auto* copy = std::get_if<CopyPoint>(&point.what))
    return copy_workload(backend, pool, *copy, sets);
  if (const auto* row = std::get_if<RowPoint>(&point.what)) return row_workload(backend, pool, *row, sets);
  return {1, [&backend](std::size_t) { backend.empty_op(); }};
}

TimeBatch time_batch_of(Backend& backend, const Workload& workload) {
  return [&backend, workload, issue_seconds = 0.0](std::size_t first, std::size_t count) mutable {
    constexpr double kMargin = 1.5;
    constexpr double kLeast = 3e-5;  // more than the time to issue a call
    backend.start_queued_timer(
        issue_seconds > 0 ? kMargin * issue_seconds * static_cast<double>(count) + kLeast : 0);
    for (std::size_t i = 0; i < count; ++i) workload.call((first + i) % workload.sets);
    const kernels::Elapsed elapsed = backend.stop_timer();
    issue_seconds = elapsed.cpu_seconds / static_cast<double>(count);
    return elapsed;
  };
}

}  // namespace equipoise::measure

#include "sim/step/step_simulator.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "policies/base/index.h"
#include "sim/step/barrier_groups.h"
#include "sim/step/lockstep_costs.h"
#include "sim/step/lockstep_run.h"
#include "sim/step/schedule_problems.h"

namespace equipoise {

static double pairs_of(const MicroBatch& micro_batch, Reach reach) {
  double pairs = 0;
  for (const Slice& s : micro_batch.slices) {
    const double q = static_cast<double>(s.tokens());
    const double before =
        micro_batch.chunk.count > 1 ? static_cast<double>(s.begin - micro_batch.chunk.group_begin) : 0;
    pairs += causal_pairs(q, before, reach);
  }
  return pairs;
}

// The time of one layer whose ranks wait for each other at every exchange, a float so that none wraps.
static double seconds_of(const LayerTimeline& layer) {
  const auto c = at(layer.ranks);
  double sum = 0;
  for (std::size_t p = 0; p * c < layer.local.size(); ++p)
    sum += static_cast<double>(
        *std::max_element(layer.local.begin() + static_cast<std::ptrdiff_t>(p * c),
                          layer.local.begin() + static_cast<std::ptrdiff_t>((p + 1) * c)));
  for (const Picoseconds exchange : layer.comm) sum += static_cast<double>(exchange);
  return sum / kPicosecondsPerSecond;
}

// The longest that a micro-batch can take, one layer after the other.
static double seconds_of(const MicroBatchCost& cost, const LayerCounts& layers) {
  double sum = 0;
  for (std::size_t kind = 0; kind < layers.size(); ++kind)
    if (layers[kind] > 0)
      sum += layers[kind] *
             (seconds_of(cost.forward[kind]) + seconds_of(cost.backward[kind]) + seconds_of(cost.full[kind]));
  return sum;
}

StepSimulator::StepSimulator(const LayerCosts& costs, const ShardRule& shard, const StepOptions& options,
                             const MemoryModel* memory)
    : costs_(costs),
      options_(options),
      memory_(memory),
      coster_(costs, shard),
      orders_(std::make_shared<PartOrders>(costs.model(), costs.layout())),
      engine_(orders_, costs.layout()),
      gradients_(costs) {
  options_.pairs = costs.basis.pairs_micro_batches(options.pairs);
}

void StepSimulator::cost_micro_batches(std::span<const MicroBatch> micro_batches, int context) {
  micro_batch_count_ = micro_batches.size();
  if (micro_batches_.size() < micro_batch_count_) micro_batches_.resize(micro_batch_count_);
  for (std::size_t j = 0; j < micro_batch_count_; ++j) {
    if (j > 0 && costs_alike(micro_batches[j], micro_batches[j - 1]))
      micro_batches_[j] = micro_batches_[j - 1];
    else
      coster_.cost(micro_batches[j], context, micro_batches_[j]);
  }
}

// A lane works on as many micro-batches at a time as its pipeline holds, so few costs are alive and stay in a
// cache. Nobody asks for segments later, so all share one buffer.
class StepSimulator::CostStream final : public CostSource {
 public:
  CostStream(StepSimulator& step, const Lane& lane, StepResult& result)
      : step_(step), lane_(lane), result_(result) {
    step_.in_use_.assign(lane.micro_batches.size(), nullptr);
    step_.free_.clear();
    for (MicroBatchCost& cost : step_.streamed_) step_.free_.push_back(&cost);
  }

  const MicroBatchCost& cost(std::size_t j) override {
    const MicroBatch& micro_batch = lane_.micro_batches[j];
    MicroBatchCost& cost = take();
    if (latest_ != nullptr && costs_alike(micro_batch, lane_.micro_batches[j - 1]))
      cost = *latest_;
    else
      make(micro_batch, cost);
    if (latest_is_back_) step_.free_.push_back(latest_);
    latest_is_back_ = false;
    latest_ = step_.in_use_[j] = &cost;
    step_.account_micro_batch(micro_batch, cost, result_);
    return cost;
  }
  // The latest cost stays until the next one, which may be its copy.
  void give_back(std::size_t j) override {
    if (step_.in_use_[j] == latest_)
      latest_is_back_ = true;
    else
      step_.free_.push_back(step_.in_use_[j]);
  }

 private:
  MicroBatchCost& take() {
    if (step_.free_.empty()) return step_.streamed_.emplace_back();
    MicroBatchCost& cost = *step_.free_.back();
    step_.free_.pop_back();
    return cost;
  }
  void make(const MicroBatch& micro_batch, MicroBatchCost& cost) {
    struct Lent {
      Sharding &borrower, &owner;
      Lent(Sharding& to, Sharding& from) : borrower(to), owner(from) { borrower.swap_buffers(owner); }
      Lent(const Lent&) = delete;
      Lent& operator=(const Lent&) = delete;
      ~Lent() { borrower.swap_buffers(owner); }
    } const lent(cost.sharding, step_.sharding_);
    step_.coster_.cost(micro_batch, lane_.context, cost);
  }

  StepSimulator& step_;
  const Lane& lane_;
  StepResult& result_;
  MicroBatchCost* latest_ = nullptr;
  bool latest_is_back_ = false;
};

const Schedule& StepSimulator::schedule_for(const Lane& lane) {
  const ScheduleInput input = schedule_input(lane.micro_batches, costs_.layout(), options_, group_sizes_);
  if (group_sizes_ != schedule_groups_) {
    ++schedule_number_;
    schedule_groups_.clear();  // a schedule that refuses its input leaves half of one
    options_.schedule->make_into(input, schedule_);
    assert(schedule_problems(input, schedule_).empty());
    schedule_groups_ = group_sizes_;
  }
  return schedule_;
}

void StepSimulator::begin_lane() {
  lane_seconds_ = 0;
  rank_tokens_.clear();
  gathered_tokens_.clear();
  fullest_rank_.clear();
}

void StepSimulator::account_lane(const Lane& lane, std::size_t index) {
  const auto c = at(lane.context);
  const auto stages = at(costs_.layout().pipeline);
  for (std::size_t s = 0; s < stages; ++s)
    for (std::size_t r = 0; r < c; ++r) {
      gpu_compute_.add(index, static_cast<int>(s), r, to_seconds(accounts_.compute[s * c + r]));
      gpu_attention_.add(index, static_cast<int>(s), r, to_seconds(accounts_.attention[s * c + r]));
    }
  sums_.add(accounts_, lane.context);
}

void StepSimulator::account_micro_batch(const MicroBatch& micro_batch, const MicroBatchCost& cost,
                                        StepResult& result) {
  lane_seconds_ += seconds_of(cost, costs_.layer_counts());
  if (!(lane_seconds_ < kLongestSeconds)) refuse_time("a lane", lane_seconds_);
  StepWork& work = result.work;
  work.use += cost.use;
  if (cost.ranks > 1) {
    for (const Mixer mixer : {Mixer::attention, Mixer::window, Mixer::parallel}) {
      const auto& attention = cost.attention_forward[at(mixer)];
      const double layers = costs_.basis.share_of(mixer);
      if (layers == 0) continue;
      attention_max_ += layers * to_seconds(*std::max_element(attention.begin(), attention.end()));
      attention_mean_ += layers * to_seconds(sum_of(attention)) / static_cast<double>(cost.ranks);
    }
    work.kv_sent_tokens += cost.kv_sent_tokens;
    work.kv_useful_tokens += cost.kv_useful_tokens;
    const std::int64_t local = sum_of(cost.sharding.rank_local_tokens);
    work.distributed_tokens += micro_batch.tokens() - local;
  }
  work.tokens += micro_batch.tokens();
  work.computed_tokens += sum_of(cost.sharding.rank_tokens);
  work.causal_pairs += pairs_of(micro_batch, {});
  if (const Reach reach = costs_.model().reach(); reach.window > 0)
    work.window_pairs += pairs_of(micro_batch, reach);
  Picoseconds latency = 0;
  if (!micro_batch.slices.empty()) {
    for (const PartOrders::Kind& kind : orders_->kinds())
      latency += kind.count * engine_.alone({}, kind.virtual_stage, micro_batch, cost);
    // copies of each block of layers
    latency /= orders_->virtual_stages() / costs_.layout().stage_order().blocks;
  }
  result.times.forward_latency.push_back(latency);
  if (memory_ != nullptr) count_tokens(cost, result);
}

// Counts a micro-batch's tokens on its fullest rank, and those whose K and V a rank gathers.
void StepSimulator::count_tokens(const MicroBatchCost& cost, StepResult& result) {
  const Sharding& sharding = cost.sharding;
  const auto fullest = std::max_element(sharding.rank_tokens.begin(), sharding.rank_tokens.end());
  const std::int64_t distributed = sum_of(sharding.rank_tokens) - sum_of(sharding.rank_local_tokens);
  rank_tokens_.push_back(*fullest);
  fullest_rank_.push_back(static_cast<int>(fullest - sharding.rank_tokens.begin()));
  // A group-cast knows what arrives, and so does attention that may run on any rank.
  gathered_tokens_.push_back(cost.cast_tokens > 0 || (cost.ranks == 1 && costs_.layout().evens_out_stages())
                                 ? cost.cast_tokens
                                 : memory_->gathered_tokens(sharding.ranks(), *fullest, distributed));
  result.work.bucket_broken = result.work.bucket_broken || !sharding.fits;
}

void StepSimulator::check_memory(std::span<const MicroBatch> micro_batches, int context, std::int32_t index,
                                 const Schedule& schedule, StepResult& result) {
  const LaneLoad load{micro_batches, rank_tokens_, gathered_tokens_, context,
                      costs_.framework().recompute_ahead && !options_.strict_keep};
  if (options_.record_ops) {
    if (result.work.lane_tokens.size() <= at(index)) result.work.lane_tokens.resize(at(index) + 1);
    LaneTokens& tokens = result.work.lane_tokens[at(index)];
    for (std::size_t j = 0; j < micro_batch_count_; ++j) {
      const auto& ranks = micro_batches_[j].sharding.rank_tokens;
      tokens.rank_tokens.insert(tokens.rank_tokens.end(), ranks.begin(), ranks.end());
    }
    tokens.gathered = gathered_tokens_;
    auto& peaks = result.work.stage_peaks;
    peaks.resize(at(memory_->stages()));
    for (int s = 0; s < memory_->stages(); ++s) {
      MemoryPeak peak = memory_->stage_peak(schedule, load, s);
      peak.lane = index;
      if (peak.parts.total() > peaks[at(s)].parts.total()) peaks[at(s)] = peak;
    }
  }
  MemoryPeak peak = memory_->lane_peak(schedule, load);
  if (peak.parts.total() <= result.work.peak.parts.total()) return;
  peak.lane = index;
  if (peak.micro_batch >= 0) peak.rank = fullest_rank_[at(peak.micro_batch)];
  result.work.peak = peak;
}

LaneResult StepSimulator::run_lane_at_once(const Lane& lane, std::int32_t index, Picoseconds start,
                                           StepResult& result) {
  const Schedule& schedule = schedule_for(lane);
  cost_micro_batches(lane.micro_batches, lane.context);
  const auto costs = std::span<const MicroBatchCost>(micro_batches_).first(micro_batch_count_);
  if (on_lane_ != nullptr) (*on_lane_)({at(index), lane.micro_batches, costs, schedule});
  for (std::size_t j = 0; j < costs.size(); ++j) account_micro_batch(lane.micro_batches[j], costs[j], result);
  return engine_.run(schedule, lane.micro_batches, costs, options_, start, index, accounts_,
                     options_.record_ops ? &result.times.ops : nullptr);
}

LaneResult StepSimulator::run_lane_in_a_stream(const Lane& lane, std::int32_t index, Picoseconds start,
                                               StepResult& result) {
  CostStream costs(*this, lane, result);
  const Schedule& schedule = schedule_for(lane);
  return engine_.run(schedule, schedule_number_, lane.micro_batches, at(lane.context), costs, options_, start,
                     index, accounts_);
}

void StepSimulator::run_lane(const Lane& lane, std::int32_t index, Picoseconds start, StepResult& result) {
  begin_lane();
  const bool pairs = options_.pairs || options_.schedule->bidirectional;
  const bool keeps_costs = on_lane_ != nullptr || options_.record_ops || pairs;
  result.times.lanes.push_back(keeps_costs ? run_lane_at_once(lane, index, start, result)
                                           : run_lane_in_a_stream(lane, index, start, result));
  gradients_.add_lane(engine_.grad_ready(), engine_.stage_ends());
  result.times.pipeline = std::max(result.times.pipeline, engine_.end());
  account_lane(lane, at(index));
  if (memory_ != nullptr) check_memory(lane.micro_batches, lane.context, index, schedule_for(lane), result);
}

StepResult StepSimulator::run(const Step& step, const std::function<void(const CostedLane&)>& on_lane) {
  StepResult result;
  on_lane_ = on_lane ? &on_lane : nullptr;
  lockstep_groups_ = 0;
  sums_ = {};
  attention_max_ = attention_mean_ = 0;
  gpu_compute_.begin_step(step, costs_.layout(), 1);
  gpu_attention_.begin_step(step, costs_.layout(), 1);
  gradients_.begin_step();
  if (lanes_synchronize(costs_.layout())) {
    run_in_lockstep(step, result);
    finish(result);
    return result;
  }
  run_barrier_groups(step.lanes, [&](int group, Picoseconds start) {
    for (std::size_t i = 0; i < step.lanes.size(); ++i)
      if (step.lanes[i].barrier_group == group && !step.lanes[i].micro_batches.empty())
        run_lane(step.lanes[i], static_cast<std::int32_t>(i), start, result);
    return result.times.pipeline;
  });
  finish(result);
  return result;
}

void StepSimulator::finish(StepResult& result) {
  const GradientSync::End end = gradients_.finish(result.times.pipeline);
  result.work.use += end.use;
  result.times.makespan = end.step;
  result.times.optimizer = end.optimizer;
  result.times.gradient_wait = end.step - result.times.pipeline - end.optimizer;
  if (result.times.gradient_wait < 0) result.times.gradient_wait = 0;
  result.times.losses = lane_losses(result.times.lanes, result.times.pipeline, costs_.layout());
  result.times.compute = gpu_compute_.spread();
  result.times.attention = gpu_attention_.spread();
  if (options_.record_gpus) result.times.gpu_compute = gpu_compute_.seconds();
  sums_.report_means(costs_.layout(), result.times);
  result.times.exposed_seconds[at(Stream::dp)] += to_seconds(result.times.gradient_wait);
  result.times.cp_imbalance = attention_mean_ > 0 ? attention_max_ / attention_mean_ : 1.0;
}

void StepSimulator::run_lockstep(LockstepGroup& lockstep, Picoseconds start,
                                 std::vector<LockstepMember>& members, StepResult& result) {
  std::vector<RunningLane> lanes;
  std::vector<std::vector<MicroBatchCost>> costs = cost_lockstep_group(lockstep, coster_, costs_, *orders_);
  for (std::size_t l = 0; l < lockstep.lanes.size(); ++l) {
    const LockstepLane& lane = lockstep.lanes[l];
    LockstepMember& member = members[at(lane.lane)];
    member.plan = lane;
    member.costs = std::move(costs[l]);
    member.engine = std::make_unique<LaneEngine>(orders_, costs_.layout());
    if (on_lane_ != nullptr)
      (*on_lane_)(
          {at(lane.lane), lane.micro_batches, member.costs, lane.schedule, &lockstep, lockstep_groups_});
    lanes.push_back({&member.plan, member.costs, member.engine.get(), &member.accounts});
  }
  ++lockstep_groups_;
  LockstepRun run(lockstep, lanes, gradients_, options_, options_.record_ops ? &result.times.ops : nullptr);
  const std::vector<LaneResult> done = run.run(start);
  sums_.exposed[at(Stream::dp)] += run.exposed_seconds();
  for (std::size_t l = 0; l < lanes.size(); ++l) members[at(lockstep.lanes[l].lane)].timing = done[l];
}

void StepSimulator::run_in_lockstep(const Step& step, StepResult& result) {
  run_barrier_groups(step.lanes, [&](int group, Picoseconds start) {
    std::vector<LockstepMember> members(step.lanes.size());
    for (LockstepGroup& lockstep :
         make_lockstep_groups(step, group, costs_.layout(), costs_.grid(), options_)) {
      result.work.unsynchronized_lanes = result.work.unsynchronized_lanes || lockstep.unsynchronized;
      run_lockstep(lockstep, start, members, result);
    }
    // Results are in the order of lanes, whatever lockstep groups they were in.
    for (LockstepMember& member : members)
      if (member.engine != nullptr) account_member(step, member, result);
    return result.times.pipeline;
  });
}

void StepSimulator::account_member(const Step& step, LockstepMember& member, StepResult& result) {
  const LockstepLane& plan = member.plan;
  const auto lane = at(plan.lane);
  gradients_.add_lane(member.engine->grad_ready(), member.engine->stage_ends());
  result.times.lanes.push_back(member.timing);
  result.times.pipeline = std::max(result.times.pipeline, member.engine->end());
  micro_batches_ = std::move(member.costs);
  std::swap(accounts_, member.accounts);
  begin_lane();
  for (std::size_t j = 0; j < plan.real; ++j)
    account_micro_batch(plan.micro_batches[j], micro_batches_[j], result);
  account_lane(step.lanes[lane], lane);
  if (memory_ == nullptr) return;
  micro_batch_count_ = plan.micro_batches.size();
  for (std::size_t j = plan.real; j < micro_batch_count_; ++j)
    count_tokens(micro_batches_[j], result);  // an empty micro-batch has none
  check_memory(plan.micro_batches, step.lanes[lane].context, plan.lane, plan.schedule, result);
}

}  // namespace equipoise

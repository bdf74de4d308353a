#include "sim/study/row_details.h"

#include <algorithm>
#include <map>
#include <span>

#include "policies/base/index.h"
#include "policies/plan_metrics.h"
#include "sim/study/step_runner.h"
#include "sim/study/study_result.h"
#include "sim/timeline/timeline.h"

namespace equipoise {
namespace {

constexpr std::size_t kOpsOfMicroBatch = 3;  // a micro-batch's text is as long as that of so many ops

Picoseconds seconds_of(const PolicyResult& row, int step) {
  return row.steps[at(step)].times.makespan;
}

// Full steps by time; all of them where there is no full one.
std::vector<int> steps_by_time(const PolicyResult& row) {
  const bool any_full = std::find(row.tail.begin(), row.tail.end(), char{0}) != row.tail.end();
  std::vector<int> steps;
  for (int i = 0; i < static_cast<int>(row.steps.size()); ++i)
    if (!any_full || row.tail[at(i)] == 0) steps.push_back(i);
  std::stable_sort(steps.begin(), steps.end(),
                   [&](int a, int b) { return seconds_of(row, a) < seconds_of(row, b); });
  return steps;
}

struct Choice {
  int step = 0;
  std::string why;
};

// The most telling first; a step chosen twice has both reasons.
std::vector<Choice> choose(const PolicyResult& row, const std::vector<int>& by_time) {
  std::vector<Choice> choices;
  const auto add = [&](int step, const std::string& why) {
    if (step < 0) return;
    for (Choice& known : choices)
      if (known.step == step) {
        known.why += ", " + why;
        return;
      }
    choices.push_back({step, why});
  };
  add(by_time[(by_time.size() - 1) / 2], "median time");
  add(by_time.back(), "slowest");
  add(row.peak_moment.step, "most memory");
  add(by_time.front(), "fastest");
  return choices;
}

DrawnLane draw_lane(const Lane& lane, int number, std::span<const Picoseconds> forward,
                    std::vector<StageOp> ops) {
  DrawnLane drawn;
  drawn.lane = number;
  drawn.context = lane.context;
  for (std::size_t j = 0; j < lane.micro_batches.size(); ++j) {
    const MicroBatch& micro_batch = lane.micro_batches[j];
    DrawnMicroBatch own{micro_batch.tokens(), static_cast<std::int64_t>(micro_batch.slices.size()), 0,
                        documents_text(micro_batch), j < forward.size() ? forward[j] : 0};
    for (const Slice& slice : micro_batch.slices) own.longest = std::max(own.longest, slice.tokens());
    drawn.micro_batches.push_back(std::move(own));
  }
  std::stable_sort(ops.begin(), ops.end(), [](const StageOp& a, const StageOp& b) {
    return a.stage != b.stage ? a.stage < b.stage : a.start < b.start;
  });
  for (StageOp& op : ops) op.ranks = {};  // the page draws whole stages
  drawn.ops = std::move(ops);
  return drawn;
}

// The lane that ends last, the one that ends first, the one before the last, and so on.
std::vector<int> from_both_ends(std::vector<std::pair<Picoseconds, int>> ends) {
  std::stable_sort(ends.begin(), ends.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<int> order;
  for (std::size_t i = 0; i < ends.size(); ++i)
    order.push_back(ends[i % 2 == 0 ? i / 2 : ends.size() - 1 - i / 2].second);
  return order;
}

DrawnStep draw_step(const Step& step, const Choice& choice, const StepTimes& times, std::size_t& room) {
  DrawnStep drawn{choice.step, choice.why, times.makespan, times.pipeline, 0, {}};
  std::map<int, std::vector<StageOp>> ops;
  for (const StageOp& op : times.ops) ops[op.lane].push_back(op);
  std::vector<std::size_t> first(step.lanes.size());  // of the lane's micro-batches among all of the step
  for (std::size_t l = 0, count = 0; l < step.lanes.size(); ++l) {
    first[l] = count;
    count += step.lanes[l].micro_batches.size();
  }
  std::vector<std::pair<Picoseconds, int>> ends;
  for (const auto& [lane, own] : ops)
    ends.emplace_back(std::max_element(own.begin(), own.end(),
                                       [](const StageOp& a, const StageOp& b) { return a.end < b.end; })
                          ->end,
                      lane);
  drawn.lanes_of_step = static_cast<int>(ends.size());
  constexpr std::size_t kMostLanes = 8;
  for (const int lane : from_both_ends(std::move(ends))) {
    std::vector<StageOp>& own = ops[lane];
    const std::size_t cost = own.size() + kOpsOfMicroBatch * step.lanes[at(lane)].micro_batches.size();
    if (cost > room || drawn.lanes.size() == kMostLanes) break;
    room -= cost;
    const auto forward =
        std::span(times.forward_latency).subspan(std::min(first[at(lane)], times.forward_latency.size()));
    drawn.lanes.push_back(draw_lane(step.lanes[at(lane)], lane, forward, std::move(own)));
  }
  return drawn;
}

}  // namespace

RowDetails look_closer(const Run& run, const PolicyResult& row, const ShardRule& rule,
                       const std::vector<StepResult>& recorded, std::size_t most_ops) {
  RowDetails details;
  details.tokens_by_delay = tokens_by_delay(run.documents.batches, row.plan);
  if (row.steps.empty()) return details;
  const std::vector<int> by_time = steps_by_time(row);
  details.typical_step = by_time[(by_time.size() - 1) / 2];
  std::vector<Choice> choices;
  if (run.options.steps.op.contention) {
    for (int i = 0; i < static_cast<int>(recorded.size()); ++i) choices.push_back({i, "step recorded"});
  } else {
    choices = choose(row, by_time);
  }
  StepOptions options = run.step_options();
  options.record_ops = true;
  StepRunner runner(run, rule, options);
  std::size_t room = most_ops;
  for (const Choice& choice : choices) {
    const bool is_here = at(choice.step) < recorded.size();
    const StepResult again =
        is_here ? StepResult() : runner.run(row.plan.steps[at(choice.step)], at(choice.step));
    const StepResult& result = is_here ? recorded[at(choice.step)] : again;
    if (choice.step == row.peak_moment.step || details.memory_step < 0) {
      details.memory_step = choice.step;
      details.stage_peaks = result.work.stage_peaks;
    }
    if (row.simulated())
      details.steps.push_back(draw_step(row.plan.steps[at(choice.step)], choice, result.times, room));
  }
  return details;
}

}  // namespace equipoise

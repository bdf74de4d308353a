// Short ways to write schedules in tests.
#pragma once

#include <doctest/doctest.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "sim/schedule/drawing.h"
#include "sim/schedule/schedule.h"
#include "sim/step/schedule_problems.h"
#include "sim/step/schedule_timing.h"

namespace equipoise::testing {

// A lane: how long each micro-batch's forward takes on a whole rank, and its groups of dependent chunks.
struct LaneCase {
  std::vector<double> forward;
  std::vector<std::int32_t> groups;
};

inline LaneCase standalone(std::vector<double> forward) {
  LaneCase lane{std::move(forward), {}};
  lane.groups.assign(lane.forward.size(), 1);
  return lane;
}

inline LaneCase equal(int count, double length) {
  return standalone(std::vector<double>(static_cast<std::size_t>(count), length));
}

struct Setting {
  int stages = 4;
  int virtual_stages = 1;
  int keep = 1;
  bool strict_keep = false;
  double backward_ratio = 2;
  Hops hops{};
};

inline ScheduleInput input_of(const LaneCase& lane, const Setting& setting) {
  return {setting.stages, setting.virtual_stages, lane.groups, setting.keep, setting.strict_keep};
}

// Makes, validates and times.
inline TimedSchedule run(std::string_view name, const LaneCase& lane, const Setting& setting) {
  CAPTURE(name);
  const ScheduleInput input = input_of(lane, setting);
  const Schedule schedule = schedule_policy(name).make(input);
  const std::vector<std::string> problems = schedule_problems(input, schedule);
  CAPTURE(problems.empty() ? std::string() : problems.front());
  CHECK(problems.empty());
  TimedSchedule timed =
      time_schedule(schedule, op_durations(schedule, lane.forward, setting.backward_ratio), setting.hops);
  for (std::size_t s = 0; s < schedule.kept_bound.size(); ++s)
    CHECK(timed.peak_kept[s] <= schedule.kept_bound[s]);
  return timed;
}

// "F1 D2 R2 B1", micro-batches from 1 as the papers write them.
inline std::string order(const std::vector<ScheduleOp>& ops) {
  std::string text;
  for (const ScheduleOp& op : ops) {
    if (!text.empty()) text += ' ';
    text += "FBDRW"[static_cast<std::size_t>(op.kind)] + std::to_string(op.micro_batch + 1);
  }
  return text;
}

inline std::vector<std::string> orders(std::string_view name, const LaneCase& lane, const Setting& setting) {
  std::vector<std::string> texts;
  for (const auto& ops : schedule_policy(name).make(input_of(lane, setting)).ops) texts.push_back(order(ops));
  return texts;
}

}  // namespace equipoise::testing

// `equipoise schedule`: its three formats, and the fixtures through JSON.
#include "sim/cli/command_schedule.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "policies/base/error.h"
#include "policies/plan.h"
#include "sim/schedule/schedule.h"
#include "sim/step/schedule_timing.h"

using namespace equipoise;

namespace {

std::string text_of(const ScheduleOptions& options) {
  std::ostringstream out;
  std::ostringstream notes;
  schedule_command(options, out, notes);
  return out.str();
}

nlohmann::json json_of(ScheduleOptions options) {
  options.format = Format::json;
  return nlohmann::json::parse(text_of(options));
}

}  // namespace

TEST_CASE("schedule --format json has the documented keys, whole numbers as integers") {
  // One micro-batch of 3 on one stage: F 0-3, B 3-9.
  ScheduleOptions options{.schedule = "1f1b", .stages = 1, .lengths = {3}};
  options.format = Format::json;
  CHECK(text_of(options) ==
        "{\"makespan\":9,\"bubble_ratio\":0.0,\"peak_kept\":[1],\"stages\":[["
        "{\"op\":\"F\",\"micro_batch\":0,\"virtual_stage\":0,\"start\":0,\"end\":3},"
        "{\"op\":\"B\",\"micro_batch\":0,\"virtual_stage\":0,\"start\":3,\"end\":9}]]}\n");
}

TEST_CASE("schedule --format csv lists every op with its times") {
  const ScheduleOptions options{
      .schedule = "zb-h1", .stages = 1, .lengths = {1}, .backward_ratio = 1, .format = Format::csv};
  CHECK(text_of(options) ==
        "stage,op,micro_batch,virtual_stage,start,end\n"
        "0,F,0,0,0,1\n"
        "0,B,0,0,1,1.5\n"
        "0,W,0,0,1.5,2\n");
}

TEST_CASE("Thirds and decimal ratios add up exactly") {
  // m = 3, P = 3, V = 3: (3 + 2/3)(1 + 2) = 11. Ratio 0.1 on one stage: ten times 1 + 0.1.
  const ScheduleOptions thirds{
      .schedule = "interleaved-1f1b", .stages = 3, .lengths = {1, 1, 1}, .virtual_stages = 3};
  CHECK(json_of(thirds)["makespan"] == 11);
  const ScheduleOptions tenths{
      .schedule = "1f1b", .stages = 1, .lengths = std::vector<std::int64_t>(10, 1), .backward_ratio = 0.1};
  CHECK(json_of(tenths)["makespan"] == 11);
  // Hops of 0.1: one micro-batch over three stages has four of them.
  const ScheduleOptions hops{.schedule = "1f1b", .stages = 3, .lengths = {1}, .p2p = 0.1};
  CHECK(json_of(hops)["makespan"] == 9.4);
}

TEST_CASE("The makespans of the fixture table come out of the command") {
  const auto makespan = [](std::string schedule, std::vector<std::int64_t> lengths) {
    return json_of({.schedule = std::move(schedule), .stages = 4, .lengths = std::move(lengths)})["makespan"];
  };
  CHECK(makespan("1f1b", {4, 2, 1, 1}) == 56);
  CHECK(makespan("1f1b", {4, 1, 2, 1}) == 56);
  CHECK(makespan("1f1b", {1, 1, 2, 4}) == 54);
  CHECK(makespan("gpipe", {1000, 1000, 1000, 1000}) == 21000);
}

TEST_CASE("With a chunk size lengths are documents, chunked by ChunkFlow") {
  // Documents 1, 1, 2, 4. Chunks of 2: {1,1}, {2}, halves of 4. Chunks of 4: {1,1,2}, {4}.
  const auto run = [](std::int64_t chunk_size, int keep, bool strict) {
    ScheduleOptions options{.schedule = "state-aware-1f1b", .stages = 4, .lengths = {1, 1, 2, 4}};
    options.chunk_size = chunk_size;
    options.keep = keep;
    options.strict_keep = strict;
    return json_of(options);
  };
  const auto order = [](const nlohmann::json& stage) {
    std::string text;
    for (const auto& op : stage)
      text += op["op"].get<std::string>() + std::to_string(op["micro_batch"].get<int>() + 1) + ' ';
    return text;
  };
  const nlohmann::json one = run(2, 1, false);
  CHECK(one["makespan"] == 52);
  CHECK(one["bubble_ratio"].get<double>() == doctest::Approx(1 - 24.0 / 52));
  CHECK(order(one["stages"][0]) == "F1 F2 D3 F4 B1 R3 B2 B4 B3 ");
  CHECK(order(one["stages"][3]) == "F1 B1 F2 B2 D3 F4 R3 B4 B3 ");
  CHECK(run(2, 1, true)["makespan"] == 54);
  CHECK(run(2, 2, false)["makespan"] == 46);
  CHECK(run(4, 1, false)["makespan"] == 60);
  // A document cut in two cannot run under 1f1b.
  ScheduleOptions plain{.schedule = "1f1b", .stages = 4, .lengths = {1, 1, 2, 4}, .chunk_size = 2};
  CHECK_THROWS_AS(text_of(plain), UserError);
}

TEST_CASE("With a profile the stage engine agrees with the reference executor, op by op") {
  // Equal micro-batches, so that all hops take the same time: that of the first one.
  for (const SchedulePolicy& policy : schedule_policies()) {
    if (policy.bidirectional) continue;
    CAPTURE(policy.name);
    const std::vector<std::int32_t> groups(4, 1);
    const int virtual_stages = policy.name == "interleaved-1f1b" ? 2 : 1;
    const Schedule schedule =
        policy.make({.stages = 4, .virtual_stages = virtual_stages, .group_sizes = groups});
    MicroBatch one;
    one.slices.push_back({0, 0, 8192});
    const std::vector<MicroBatch> batches(4, one);
    const TimedSchedule engine = time_by_profile(
        {.schedule = std::string(policy.name), .profile = "h100-sxm", .tensor = 2}, schedule, batches);

    OpDurations durations(4);
    for (std::size_t s = 0; s < 4; ++s)
      for (const TimedOp& op : engine.stages[s]) durations[s].push_back(op.end - op.start);
    const double hop = engine.stages[1][0].start - engine.stages[0][0].end;
    CHECK(hop > 0);
    const TimedSchedule reference = time_schedule(schedule, durations, {.time = hop});
    CHECK(reference.makespan == doctest::Approx(engine.makespan).epsilon(1e-9));
    for (std::size_t s = 0; s < 4; ++s)
      for (std::size_t i = 0; i < engine.stages[s].size(); ++i)
        CHECK(reference.stages[s][i].start == doctest::Approx(engine.stages[s][i].start).epsilon(1e-9));
    CHECK(bubble_ratio(reference) == doctest::Approx(bubble_ratio(engine)).epsilon(1e-9));
  }
}

TEST_CASE("The table shows the drawing, the numbers and the memory of each stage") {
  const std::string text = text_of({.schedule = "1f1b", .stages = 2, .lengths = {1, 1}});
  CAPTURE(text);
  for (const std::string_view part :
       {"1f1b: 2 stages, 2 micro-batches; time = length, backward = 2 x forward", "stage 1  ", "F1", "B2",
        "makespan 9   bubble ratio 33.33 %", "peak kept"})
    CHECK(text.find(part) != std::string::npos);
}

TEST_CASE("Options out of range are refused by name") {
  const auto refused = [](const ScheduleOptions& options, std::string_view name) {
    try {
      text_of(options);
      FAIL("accepted");
    } catch (const UserError& error) {
      const std::string message = error.what();
      CAPTURE(message);
      CHECK(message.find(name) != std::string::npos);
      CHECK(message.find('\n') == std::string::npos);
    }
  };
  refused({.schedule = "1f1b", .lengths = {}}, "--lengths");
  refused({.schedule = "1f1b", .lengths = {1}, .backward_ratio = -1}, "--backward-ratio");
  refused({.schedule = "1f1b", .lengths = {1}, .p2p = -1}, "--p2p");
  refused({.schedule = "1f1b", .stages = 0, .lengths = {1}}, "--stages");
  refused({.schedule = "1f1b", .lengths = {1}, .keep = 0}, "--keep");
  refused({.schedule = "1f1b", .lengths = {1}, .virtual_stages = 2}, "--virtual-stages");
  refused({.schedule = "zb-h2", .lengths = {1}}, "did you mean \"zb-h1\"?");
}

TEST_CASE("An option that changes nothing draws a note, next to the result") {
  const auto notes_of = [](const ScheduleOptions& options) {
    std::ostringstream out;
    std::ostringstream notes;
    schedule_command(options, out, notes);
    return notes.str();
  };
  CHECK(notes_of({.schedule = "1f1b", .lengths = {1, 2}}).empty());
  CHECK(notes_of({.schedule = "1f1b", .lengths = {1, 2}, .keep = 2}).find("--keep") != std::string::npos);
  CHECK(notes_of({.schedule = "state-aware-1f1b", .lengths = {1, 2}, .strict_keep = true})
            .find("--strict-keep") != std::string::npos);
  CHECK(notes_of({.schedule = "1f1b", .stages = 1, .lengths = {1, 2}, .p2p = 1}).find("--p2p") !=
        std::string::npos);
}

TEST_CASE("Lists of lengths are read with their units, and a bad item is named") {
  CHECK(parse_lengths("1,2K,3M", "--lengths") == std::vector<std::int64_t>{1, 2048, 3 * 1048576});
  CHECK(parse_lengths("2048M", "--lengths") == std::vector<std::int64_t>{std::int64_t{1} << 31});
  for (const std::string_view bad :
       {"", "1,,2", "1,", "0", "-1", "1.5", "4q", "2049M", "1,x", "99999999999999999999"})
    CHECK_THROWS_AS(parse_lengths(bad, "--lengths"), UserError);
  CHECK_THROWS_WITH(parse_lengths("1,x", "--lengths"), doctest::Contains("--lengths item 2"));
}

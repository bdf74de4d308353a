// What timelines show of memory is what the study reports as its peak, at either fidelity.
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include "sim/report/study_table.h"
#include "sim/report/summary_json.h"
#include "sim/study/run_study.h"
#include "tests/sim/study/study_case.h"
#include "tests/sim/timeline/decode.h"

using namespace equipoise;
using namespace equipoise::testing;
using namespace equipoise::pftrace;
using nlohmann::json;

namespace {

constexpr int kLayers = 4;

using Values = std::vector<std::pair<std::uint64_t, std::int64_t>>;  // nanoseconds, value

// Counters by full track name.
std::map<std::string, Values> counters_of(const fs::path& path) {
  constexpr std::uint64_t kCounter = 4;
  std::map<std::uint64_t, std::string> tracks;
  std::map<std::string, Values> counters;
  for (const Field& packet : decode(read(path))) {
    const std::vector<Field> fields = decode(packet.bytes);
    if (const Field* descriptor = find(fields, 60)) {
      const auto d = decode(descriptor->bytes);
      const Field* parent = find(d, 5);
      tracks[find(d, 1)->value] =
          (parent != nullptr ? tracks.at(parent->value) + "/" : "") + find(d, 2)->bytes;
    }
    const Field* event = find(fields, 11);
    if (event == nullptr) continue;
    const auto e = decode(event->bytes);
    if (find(e, 9)->value != kCounter) continue;
    Values& values = counters[tracks.at(find(e, 11)->value)];
    const std::uint64_t time = find(fields, 8)->value;
    if (!values.empty() && time < values.back().first) FAIL("a counter goes back in time");
    values.emplace_back(time, static_cast<std::int64_t>(find(e, 30)->value));
  }
  return counters;
}

StudyResult run_into(const fs::path& folder, const Study& study, Fidelity fidelity,
                     CounterSelection counters = {}) {
  fs::remove_all(folder);
  RunStudyOptions options;
  options.steps.fidelity = fidelity;
  options.details.directory = folder.string();
  options.details.steps = 1000;
  options.details.selection.counters = counters;
  return run_study(study, options);
}

bool is_memory(const std::string& name) {
  return name.size() > 7 && name.substr(name.size() - 7) == "/memory";
}

json study_with(int pipeline, int context) {
  json file = small_study();
  file["model"] = {{"layers", kLayers}, {"hidden", 1024}, {"heads", 8}, {"ffn", 4096}, {"vocab", 32000}};
  file["parallel"]["pipeline"] = pipeline;
  file["parallel"]["context"] = context;
  file["batch"]["steps"] = 3;
  file["policies"] = {
      {{"name", "plain"}},
      {{"name", "plain"}, {"label", "gpipe"}, {"schedule", "gpipe"}},
      {{"name", "plain"}, {"label", "split"}, {"schedule", "zb-h1"}},
      {{"name", "chunkflow"}, {"chunk_size", 4096}, {"keep", 2}},
      {{"name", "chunkflow"}, {"label", "strict"}, {"chunk_size", 2048}, {"strict_keep", true}}};
  file["baseline"] = "plain";
  return file;
}

}  // namespace

TEST_CASE("the most that any rank's counter shows is the peak that the study reports") {
  const fs::path folder = scratch("memory");
  for (const int pipeline : {1, 4})
    for (const int context : {1, 2})
      for (const Fidelity fidelity : {Fidelity::stage, Fidelity::op}) {
        CAPTURE(pipeline);
        CAPTURE(context);
        CAPTURE(static_cast<int>(fidelity));
        const StudyResult result = run_into(folder, parse(study_with(pipeline, context)), fidelity);
        for (const PolicyResult& policy : result.policies) {
          CAPTURE(policy.run.label);
          std::int64_t most = 0;
          std::size_t ranks = 0;
          for (const auto& [name, values] :
               counters_of(folder / "timeline" / (policy.run.label + ".pftrace"))) {
            if (!is_memory(name)) continue;
            ++ranks;
            for (const auto& [time, value] : values) most = std::max(most, value);
          }
          CHECK(ranks == static_cast<std::size_t>(pipeline * (fidelity == Fidelity::op ? context : 1)));
          // Per-sequence sharding gives all CP ranks equally many tokens.
          CHECK(std::abs(static_cast<double>(most) - policy.peak.parts.total()) <= 1);
        }
      }
}

TEST_CASE("the categories sum to the whole whenever one changes, and end as they began") {
  const fs::path folder = scratch("memory_parts");
  for (const Fidelity fidelity : {Fidelity::stage, Fidelity::op}) {
    run_into(folder, parse(study_with(1, 2)), fidelity);
    const auto counters = counters_of(folder / "timeline" / "chunkflow.pftrace");
    std::size_t checked = 0;
    for (const auto& [name, total] : counters) {
      if (!is_memory(name)) continue;
      // What each category shows at a moment counts after the last change there.
      for (std::size_t i = 0; i < total.size(); ++i) {
        if (i + 1 < total.size() && total[i + 1].first == total[i].first) continue;
        std::int64_t sum = 0, parts = 0;
        for (const auto& [part, values] : counters)
          if (part.rfind(name + ": ", 0) == 0) {
            const auto next =
                std::upper_bound(values.begin(), values.end(), total[i].first,
                                 [](std::uint64_t time, const auto& value) { return time < value.first; });
            if (next != values.begin()) sum += (next - 1)->second;
            ++parts;
          }
        REQUIRE(parts >= 6);
        REQUIRE(std::abs(sum - total[i].second) <= parts);
        ++checked;
      }
      CHECK(total.front().second == total.back().second);
    }
    CHECK(checked > 30);
    for (const auto& [name, values] : counters)
      if (name.find("tokens in flight") != std::string::npos) CHECK(values.back().second == 0);
  }
}

TEST_CASE("at op fidelity activations come and go layer by layer, at stage fidelity op by op") {
  const fs::path folder = scratch("memory_layers");
  json file = study_with(1, 1);
  file["batch"]["steps"] = 1;
  std::size_t changes[2] = {};
  for (const Fidelity fidelity : {Fidelity::stage, Fidelity::op}) {
    run_into(folder, parse(file), fidelity);
    for (const auto& [name, values] : counters_of(folder / "timeline" / "plain.pftrace"))
      if (name.find("memory: activations") != std::string::npos)
        changes[fidelity == Fidelity::op ? 1 : 0] = values.size();
  }
  // Four micro-batches. An op's most from its start: up at F, down after B. Layer by layer: L steps up in F;
  // in B the first layer changes nothing and the others and the end each do.
  CHECK(changes[0] == 4U * 2U);
  CHECK(changes[1] == 4U * 2U * static_cast<std::size_t>(kLayers));
}

TEST_CASE(
    "the peak is explained: at the moment that is named the timeline shows it, and its parts sum to it") {
  const fs::path folder = scratch("memory_moment");
  for (const int pipeline : {1, 4}) {
    const Study study = parse(study_with(pipeline, 2));
    const StudyResult stage = run_into(folder, study, Fidelity::stage);
    const StudyResult op = run_into(folder, study, Fidelity::op);
    const json summary = summary_json(study, op);
    for (std::size_t p = 0; p < op.policies.size(); ++p) {
      const PolicyResult& policy = op.policies[p];
      CAPTURE(policy.run.label);
      REQUIRE(policy.peak_moment.op);
      REQUIRE(stage.policies[p].peak_moment.op);
      CHECK(stage.policies[p].peak_moment.step == policy.peak_moment.step);
      CHECK(static_cast<double>(stage.policies[p].peak_moment.op->end) ==
            doctest::Approx(static_cast<double>(policy.peak_moment.op->end)).epsilon(1e-6));
      // In the trace steps follow each other.
      Picoseconds offset = 0;
      for (int i = 0; i < policy.peak_moment.step; ++i)
        offset += policy.steps[static_cast<std::size_t>(i)].times.makespan;
      const auto begin = static_cast<std::uint64_t>((offset + policy.peak_moment.op->start) / 1000);
      const auto end = static_cast<std::uint64_t>((offset + policy.peak_moment.op->end) / 1000);
      const auto counters = counters_of(folder / "timeline" / (policy.run.label + ".pftrace"));
      const std::string name = "lane " + std::to_string(policy.peak.lane) + "/stage " +
                               std::to_string(policy.peak.stage) + "/cp " + std::to_string(policy.peak.rank) +
                               "/memory";
      std::int64_t most = 0, before = 0;
      for (const auto& [time, value] : counters.at(name)) {
        if (time < begin) before = value;
        if (time >= begin && time <= end) most = std::max(most, value);
      }
      CHECK(std::abs(static_cast<double>(std::max(most, before)) - policy.peak.parts.total()) <= 1);

      const json& memory = summary["policies"][p]["memory"];
      double sum = 0;
      for (const MemoryPartName& part : kMemoryParts) sum += memory[part.key].get<double>();
      CHECK(sum == doctest::Approx(memory["peak_bytes"].get<double>()).epsilon(1e-12));
      CHECK(memory["op_start_seconds"] < memory["op_end_seconds"]);
      const std::string text = memory["explanation"];
      const std::string moment = memory["op"].get<std::string>() + std::to_string(policy.peak.micro_batch);
      CHECK(text.find("at the " + memory["at"].get<std::string>() + " of " + moment) != std::string::npos);
    }
    CHECK(study_table(study, op).find(" holds the most: ") != std::string::npos);
  }
}

TEST_CASE("counters are written as selected") {
  const fs::path folder = scratch("memory_selected");
  for (const bool memory : {false, true})
    for (const bool tokens : {false, true}) {
      run_into(folder, parse(study_with(1, 1)), Fidelity::stage, {memory, tokens});
      bool has_memory = false, has_tokens = false;
      for (const auto& [name, values] : counters_of(folder / "timeline" / "plain.pftrace")) {
        has_memory = has_memory || name.find("memory") != std::string::npos;
        has_tokens = has_tokens || name.find("tokens in flight") != std::string::npos;
      }
      CHECK(has_memory == memory);
      CHECK(has_tokens == tokens);
    }
}

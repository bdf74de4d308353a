// Any documents under any policy, sharding, schedule and layout: a study is made from bytes, and has to be
// refused in one line or to run. Then the validator has passed every plan (`verify`), both fidelities agree
// to the picosecond, and every token is in a step or was dropped.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "policies/policy.h"
#include "policies/sharding/sharding.h"
#include "sim/report/words/words.h"
#include "sim/schedule/schedule.h"
#include "sim/study/run_study.h"
#include "tests/fuzz/law.h"

using namespace equipoise;
using nlohmann::json;

namespace {

// Choices by bytes; after the last it is always the first.
class Choices {
 public:
  explicit Choices(std::string_view bytes) : bytes_(bytes) {}

  [[nodiscard]] bool left() const { return at_ < bytes_.size(); }
  std::size_t below(std::size_t count) {
    return left() ? static_cast<unsigned char>(bytes_[at_++]) % count : 0;
  }
  bool flip() { return below(2) == 1; }
  template <class List>
  auto of(const List& list) {
    return std::begin(list)[static_cast<std::ptrdiff_t>(below(std::size(list)))];
  }

 private:
  std::string_view bytes_;
  std::size_t at_ = 0;
};

constexpr int kDegrees[] = {1, 2, 4};
constexpr int kWindows[] = {512, 96, 256, 4096, 1000};
constexpr const char* kForms[] = {"all-gather", "ring", "ulysses", "group-cast", "ulysses-ring"};
constexpr const char* kRecompute[] = {"none", "selective", "full"};

struct Shape {
  int window = 0;
  int context = 1;
};

json parallel_of(Choices& choices, Shape& shape) {
  shape.context = choices.of(kDegrees);
  json parallel = {{"tensor", 1 + choices.below(2)},   {"context", shape.context},
                   {"pipeline", choices.of(kDegrees)}, {"data", 1 + choices.below(2)},
                   {"zero", choices.below(4)},         {"recompute", choices.of(kRecompute)}};
  if (shape.context > 1) parallel["context_comm"] = choices.of(kForms);
  if (parallel.value("context_comm", "") == "ulysses-ring") parallel["context_inner"] = 2;
  if (choices.below(4) == 1) parallel["virtual_pipeline"] = 2;
  return parallel;
}

// Those that search among plans take a thousand times as long as the others: one study in 128.
std::vector<const Policy*> policies_to_try(bool searching) {
  std::vector<const Policy*> found;
  for (const Policy& policy : packing_policies())
    if ((policy.name == "equipoise" || policy.name.ends_with("-solver")) == searching)
      found.push_back(&policy);
  return found;
}

// Keys of one policy are of no effect on another.
json policy_of(Choices& choices, const Shape& shape) {
  const Policy& policy = *choices.of(policies_to_try(choices.below(128) == 1));
  json entry = {{"name", policy.name}, {"verify", true}, {"order", choices.of(kOrderNames)}};
  if (choices.flip()) entry["shard"] = choices.of(sharding_policies()).name;
  if (choices.flip()) entry["schedule"] = choices.of(schedule_policies()).name;
  entry["remainder"] = choices.of(kRemainderNames);
  entry["block"] = 16;
  if (policy.hard_limit != nullptr) entry["oversize"] = choices.of(kOversizeNames);
  const auto share = [&](int most) {
    return std::max<int>(1, shape.window * static_cast<int>(1 + choices.below(16)) / most);
  };
  const auto add = [&](const char* key, const auto& value) {
    if (uses_key(policy, key) && choices.below(3) > 0) entry[key] = value;
  };
  add("bucket_size", share(8));
  add("chunk_size", share(16));
  add("keep", 1 + choices.below(3));
  add("max_tokens", share(8));
  add("pack_length", share(8));
  add("tokens_per_rank", share(16));
  add("threshold", share(32));
  add("queues", 1 + choices.below(4));
  add("slices", 1 + choices.below(4));
  add("node_limit", 5);
  add("groups",
      std::to_string(share(16)) + ":1," + std::to_string(share(4)) + ":" + std::to_string(shape.context));
  return entry;
}

// The documents are of one window at most, but of four for every seventh; again and again until there are
// enough, or so many that the study is refused.
Trace trace_of(Choices& choices, const Study& study) {
  constexpr std::size_t kFewest = 96;
  constexpr std::size_t kMost = 2000;
  Trace trace;
  const std::int64_t window = study.batch.context_window;
  do {
    const auto part = static_cast<std::int64_t>(1 + choices.below(64));
    const std::size_t kind = choices.below(7);
    trace.lengths.push_back(kind < 4 ? part
                                     : std::max<std::int64_t>(1, window * part / (kind == 6 ? 16 : 64)));
  } while (choices.left() && trace.lengths.size() < 64);
  const std::vector<std::int64_t> given = trace.lengths;
  std::int64_t missing = study.steps * study.batch.sequences_per_step * window;
  trace.lengths.clear();
  for (std::size_t i = 0; i < kFewest || (missing > 0 && i < kMost); ++i) {
    trace.lengths.push_back(given[i % given.size()]);
    missing -= trace.lengths.back();
  }
  return trace;
}

// Throws UserError where the study or its row is refused.
class EngineSubject {
 public:
  EngineSubject()
      : inputs_(load_inputs(parse_study(json::parse(R"({"trace": {"uniform": 512}, "model": "wlb-550m",
      "batch": {"steps": 1}, "policies": ["plain"]})"),
                                        "study.json"))) {}

  void run(const std::string& bytes) {
    Choices choices(bytes);
    Shape shape{choices.of(kWindows)};
    json file = {{"trace", {{"uniform", 512}}}, {"model", "wlb-550m"}};
    file["parallel"] = parallel_of(choices, shape);
    file["batch"] = {{"context_window", shape.window}, {"steps", 1 + choices.below(3)}};
    const int lanes = file["parallel"]["pipeline"].get<int>() * file["parallel"]["data"].get<int>();
    file["batch"]["sequences_per_step"] = lanes * static_cast<int>(1 + choices.below(3));
    if (choices.below(8) == 1) file["batch"]["documents_per_step"] = lanes * 3;
    if (choices.below(8) == 1) file["batch"]["micro_batch_size"] = 2;
    file["policies"] = json::array({policy_of(choices, shape)});
    const Study study = parse_study(file, "study.json");
    inputs_.trace = trace_of(choices, study);
    inputs_.documents = documents_of(study, inputs_.trace);
    RunStudyOptions options;
    options.find_fits = false;
    const StudyResult stage = run_study(study, inputs_, options);
    const PolicyResult& row = stage.policies[0];
    if (row.status != RowStatus::ok) throw UserError(reason_text(row.reasons));
    options.steps.fidelity = Fidelity::op;
    const StudyResult ops = run_study(study, inputs_, options);
    if (ops.policies[0].steps.size() != row.steps.size())
      throw std::logic_error("steps were lost: " + file.dump());
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < row.steps.size(); ++i) {
      tokens += row.steps[i].work.tokens;
      if (row.steps[i].times.makespan != ops.policies[0].steps[i].times.makespan)
        throw std::logic_error("fidelities differ at step " + std::to_string(i) + ": " + file.dump());
    }
    if (tokens > stage.tokens) throw std::logic_error("tokens were made: " + file.dump());
  }

 private:
  StudyInputs inputs_;
};

// The first strings of random bytes that make a study which runs.
std::vector<std::string> seeds_of(EngineSubject& subject) {
  std::vector<std::string> seeds;
  SplitMix64 random(31);
  while (seeds.size() < 12) {
    std::string bytes(56, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random.next());
    try {
      subject.run(bytes);
      seeds.push_back(bytes);
    } catch (const UserError&) {
    }
  }
  return seeds;
}

}  // namespace

TEST_CASE("Studies made of bytes run with sound plans at both fidelities, or are refused") {
  EngineSubject subject;
  test::check_reader(
      "engine", seeds_of(subject), [&](const std::string& bytes) { subject.run(bytes); }, 20, 400);
}

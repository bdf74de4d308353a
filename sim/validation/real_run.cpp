#include "sim/validation/real_run.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "sim/execution/communicators.h"
#include "sim/execution/dump.h"
#include "sim/execution/launch.h"
#include "sim/execution/rank_executor.h"
#include "sim/report/plan_json.h"
#include "sim/study/read/framework.h"
#include "sim/study/read/plan_file.h"
#include "sim/study/read/policy_run.h"
#include "sim/study/row/details.h"
#include "sim/study/row/pipeline.h"
#include "sim/workload/stage_layers.h"

namespace equipoise {
namespace {

RunStudyOptions quiet_options() {
  RunStudyOptions options;
  options.ignore_memory = true;  // the ranks' memory differs from that of the simulated GPUs
  options.find_fits = false;
  options.keep_plans = true;
  return options;
}

// What rank 0 decides for all ranks.
struct Decision {
  std::string reason, shard;
  nlohmann::json plan;
  std::int64_t bucket = 0;  // that dacp shards by
};

Decision decide(const ModelShape& model, RealRow& row) {
  Decision decision;
  try {
    SimulatedRow simulated = simulate_row(row.ready, quiet_options(), Until::all_steps);
    for (const StepFigures& step : simulated.ran.steps) row.use += step.work.use;
    for (const Note& note : simulated.planned.notes) row.ready.notes.push_back(note);
    row.plan = std::move(simulated.planned.plan);
    decision.shard = simulated.ran.shard;
    decision.bucket = row.ready.run.pack.bucket_size;
    const RecomputedLayers recomputed(model, row.ready.models->layout);
    decision.plan = plan_json(row.plan, nlohmann::json::object(), &recomputed);
  } catch (const UserError& e) {
    decision.reason = e.what();
  }
  return decision;
}

// Makes the same row on another rank, which derives the sizes itself and receives the plan.
void take_over(const ModelShape& model, const Decision& decision, RealRow& row) {
  StudyRow& ready = row.ready;
  derive_sizes(ready, quiet_options().ignore_memory);
  ready.run.pack.bucket_size = decision.bucket;
  ready.workload = workload_of(ready);
  const RecomputedLayers recomputed(model, ready.models->layout);
  row.plan = read_plan(decision.plan, "the plan of rank 0", "", recomputed);
}

void make_steps(const StudyInputs& inputs, const RealRowOptions& options, RealRow& row) {
  const execution::DocumentLengths documents(inputs.trace.lengths);
  for (const Step& step : row.plan.steps) {
    if (static_cast<int>(row.steps.size()) == options.steps) break;
    if (step.tail && !row.steps.empty()) continue;
    row.steps.push_back(execution::make_step(row.ready.models->costs, row.ready.rule(row.shard),
                                             row.ready.step_options(), step, documents, options.normalizer));
  }
  if (row.steps.empty()) row.reason = "its plan has no steps";
}

RealRow real_row(const Study& study, const StudyInputs& inputs, std::size_t number,
                 const RealRowOptions& options, kernels::Communicator& world) {
  PolicyRun entry = study.policies[number];
  if (entry.leaves_open()) {  // rank 0 chooses, because a solver may find another one faster the next time
    const StudyRow own(study, inputs, entry);  // it refuses the same on all ranks
    const StudyRow chosen =
        world.rank() > 0 ? own : ready_row(study, inputs, entry, trial_options(quiet_options()));
    nlohmann::json made = {{"schedule", chosen.schedule.name},
                           {"virtual_pipeline", chosen.models->layout.virtual_pipeline}};
    for (const TriedSize* const size : entry.open_sizes)
      made[std::string(size->key)] = std::get<std::int64_t>(pack_parameter(size->key)->get(chosen.run.pack));
    const nlohmann::json told = nlohmann::json::parse(broadcast(world, made.dump()));
    entry.schedule = told["schedule"].get<std::string>();
    set_virtual_pipeline(study, told["virtual_pipeline"].get<int>(), entry);
    for (const TriedSize* const size : entry.open_sizes)
      pack_parameter(size->key)->set(entry.pack, told[std::string(size->key)].get<std::int64_t>());
  }
  RealRow row{entry.label, StudyRow(study, inputs, entry), {}, {}, {}, {}};
  resolve_recompute(row.ready, trial_options(quiet_options()));
  execution::check_layout_runs(study.model, row.ready.models->layout);
  Decision decision;
  if (world.rank() == 0) decision = decide(study.model, row);
  const nlohmann::json told =
      nlohmann::json::parse(broadcast(world, nlohmann::json{{"reason", decision.reason},
                                                            {"shard", decision.shard},
                                                            {"plan", decision.plan},
                                                            {"bucket", decision.bucket}}
                                                 .dump()));
  row.reason = told["reason"].get<std::string>();
  row.shard = told["shard"].get<std::string>();
  if (!row.runs()) return row;
  if (world.rank() != 0) {
    decision.plan = told["plan"];
    decision.bucket = told["bucket"].get<std::int64_t>();
    take_over(study.model, decision, row);
  }
  try {
    make_steps(inputs, options, row);
  } catch (const UserError& e) {
    row.reason = e.what();
  }
  return row;
}

}  // namespace

std::string broadcast(kernels::Communicator& world, const std::string& text) {
  if (world.size() == 1) return text;
  // Sends the length first. Both travel as floats, bit by bit.
  const auto round_up = [](std::size_t bytes) { return (bytes + 3) / 4; };
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(world.size()));
  const std::uint64_t mine = world.rank() == 0 ? text.size() : 0;
  world.all_gather(&mine, lengths.data(), 2);
  std::vector<float> data(round_up(lengths[0]));
  const auto count = static_cast<std::int64_t>(data.size());
  if (world.rank() == 0) {
    std::memcpy(data.data(), text.data(), text.size());
    for (int r = 1; r < world.size(); ++r) world.send(data.data(), count, r);
    return text;
  }
  world.receive(data.data(), count, 0);
  return {reinterpret_cast<const char*>(data.data()), lengths[0]};
}

void use_own_ranks(Study& study) {
  study.framework = framework_of("execution");
  study.layout.reduce_each_micro_batch = false;
  study.layout.nano_batches = 1;  // ranks run one op after the other, so halves would hide nothing
}

double least_real_bytes(const Study& study, bool reference) {
  constexpr double kWeightAndGradient = 4 + 4, kMoments = 4 + 4, kReference = 8 + 8;
  const Layout& layout = study.layout;
  const double replicas = static_cast<double>(layout.data) * layout.context;
  const double of_ranks = replicas * kWeightAndGradient + (layout.zero > 0 ? 1 : replicas) * kMoments;
  return static_cast<double>(study.model.parameters()) * (of_ranks + (reference ? kReference : 0));
}

void check_real_rows(const Study& study, const StudyInputs& inputs, const std::string& policy) {
  std::vector<std::string_view> labels;
  bool any = false;
  for (const PolicyRun& entry : study.policies) {
    labels.push_back(entry.label);
    if (!policy.empty() && entry.label != policy) continue;
    any = true;
    execution::check_layout_runs(study.model, StudyRow(study, inputs, entry).models->layout);
  }
  if (!any) refuse_name("--policy", policy, labels);
}

std::vector<RealRow> real_rows(const Study& study, const StudyInputs& inputs, const RealRowOptions& options,
                               kernels::Communicator& world) {
  std::vector<RealRow> rows;
  std::vector<std::string_view> labels;
  for (std::size_t i = 0; i < study.policies.size(); ++i) {
    labels.push_back(study.policies[i].label);
    if (options.policy.empty() || study.policies[i].label == options.policy)
      rows.push_back(real_row(study, inputs, i, options, world));
  }
  if (rows.empty()) refuse_name("--policy", options.policy, labels);
  return rows;
}

namespace {

using execution::ExecutableStep;
using execution::Gathered;
using execution::RankExecutor;
using execution::RecordedOp;
using execution::StepRecord;

// The machine's CPU time by /proc/stat: all of it, and the part that a hypervisor gave to others.
struct MachineTime {
  double all = 0, stolen = 0;
};
MachineTime machine_time() {
  MachineTime time;
  std::ifstream file("/proc/stat");
  std::string line;
  if (!std::getline(file, line)) return time;
  std::istringstream fields(line.substr(std::min<std::size_t>(line.size(), 4)));
  double value = 0;
  for (int i = 0; fields >> value && i < 8; ++i) {
    time.all += value;
    if (i == 7) time.stolen = value;
  }
  return time;
}

// Sends the records of all ranks to rank 0, outside the timed part.
std::vector<StepRecord> gather(const StepRecord& mine, kernels::Communicator& world) {
  static_assert(sizeof(RecordedOp) % sizeof(float) == 0);
  const std::vector<std::int64_t> head = {mine.begin_ns, mine.end_ns, mine.cpu_ns,
                                          static_cast<std::int64_t>(mine.ops.size())};
  std::vector<std::int64_t> heads(head.size() * static_cast<std::size_t>(world.size()));
  world.all_gather(head.data(), heads.data(), static_cast<std::int64_t>(2 * head.size()));
  constexpr auto kFloats = static_cast<std::int64_t>(sizeof(RecordedOp) / sizeof(float));
  if (world.rank() != 0) {
    world.send(mine.ops.data(), kFloats * static_cast<std::int64_t>(mine.ops.size()), 0);
    return {};
  }
  std::vector<StepRecord> all;
  for (int r = 0; r < world.size(); ++r) {
    const auto* of_rank = heads.data() + head.size() * static_cast<std::size_t>(r);
    StepRecord record{of_rank[0], of_rank[1], of_rank[2], {}};
    record.ops.resize(static_cast<std::size_t>(of_rank[3]));
    if (r == 0)
      record.ops = mine.ops;
    else
      world.receive(record.ops.data(), kFloats * of_rank[3], r);
    all.push_back(std::move(record));
  }
  return all;
}

// The largest share of time that a process was not on its core. Ranks that wait for each other stay on
// theirs.
double others_share(const std::vector<StepRecord>& ranks) {
  double most = 0;
  for (const StepRecord& rank : ranks) {
    const auto wall = static_cast<double>(rank.end_ns - rank.begin_ns);
    most = std::max(most, 1 - static_cast<double>(rank.cpu_ns) / std::max(wall, 1.0));
  }
  return most;
}

// Writes what `execute --dump` has of a row's first step (see sim/execution/dump.h), on rank 0. `gathered`
// has losses and gradients of that step from the initial weights.
void dump_row(const std::string& folder, const Study& study, const RealRow& row,
              const execution::Gathered& gathered, const execution::Equivalence& equivalence,
              std::uint64_t seed) {
  const execution::Dump dump(folder);
  const std::string label = file_name(row.label);
  dump.write_config(study.model);
  const execution::ExecutableStep& step = row.steps.front();
  std::set<std::int64_t> documents;
  for (const Lane& lane : step.step.lanes)
    for (const MicroBatch& micro_batch : lane.micro_batches)
      for (const Slice& slice : micro_batch.slices) documents.insert(slice.document);
  std::vector<execution::DumpedDocument> dumped;
  for (const std::int64_t document : documents) dumped.push_back({document, step.documents.of(document)});
  dump.write_documents(dumped, seed, study.model.vocab);

  const std::vector<execution::Tensor> tensors = execution::inventory(study.model);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::vector<float> weights(static_cast<std::size_t>(tensors[t].elements()));
    execution::fill_initial(seed, tensors[t], 0, weights);
    dump.write_weights(label, tensors[t], weights);
    dump.write_gradients(label, tensors[t], gathered.gradients[t]);
  }
  Plan plan = row.plan;
  plan.steps = {step.step};
  const RecomputedLayers recomputed(study.model, row.ready.models->layout);
  dump.write_plan(label, plan_json(plan, nlohmann::json::object(), &recomputed));
  dump.write_loss(label, equivalence.loss, equivalence.tokens);
}

bool is_gpu(std::string_view device) {
  for (const kernels::BackendKind& kind : kernels::kBackends)
    if (kind.name == device) return kind.gpu;
  return false;
}

class RealRun {
 public:
  RealRun(const Study& study, const std::vector<RealRow>& rows, const RealRank& rank,
          const RealRunOptions& options)
      : study_(study), rows_(rows), rank_(rank), options_(options) {
    std::int64_t longest = 1;
    const RunModels* models = nullptr;
    for (const RealRow& row : rows)
      if (row.runs()) {
        if (models == nullptr) models = row.ready.models.get();
        for (const ExecutableStep& step : row.steps)
          longest = std::max(longest, execution::longest_attended(step));
      }
    if (models == nullptr) return;
    executor_ = std::make_unique<RankExecutor>(execution::RankSetup{
        study.model, models->layout, models->grid, rank.backend, rank.elements, rank.floats, options.seed,
        longest, rank.watchdog == nullptr ? nullptr : &rank.watchdog->progress(), true});
  }

  std::vector<RealResult> run() {
    for (const RealRow& row : rows_) results_.push_back({row.label, row.reason, {}, {}, {}});
    if (!executor_) return std::move(results_);
    if (options_.check)
      for (std::size_t i = 0; i < rows_.size(); ++i)
        if (rows_[i].runs()) check(i);
    if (options_.warm_up)
      for (std::size_t i = 0; i < rows_.size(); ++i)
        if (rows_[i].runs()) warm_up(i);
    for (int r = 0; r < options_.repetitions; ++r) round(r);
    return std::move(results_);
  }

 private:
  [[nodiscard]] bool leads() const { return rank_.floats.rank() == 0; }

  void check(std::size_t i) {
    const ExecutableStep& step = rows_[i].steps.front();
    say(i, 0);
    executor_->reset();
    StepRecord record;
    Gathered gathered = executor_->run(step, true, record);
    if (leads()) {
      if (options_.progress) options_.progress(rows_[i].label + ": checked against every slice alone");
      results_[i].equivalence = execution::check_equivalence(step, gathered, study_.model, options_.seed,
                                                             rank_.backend.element_type(), options_.threads);
      if (!options_.dump.empty())
        dump_row(options_.dump, study_, rows_[i], gathered, *results_[i].equivalence, options_.seed);
      results_[i].losses = std::move(gathered.losses);
    }
    rank_.floats.patient_barrier();  // the others wait for the reference
  }

  // On a GPU every step runs once before, because the first call of a shape tries the library's algorithms.
  void warm_up(std::size_t i) {
    const std::size_t steps = is_gpu(rank_.backend.name()) ? rows_[i].steps.size() : 1;
    for (std::size_t s = 0; s < steps; ++s) {
      say(i, static_cast<int>(s));
      StepRecord record;
      (void)executor_->run(rows_[i].steps[s], false, record);
    }
  }

  // Rows alternate, so that a temporary disturbance hits all of them.
  void round(int repetition) {
    std::size_t most = 0;
    for (const RealRow& row : rows_) most = std::max(most, row.steps.size());
    for (std::size_t s = 0; s < most; ++s)
      for (std::size_t i = 0; i < rows_.size(); ++i)
        if (rows_[i].runs() && s < rows_[i].steps.size()) time(i, s, repetition);
    if (leads() && options_.progress) options_.progress("round " + std::to_string(repetition + 1));
  }

  void time(std::size_t i, std::size_t s, int repetition) {
    say(i, static_cast<int>(s));
    StepRecord record;
    record.ops.reserve(last_ops_);
    const MachineTime before = machine_time();
    (void)executor_->run(rows_[i].steps[s], false, record);
    const MachineTime after = machine_time();
    last_ops_ = std::max(last_ops_, record.ops.size());
    std::vector<StepRecord> all = gather(record, rank_.floats);
    if (!leads()) return;
    TimedStep timed;
    timed.step = static_cast<int>(s);
    timed.repetition = repetition;
    timed.stolen = after.all > before.all ? (after.stolen - before.stolen) / (after.all - before.all) : 0;
    if (rank_.watchdog != nullptr) timed.stolen = std::max(timed.stolen, others_share(all));
    std::int64_t begin = all.front().begin_ns, end = all.front().end_ns;
    for (const StepRecord& of_rank : all) {
      begin = std::min(begin, of_rank.begin_ns);
      end = std::max(end, of_rank.end_ns);
    }
    timed.seconds = 1e-9 * static_cast<double>(end - begin);
    timed.ranks = std::move(all);
    results_[i].timed.push_back(std::move(timed));
  }

  void say(std::size_t i, int step) const {
    if (rank_.watchdog != nullptr) rank_.watchdog->doing(rows_[i].label, step);
  }

  const Study& study_;
  const std::vector<RealRow>& rows_;
  const RealRank& rank_;
  const RealRunOptions& options_;
  std::unique_ptr<RankExecutor> executor_;
  std::vector<RealResult> results_;
  std::size_t last_ops_ = 1024;
};

}  // namespace

std::vector<RealResult> run_real(const Study& study, const std::vector<RealRow>& rows, const RealRank& rank,
                                 const RealRunOptions& options) {
  return RealRun(study, rows, rank, options).run();
}

void append_rounds(std::vector<RealResult>& results, std::vector<RealResult> more) {
  if (results.empty()) {
    results = std::move(more);
    return;
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    int rounds = 0;
    for (const TimedStep& step : results[i].timed) rounds = std::max(rounds, step.repetition + 1);
    for (TimedStep& step : more[i].timed) {
      step.repetition += rounds;
      results[i].timed.push_back(std::move(step));
    }
  }
}

// --- The ranks that run a study.

namespace {

std::unique_ptr<kernels::Backend> make_backend(const std::string& device) {
  std::vector<std::string_view> names;
  for (const kernels::BackendKind& kind : kernels::kBackends) {
    names.push_back(kind.name);
    if (kind.name != device) continue;
    std::string reason;
    auto backend = kind.make(reason);
    if (!backend) throw UserError("--device ", device, ": ", reason);
    return backend;
  }
  refuse_name("--device", device, names);
}

void as_threads(int ranks, const std::string& device, bool turns,
                const std::function<void(const RealRank&)>& body) {
  kernels::Turn turn;
  kernels::run_in_process(
      ranks,
      [&](kernels::Communicator& world) {
        const auto backend = make_backend(device);
        if (!is_gpu(device)) return body({*backend, world, world, nullptr});
        const auto elements = execution::staged(world, *backend);
        body({*backend, *elements, world, nullptr});
      },
      turns ? &turn : nullptr);
}

void as_process(int ranks, const std::string& device, kernels::Communicator& world,
                execution::Watchdog& watchdog, const std::function<void(const RealRank&)>& body) {
  if (world.size() != ranks)
    throw UserError("the study has ", ranks, " ranks (tensor x context x pipeline x data), but ",
                    world.size(), " processes were started");
  const auto backend = make_backend(device);
  const auto floats = execution::watched(world, watchdog.progress());
  RealRank rank{*backend, *floats, *floats, &watchdog};
  if (!is_gpu(device)) return body(rank);
  std::string reason;
  const auto nccl =
      kernels::make_nccl_world(world, backend->element_type() == kernels::ElementType::bf16, reason);
  if (!nccl) throw UserError("--device ", device, ": ", reason);
  const auto elements = execution::watched(*nccl, watchdog.progress());
  body({*backend, *elements, *floats, &watchdog});
}

// Rank 0 reports an error that all ranks see, and its end ends all. A rank that still runs afterwards is the
// only one with its error, and reports it.
[[noreturn]] void end_unless_rank_0_does(execution::Watchdog& watchdog, const UserError& error) {
  std::this_thread::sleep_for(std::chrono::seconds(15));
  std::fprintf(stderr, "error: %s\n", error.what());
  watchdog.end_all(2);
}

}  // namespace

bool needs_launcher(int ranks, bool turns) {
  return ranks > 1 && !turns && !execution::under_launcher();
}

void on_ranks(int ranks, const std::string& device, bool turns, const execution::HealthLimits& limits,
              const std::function<void(const RealRank&)>& body) {
  if (turns || !execution::under_launcher()) return as_threads(ranks, device, turns, body);
  std::string reason;
  note_stage(execution::RankStage::in_mpi_init);
  const auto world = kernels::make_mpi_world(reason);
  if (!world) throw UserError("ranks as processes: ", reason);
  execution::Watchdog watchdog(*world, limits);
  try {
    as_process(ranks, device, *world, watchdog, body);
  } catch (const std::bad_alloc&) {
    watchdog.fail("ran out of memory");
  } catch (const UserError& e) {
    if (world->rank() == 0) throw;  // rank 0 prints, and its status is the job's
    end_unless_rank_0_does(watchdog, e);
  } catch (const std::exception& e) {
    watchdog.fail(std::string("failed: ") + e.what());
  }
}

}  // namespace equipoise

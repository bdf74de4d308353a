#include "sim/validation/real_run.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

#include "policies/base/error.h"
#include "sim/execution/make_step.h"
#include "sim/execution/rank_executor.h"
#include "sim/validation/real_dump.h"

namespace equipoise {
namespace {

using execution::ExecutableStep;
using execution::Gathered;
using execution::RankExecutor;
using execution::RecordedOp;
using execution::StepRecord;

// CPU time of the machine by /proc/stat: all of it, and what a hypervisor gave to others.
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

// Records of all ranks come to rank 0, outside of what is timed.
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

// The largest share of its time that a process was not on its core. Ranks that wait for each other stay on
// theirs.
double others_share(const std::vector<StepRecord>& ranks) {
  double most = 0;
  for (const StepRecord& rank : ranks) {
    const auto wall = static_cast<double>(rank.end_ns - rank.begin_ns);
    most = std::max(most, 1 - static_cast<double>(rank.cpu_ns) / std::max(wall, 1.0));
  }
  return most;
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

  void warm_up(std::size_t i) {
    say(i, 0);
    StepRecord record;
    (void)executor_->run(rows_[i].steps.front(), false, record);
  }

  // One after the other, so that what disturbs the machine for a while disturbs all rows.
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

}  // namespace equipoise

#include "profiler/measure/session.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <thread>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/index.h"
#include "profiler/measure/sample_file.h"
#include "profiler/measure/workload.h"

namespace equipoise::measure {
namespace {

using kernels::Backend;
using nlohmann::json;

// A family of points and its share of the time.
struct Family {
  std::string name;
  double share = 1;
  std::vector<Point> points;
  std::size_t least = 0;  // first points, measured before all others since a profile needs them
  std::size_t next = 0;   // visit
  double spent = 0;
};

// A shared machine is slower and faster in spells of seconds, so a CPU's points are visited three times with
// time in between: in blocks of 48 points, each block three times. The samples file has the fastest
// undisturbed visit, for collectives the median one (sample_file.cpp).
constexpr std::size_t kBlock = 48;
constexpr std::size_t kRounds = 3;
// Bytes of the buffer sets that a point's calls take in turn. They exceed every cache, as in a training step,
// where all other layers run between two uses of an activation.
constexpr double kFootprint = 256e6;
// The answer's quantile for collectives, which a disturbance may also make faster.
constexpr double kCollectiveQuantile = 0.5;
constexpr double kLongestWait = 0.5;  // the most seconds that a visit waits for the core's usual pace

std::size_t visits_of(const Family& family, std::size_t rounds) {
  return family.points.size() * rounds;
}

// The point and the round of visit `i`.
std::pair<std::size_t, std::size_t> visit_at(std::size_t i, std::size_t points, std::size_t rounds) {
  const std::size_t block = i / (kBlock * rounds);
  const std::size_t width = std::min(kBlock, points - block * kBlock);
  const std::size_t inside = i - block * kBlock * rounds;
  return {block * kBlock + inside % width, inside / width};
}

const kernels::BackendKind& backend_kind(const std::string& device) {
  std::string names;
  for (const kernels::BackendKind& kind : kernels::kBackends) {
    if (kind.name == device) return kind;
    names.append(names.empty() ? "" : " or ").append(kind.name);
  }
  throw UserError("--device: expected ", names, ", found '", device, "'");
}

std::unique_ptr<Backend> open_device(const kernels::BackendKind& kind) {
  std::string reason;
  std::unique_ptr<Backend> backend = kind.make(reason);
  if (backend == nullptr) throw UserError("--device ", kind.name, ": ", reason);
  return backend;
}

RulerOptions ruler_options(bool gpu) {
  RulerOptions options;
  options.cpu_time = !gpu;
  options.batch_seconds = gpu ? 4e-3 : 1e-3;
  options.budget_seconds = gpu ? 0.1 : 0.05;
  options.enough_batches = gpu ? 11 : 5;
  if (gpu) {
    // Limits a batch to few launches per call, since a stream takes about a thousand before its host must
    // wait.
    options.most_calls = 256;
    options.issue_seconds = 8e-3;
    options.clock_against_median = true;
    return options;
  }
  options.most_throttled = kMostThrottled;
  options.answer_quantile = 0.25;
  return options;
}

std::vector<Family> families_of(const SessionOptions& options, const ListOptions& lists, int ranks) {
  // Within the first points, passes of attention and roles of a GEMM take turns.
  constexpr std::size_t kFew = 2 * kLeastOfTable;
  std::vector<Family> families{
      {"launch", 0.01, launch_points(), 1},
      {"copy", 0.05, copy_points(lists), kLeastOfTable},
      {"attention", 0.45, attention_points(lists), kFew},
      {"gemm", 0.29, gemm_points(lists), kFew},
      {"elementwise", 0.2, row_points(lists), kLeastOfTable * kernels::kRowOps.size()}};
  // Under a launcher, the ranks join to measure collectives. One rank alone measures the other families best.
  if (ranks > 1) families = {{"collective", 1, collective_points(lists, ranks)}};
  if (options.families.empty()) return families;
  std::vector<Family> chosen;
  for (const std::string& name : options.families) {
    const auto it = std::ranges::find(families, name, &Family::name);
    if (it == families.end()) {
      throw UserError(
          "--only: expected attention, gemm, elementwise, copy, launch, or under mpirun collective; found '",
          name, "'", name == "collective" ? " without mpirun" : "");
    }
    chosen.push_back(*it);
  }
  return chosen;
}

bool lacks_first_points(const Family& family) {
  return family.next < std::min(family.least, family.points.size());
}

// The first family that lacks one of its first points, else the family with points left that got the smallest
// part of its share; -1: none.
int most_starved(const std::vector<Family>& families, std::size_t rounds) {
  int best = -1;
  for (std::size_t i = 0; i < families.size(); ++i)
    if (lacks_first_points(families[i])) return static_cast<int>(i);
  for (std::size_t i = 0; i < families.size(); ++i) {
    if (families[i].next >= visits_of(families[i], rounds)) continue;
    if (best < 0 ||
        families[i].spent / families[i].share < families[at(best)].spent / families[at(best)].share)
      best = static_cast<int>(i);
  }
  return best;
}

class Session {
 public:
  Session(const SessionOptions& options, std::ostream& log)
      : options_(options),
        log_(log),
        backend_(open_device(backend_kind(options.device))),
        gpu_(backend_kind(options.device).gpu),
        ruler_(ruler_options(gpu_)) {
    rounds_ = gpu_ ? 1 : kRounds;
    std::string reason;
    world_ = kernels::make_mpi_world(reason);
    if (world_ != nullptr && world_->size() == 1) world_.reset();
    if (world_ != nullptr && gpu_) {
      nccl_ = kernels::make_nccl_world(*world_, true, reason);
      if (nccl_ == nullptr) throw UserError("--device cuda under a launcher: ", reason);
    }
    context_ = {gpu_ ? "cudnn" : "cpu-blocked", gpu_ ? "bf16" : "fp32", backend_->element_type(),
                ranks_of_a_node(), gpu_ ? "clock_mhz" : kCpuPace};
    lists_ = {scale_of(backend_->name()), backend_->element_type(), options.models, options.lengths,
              options.seed};
  }

  SessionReport run(const std::atomic<bool>& stop) {
    // Refuses an unknown family or model before any measurement takes time.
    std::vector<Family> families = families_of(options_, lists_, world_ != nullptr ? world_->size() : 1);
    test_the_ruler();
    run_checks();
    exclude_failed_checks(families);
    const std::string journal_path = options_.out + ".journal";
    if (leader()) {
      journal_.emplace(journal_path, options_.resume,
                       std::string(backend_->name()) + ": " + backend_->describe().name);
      failures_.emplace(options_.out, options_.resume);
    }
    try {
      measure(families, stop);
    } catch (const std::exception&) {
      if (leader()) write(journal_path);
      throw;
    }
    if (leader()) write(journal_path);
    return report_;
  }

 private:
  [[nodiscard]] bool leader() const { return world_ == nullptr || world_->rank() == 0; }

  // The ranks on each machine. Groups are consecutive ranks, so the ranks of a machine must be consecutive.
  // Throws UserError on every rank where they are not, or where machines have different numbers of them.
  int ranks_of_a_node() {
    if (world_ == nullptr) return 1;
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    std::uint32_t color = 2166136261U;  // FNV-1a, which gives the same value on every machine
    for (const char* c = host.data(); *c != 0; ++c)
      color = (color ^ static_cast<unsigned char>(*c)) * 16777619U;
    const auto node = world_->split(static_cast<int>(color & 0x7fffffffU), world_->rank());
    const int ranks = node->size();
    const std::array<float, 2> mine{static_cast<float>(ranks),
                                    world_->rank() % ranks == node->rank() ? 0.0F : 1.0F};
    std::array<float, 2> all{};
    world_->all_reduce(mine.data(), all.data(), 2);
    float uneven = all[0] == mine[0] * static_cast<float>(world_->size()) ? 0.0F : 1.0F;
    float anywhere = 0;
    uneven += all[1];
    world_->all_reduce(&uneven, &anywhere, 1);
    if (anywhere > 0)
      throw UserError(
          "profile: expected as many ranks on every machine, one machine after the other (mpirun --map-by "
          "ppr:8:node, srun --ntasks-per-node=8 --distribution=block), found ",
          ranks, " of ", world_->size(), " on ", host.data());
    return ranks;
  }

  // Tests the ruler with work of known duration, once long enough to be timed alone and once short enough to
  // be batched.
  void test_the_ruler() {
    for (const double seconds : {2e-3, 1e-4}) {
      const RulerTest test = test_ruler(*backend_, seconds, ruler_);
      ruler_tests_.push_back(
          {{"asked_seconds", test.asked_seconds}, {"measured_seconds", test.measured_seconds}});
      report_.ruler_error =
          std::max(report_.ruler_error, std::abs(test.measured_seconds / test.asked_seconds - 1));
    }
  }

  void run_checks() {
    const std::uint64_t seed = options_.seed * 7919 + 1;
    checks_ = checks_of(*backend_, {options_.families.begin(), options_.families.end()}, seed);
    if (world_ != nullptr) {
      const auto more = kernels::check_collectives(*world_, seed);
      checks_.insert(checks_.end(), more.begin(), more.end());
    }
    report_.checks = checks_.size();
    report_.checks_passed =
        std::all_of(checks_.begin(), checks_.end(), [](const kernels::CheckResult& r) { return r.passed(); });
    for (const kernels::CheckResult& result : checks_) {
      if (result.passed()) continue;
      log_ << "check failed: " << result.op << " " << result.tensor << " on " << result.shape << ": error "
           << result.error << ", limit " << result.limit << "\n";
    }
    if (const kernels::CheckResult* worst = worst_of(checks_))
      report_.worst_check = worst->op + " " + worst->tensor + " on " + worst->shape;
    if (leader() && !options_.quiet) {
      log_ << report_.checks << " kernel checks " << (report_.checks_passed ? "passed" : "done, some failed")
           << "; the ruler is off by " << 100 * report_.ruler_error << " %\n";
    }
  }

  void exclude_failed_checks(std::vector<Family>& families) {
    std::set<std::string> failed;
    for (const kernels::CheckResult& result : checks_)
      if (!result.passed()) failed.insert(result.op);
    if (failed.empty()) return;
    const auto wrong = [&](const Point& point) {
      const std::vector<std::string> ops = checked_ops(point);
      return std::any_of(ops.begin(), ops.end(), [&](const std::string& op) { return failed.count(op) > 0; });
    };
    for (Family& family : families) {
      const std::size_t before = family.points.size();
      family.points.erase(std::remove_if(family.points.begin(), family.points.end(), wrong),
                          family.points.end());
      report_.skipped += before - family.points.size();
    }
  }

  void measure(std::vector<Family>& families, const std::atomic<bool>& stop) {
    for (Family& family : families) report_.planned += visits_of(family, rounds_);
    start_ = kernels::wall_seconds();
    const double end = start_ + 60 * options_.minutes;
    double last_note = kernels::wall_seconds();
    while (true) {
      const int chosen = most_starved(families, rounds_);
      // Points that every profile needs are measured however slow the machine is; they take at most a minute.
      const bool needed = chosen >= 0 && options_.minutes > 0 && lacks_first_points(families[at(chosen)]);
      bool go_on = chosen >= 0 && !stop && (needed || kernels::wall_seconds() < end);
      if (options_.most_points > 0 && report_.measured >= options_.most_points) go_on = false;
      if (!agreed(go_on)) break;
      Family& family = families[at(chosen)];
      const auto [index, round] = visit_at(family.next++, family.points.size(), rounds_);
      const Point& point = family.points[index];
      const std::string key = key_of(point) + (round > 0 ? " again " + std::to_string(round) : "");
      if (agreed(leader() && (journal_->has(key) || failures_->has(key_of(point))))) continue;
      const double start = kernels::wall_seconds();
      measure_point(point, key);
      family.spent += kernels::wall_seconds() - start;
      if (leader() && !options_.quiet && kernels::wall_seconds() - last_note > 10) {
        last_note = kernels::wall_seconds();
        log_ << report_.measured << " samples, "
             << static_cast<int>(std::max(0.0, end - kernels::wall_seconds())) << " s left\n"
             << std::flush;
      }
    }
  }

  // Rank 0 decides, since all ranks must take the same branch.
  bool agreed(bool mine) {
    if (world_ == nullptr) return mine;
    const float word = leader() && mine ? 1.0F : 0.0F;
    float all = 0;
    world_->all_reduce(&word, &all, 1);
    return all > 0;
  }

  void measure_point(const Point& point, const std::string& key) {
    Measurement measured;
    if (const auto* collective = std::get_if<CollectivePoint>(&point.what)) {
      if (!measure_group(*collective, measured)) return;
    } else {
      if (gpu_) failures_->begin(key_of(point));
      const std::string failure = failure_to_measure(point, measured);
      if (gpu_) failures_->end();
      if (!failure.empty()) return;
    }
    report_.measured += 1;
    report_.stolen_batches += static_cast<std::size_t>(measured.stolen);
    report_.throttled_batches += static_cast<std::size_t>(measured.throttled);
    report_.disturbed_samples += measured.disturbed ? 1 : 0;
    if (leader()) journal_->add(sample_line(point, measured, context_, key));
  }

  // Waiting for a CPU's slow spells to end takes at most a quarter of the run.
  void be_patient() {
    if (gpu_) return;
    ruler_.usual_pace = paces_.usual();
    ruler_.patience_seconds =
        std::clamp(0.25 * (kernels::wall_seconds() - start_) - waited_, 0.0, kLongestWait);
  }

  // The reason why the point has no measurement; empty where it has one.
  std::string failure_to_measure(const Point& point, Measurement& measured) {
    std::string reason;
    try {
      const Workload workload = make_workload(*backend_, pool_, point, kFootprint);
      be_patient();
      measured = measure_call(
          time_batch_of(*backend_, workload), [this] { return backend_->pace(); }, ruler_);
      waited_ += measured.waited_seconds;
      for (const double pace : measured.paces) paces_.add(pace);
    } catch (const std::bad_alloc&) {
      reason = "not enough device memory";
    } catch (const std::exception& e) {
      reason = e.what();
    }
    if (reason.empty()) return reason;
    const std::string name = key_of(point);
    log_ << "skipped, " << reason.substr(0, 300) << ": " << name.substr(0, 200) << "\n" << std::flush;
    failures_->add(name, reason);
    report_.failed += 1;
    try {
      backend_->synchronize();
    } catch (const std::exception& e) {
      failures_->end();
      throw std::runtime_error("the device stopped working (" + std::string(e.what()) +
                               "); --resume goes on after the point that did it");
    }
    return reason;
  }

  // The first `ranks` ranks measure and the others wait. Returns whether this rank measured.
  bool measure_group(const CollectivePoint& point, Measurement& measured) {
    const bool member = world_->rank() < point.ranks;
    const auto host = world_->split(member ? 0 : 1, world_->rank());
    const auto data = nccl_ != nullptr ? nccl_->split(member ? 0 : 1, world_->rank()) : nullptr;
    if (member) {
      RulerOptions ruler = ruler_;
      ruler.answer_quantile = kCollectiveQuantile;
      const bool one_clock = !gpu_ && point.ranks <= context_.ranks_per_node;
      measured = measure_collective(*host, data != nullptr ? *data : *host, *backend_, pool_, point, ruler,
                                    one_clock, kFootprint);
    }
    world_->barrier();
    return member;
  }

  void write(const std::string& journal_path) {
    json samples = samples_of_journal(journal_path);
    json file = {{"schema", "equipoise.samples/1"}};
    file["device"] = device_facts(samples);
    samples.erase("launch");
    const kernels::DeviceDescription device = backend_->describe();
    file["software"] = device.libraries;
    file["checks"] = checks_json(checks_, options_.resume ? options_.out : "");
    for (const auto& item : samples.items()) report_.finished += item.value().size();
    file["run"] = {{"minutes", options_.minutes},
                   {"seed", options_.seed},
                   {"packed_lengths", options_.lengths_origin},
                   {"points_planned", report_.planned},
                   {"points_measured", report_.measured},
                   {"batches_dropped_as_stolen", report_.stolen_batches},
                   {"batches_dropped_as_throttled", report_.throttled_batches},
                   {"seconds_waited", waited_},
                   {"samples_disturbed", report_.disturbed_samples},
                   {"ruler_tests", ruler_tests_},
                   {"seconds_are", gpu_ ? "device time between events"
                                        : "CPU time of the thread; wall_seconds in addition"}};
    file["samples"] = std::move(samples);
    forget_input(options_.out);
    write_file_atomically(options_.out, file.dump(1) + "\n");
  }

  // The facts of the device that samples tell. A recipe may give `fit` better ones.
  json device_facts(const json& samples) {
    const kernels::DeviceDescription device = backend_->describe();
    double copy_GBps = 0;
    double largest_copy = 0;  // of the largest copy, since smaller ones may run from the cache
    for (const json& sample : samples.at("elementwise")) {
      const double bytes = sample.at("bytes").get<double>();
      if (sample.at("op") != "copy" || bytes < largest_copy) continue;
      largest_copy = bytes;
      copy_GBps = 1e-9 * bytes / sample.at("seconds").get<double>();
    }
    double gemm_tflops = 0;
    for (const json& sample : samples.at("gemm")) {
      const double flops =
          2.0 * sample.at("m").get<double>() * sample.at("n").get<double>() * sample.at("k").get<double>();
      gemm_tflops = std::max(gemm_tflops, 1e-12 * flops / sample.at("seconds").get<double>());
    }
    const json launch = samples.value("launch", json::object());
    const double peak = device.peak_tflops > 0 ? device.peak_tflops : gemm_tflops;
    json facts = {
        {"name", device.name},
        {"memory_bytes", device.memory_bytes},
        {"memory_GBps", copy_GBps},
        {"peak_bf16_tflops", peak},
        {"peak_fp8_tflops", gpu_ ? 2 * peak : 0},
        {"sms", device.compute_units},
        {"gpus_per_node",
         gpu_ ? device.devices : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))},
        {"nvlink_GBps", 0},
        {"nic_GBps", 0},
        {"launch_seconds", launch.value("seconds", 0.0)},
        {"reserve_bytes", 0},
        {"element_bytes", static_cast<int>(kernels::bytes_of(context_.type))},
        {"sources",
         gpu_ ? "memory_GBps, launch_seconds: measured; peak: SMs x clock x 4096 FLOP"
              : "measured; peak_bf16_tflops is the best f32 GEMM of one core: one rank is one thread"}};
    // The host's time per launch in a framework is not measured here, since kernels are launched from C++.
    if (!gpu_) facts["seconds_per_launch"] = 0;  // a CPU's kernels are function calls
    return facts;
  }

  const SessionOptions& options_;
  std::ostream& log_;
  std::unique_ptr<Backend> backend_;
  bool gpu_;
  std::size_t rounds_ = 1;
  RulerOptions ruler_;
  RandomPool pool_{*backend_, 12345};
  std::unique_ptr<kernels::Communicator> world_;
  std::unique_ptr<kernels::Communicator> nccl_;
  SampleContext context_;
  ListOptions lists_;
  std::optional<Journal> journal_;
  std::optional<Failures> failures_;
  std::vector<kernels::CheckResult> checks_;
  json ruler_tests_ = json::array();
  PaceLog paces_;
  double start_ = 0;   // when measuring began
  double waited_ = 0;  // seconds spent waiting for the usual pace since then
  SessionReport report_;
};

}  // namespace

SessionReport run_session(const SessionOptions& options, std::ostream& log, const std::atomic<bool>& stop) {
  return Session(options, log).run(stop);
}

}  // namespace equipoise::measure

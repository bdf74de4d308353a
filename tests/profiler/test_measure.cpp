// The ruler against a scripted clock, the order and the bookkeeping of points, and one short real run.
#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "kernels/checks.h"
#include "kernels/ops.h"
#include "policies/base/error.h"
#include "policies/base/random.h"
#include "profiler/measure/points.h"
#include "profiler/measure/ruler.h"
#include "profiler/measure/sample_file.h"
#include "profiler/measure/session.h"
#include "profiler/measure/workload.h"

using namespace equipoise;
using namespace equipoise::measure;
using kernels::Elapsed;

namespace {

// A device whose every call takes `seconds`, but for what the script says of single batches.
struct ScriptedDevice {
  double seconds = 1e-4;
  std::vector<Elapsed> factors;  // of (seconds, cpu_seconds), by timed batch after the warm-up; then 1
  std::size_t batches = 0;

  Elapsed operator()(std::size_t, std::size_t calls) {
    const double base = seconds * static_cast<double>(calls);
    if (base < 1e-3) return {base, base};  // still warming up
    const std::size_t at = batches++;
    if (at == 0 || at - 1 >= factors.size()) return {base, base};
    return {base * factors[at - 1].seconds, base * factors[at - 1].cpu_seconds};
  }
};

const auto kSteadyClock = [] { return 2000.0; };

std::string temporary(const std::string& name) {
  return (std::filesystem::temp_directory_path() / (name + "." + std::to_string(::getpid()))).string();
}

}  // namespace

TEST_CASE("the ruler batches short calls and reports one call") {
  ScriptedDevice device;
  const Measurement m = measure_call(std::ref(device), kSteadyClock, {});
  CHECK(m.seconds == doctest::Approx(1e-4));
  CHECK(m.calls_per_batch >= 10);  // 10 x 0.1 ms = the 1 ms a batch must last
  CHECK(m.kept == 9);
  CHECK(m.spread == doctest::Approx(0).epsilon(1e-9));
  CHECK_FALSE(m.disturbed);
}

TEST_CASE("batches during which others had the processor are dropped and counted") {
  // Batches 1, 2 and 4 took 3x the wall time and, with cold caches, 1.2x the CPU time.
  ScriptedDevice device;
  device.factors = {{3, 1.2}, {3, 1.2}, {1, 1}, {3, 1.2}};
  RulerOptions options;
  options.cpu_time = true;
  const Measurement m = measure_call(std::ref(device), kSteadyClock, options);
  CHECK(m.stolen == 3);
  CHECK(m.kept == 9);
  CHECK(m.seconds == doctest::Approx(1e-4));
  CHECK(m.wall_seconds == doctest::Approx(1e-4));
}

TEST_CASE("when no batch is clean, CPU time of all is used and the sample says so") {
  ScriptedDevice device;
  device.factors.assign(100, {2, 1});
  RulerOptions options;
  options.cpu_time = true;
  options.most_batches = 12;
  options.budget_seconds = 10;
  const Measurement m = measure_call(std::ref(device), kSteadyClock, options);
  CHECK(m.disturbed);
  CHECK(m.stolen == 12);
  CHECK(m.kept == 12);
  CHECK(m.seconds == doctest::Approx(1e-4));
  CHECK(m.wall_seconds == doctest::Approx(2e-4));
}

TEST_CASE("batches at a lowered clock are dropped and counted") {
  // The clock falls from 2000 to 1800 MHz for batches 3 and 4, which take 2000 / 1800 times as long.
  ScriptedDevice device;
  device.factors = {{1, 1}, {1, 1}, {1.11, 1.11}, {1.11, 1.11}};
  int reads = 0;
  const Measurement m =
      measure_call(std::ref(device),
                   [&] {
                     ++reads;
                     return reads == 5 || reads == 8 ? 1800.0 : 2000.0;  // before the third, after the fourth
                   },
                   {});
  CHECK(m.throttled == 2);
  CHECK(m.kept == 7);
  CHECK(m.pace == 2000.0);
  CHECK(m.seconds == doctest::Approx(1e-4));
}

TEST_CASE(
    "a GPU's batch that waited for its host is dropped, and a first call that loaded its code is not "
    "counted") {
  // Calls of 0.1 ms that take the host 0.3 ms each to issue; the first needs a second. Batches 2 and 3 ran
  // dry.
  int batches = 0;
  const TimeBatch device = [&](std::size_t, std::size_t calls) {
    ++batches;
    const auto count = static_cast<double>(calls);
    if (batches == 1) return Elapsed{1.0, 1.0, true};
    const bool dry = batches == 7 || batches == 8;
    return Elapsed{(dry ? 3e-4 : 1e-4) * count, 3e-4 * count, dry};
  };
  RulerOptions options;
  options.issue_seconds = 8e-3;
  options.most_calls = 256;
  const Measurement m = measure_call(device, kSteadyClock, options);
  CHECK(m.calls_per_batch >= 10);  // the 1 ms that a batch must last
  CHECK(m.calls_per_batch <= 27);  // 8 ms of issuing
  CHECK(m.stolen == 2);
  CHECK(m.seconds == doctest::Approx(1e-4));
  CHECK_FALSE(m.disturbed);
  // Calls of 1 us at the same 0.3 ms: a batch is never full, and still no more than 8 ms are issued at once.
  std::size_t most_issued = 0;
  const TimeBatch tiny = [&](std::size_t, std::size_t calls) {
    most_issued = std::max(most_issued, calls);
    return Elapsed{1e-6 * static_cast<double>(calls), 3e-4 * static_cast<double>(calls), false};
  };
  CHECK(measure_call(tiny, kSteadyClock, options).calls_per_batch == 26);  // 8 ms / 0.3 ms
  CHECK(most_issued == 26);
  options.most_calls = 5;
  batches = 100;
  CHECK(measure_call(device, kSteadyClock, options).calls_per_batch == 5);
}

TEST_CASE("a GPU that long products hold below its peak clock is measured at the clock that it keeps") {
  // Two batches at 1980 MHz, all others at 1700 MHz and 1980 / 1700 of the time; one at 1500 is a throttled
  // one.
  ScriptedDevice device;
  device.factors.assign(100, {1.1647, 1.1647});
  device.factors[0] = device.factors[1] = {1, 1};
  int reads = 0;
  const auto clock = [&] {
    ++reads;
    return reads <= 2 ? 1980.0 : reads == 5 ? 1500.0 : 1700.0;
  };
  RulerOptions options;
  options.clock_against_median = true;
  const Measurement m = measure_call(std::ref(device), clock, options);
  CHECK(m.throttled == 1);
  CHECK_FALSE(m.disturbed);
  CHECK(m.pace == 1700.0);
  CHECK(m.seconds == doctest::Approx(1.1647e-4));
}

TEST_CASE("points that fail are gone round by a resumed run, and so is one that ended the program") {
  const std::string out = temporary("equipoise_failures");
  {
    Failures failures(out, false);
    failures.add("attention forward 64/1/1 5:5", "no engine\nfor this");
    failures.begin("gemm 1x1x1NN");
    failures.end();
    failures.begin("gemm 2x2x2NN");  // and no end: the program died
  }
  const Failures resumed(out, true);
  CHECK(resumed.size() == 2);
  CHECK(resumed.has("attention forward 64/1/1 5:5"));
  CHECK(resumed.has("gemm 2x2x2NN"));
  CHECK_FALSE(resumed.has("gemm 1x1x1NN"));
  CHECK(Failures(out, true).size() == 2);                           // read again from the file alone
  { std::ofstream(out + ".failed", std::ios::app) << "gemm 3x3"; }  // as after a power cut
  Failures(out, true).add("gemm 4x4x4NN", "no engine");
  CHECK(Failures(out, true).has("gemm 4x4x4NN"));
  CHECK(Failures(out, true).size() == 3);
  CHECK(Failures(out, false).size() == 0);
  CHECK_FALSE(std::filesystem::exists(out + ".failed"));
}

TEST_CASE("every point names the checks that it depends on, as the checkers call them") {
  const auto backend = kernels::make_cpu_backend();
  std::set<std::string> checked{"attention", "gemm", "elementwise", "copy", "launch", "collective"};
  for (auto check : {kernels::check_attention, kernels::check_gemm, kernels::check_rows})
    for (const kernels::CheckResult& result : check(*backend, 3)) checked.insert(result.op);
  ListOptions options;
  options.scale = scale_of("cpu");
  for (const auto& points : {attention_points(options), gemm_points(options), row_points(options)}) {
    for (const Point& point : points) {
      const std::vector<std::string> ops = checked_ops(point);
      CHECK(ops.size() >= (family_of(point) == "gemm" ? 1U : 2U));
      for (const std::string& op : ops) CHECK_MESSAGE(checked.count(op) == 1, op);
    }
  }
  AttentionPoint backward;
  backward.pass = kernels::Pass::backward;
  CHECK(checked_ops({backward, {}}) ==
        std::vector<std::string>{"attention", "attention_forward", "attention_backward"});
}

TEST_CASE("a point visited several times is told by its fastest undisturbed visit") {
  // Usual pace 100 (the lone reading of 101 is no twentieth of the 21): the visit of 1 ms was disturbed, the
  // one of 2 ms had the core at 90 of 100, so 3 ms it is. The second point has disturbed visits only.
  const std::string path = temporary("equipoise_visits");
  SampleContext context;
  context.pace_name = kCpuPace;
  {
    Journal journal(path, false, "cpu: test");
    int key = 0;
    const auto visit = [&](std::int64_t bytes, double seconds, double pace, bool disturbed) {
      Measurement m;
      m.seconds = seconds;
      m.pace = pace;
      m.disturbed = disturbed;
      journal.add(sample_line({CopyPoint{bytes}, {}}, m, context, "visit " + std::to_string(key++)));
    };
    visit(4096, 4e-3, 101, false);
    visit(4096, 1e-3, 100, true);
    visit(4096, 3e-3, 98, false);
    visit(4096, 2e-3, 90, false);
    for (const double seconds : {7e-3, 5e-3, 6e-3}) visit(8192, seconds, 100, true);
    for (int i = 0; i < 14; ++i) visit(1 << 20, 1, 100, false);
  }
  const auto samples = samples_of_journal(path).at("elementwise");
  REQUIRE(samples.size() == 3);  // in the order of their names: 1048576, 4096, 8192 bytes
  CHECK(samples[1].at("seconds").get<double>() == 3e-3);
  CHECK(samples[1].at("visits_seconds").get<std::vector<double>>() ==
        std::vector<double>{4e-3, 1e-3, 3e-3, 2e-3});
  CHECK(samples[2].at("seconds").get<double>() == 5e-3);
  std::filesystem::remove(path);
}

TEST_CASE("a journal goes on with its own device's samples only") {
  const std::string path = temporary("equipoise_journal");
  const SampleContext context;
  const auto line = [&](const char* key) {
    return sample_line({CopyPoint{4096}, {}}, Measurement{}, context, key);
  };
  const auto text = [&] {
    std::ifstream in(path);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  { Journal(path, false, "cpu: A").add(line("one")); }
  const std::string one = text();
  { std::ofstream(path, std::ios::app) << "{\"key\": \"tw"; }  // as after a power cut
  {
    Journal again(path, true, "cpu: A");
    CHECK(again.has("one"));
    CHECK(again.size() == 1);
    CHECK(text() == one);
    again.add(line("two"));
  }
  const std::string two = text();
  CHECK(two.size() > one.size());
  CHECK(two.substr(0, one.size()) == one);
  CHECK_THROWS_WITH_AS(
      Journal(path, true, "cuda: B"),
      (path + ":1: found a sample of cpu: A, expected one of this run's cuda: B; give another "
              "--out, or start again without --resume")
          .c_str(),
      UserError);
  CHECK(text() == two);  // nothing of it is lost
  { std::ofstream(path, std::ios::app) << "{\"key\": 3}\n" << one; }
  CHECK_THROWS_AS(Journal(path, true, "cpu: A"), UserError);
  std::filesystem::remove(path);
}

TEST_CASE("the usual pace is the one that a twentieth of the readings reach") {
  PaceLog log;
  CHECK(log.usual() == 0);
  for (int i = 0; i < 90; ++i) log.add(70);
  for (int i = 0; i < 9; ++i) log.add(100);
  log.add(150);  // 1 of 100: no twentieth; with the nine at 100 ten are
  log.add(0);    // unknown: no reading
  CHECK(log.usual() == doctest::Approx(100).epsilon(0.005));
  for (int i = 0; i < 200; ++i) log.add(70);  // now 10 of 300 are above
  CHECK(log.usual() == doctest::Approx(70).epsilon(0.005));
}

TEST_CASE("batches below the usual pace are dropped and counted, after waiting for it") {
  // Two paces a batch, before and after. The core runs at 80 of its usual 100 during batches 1 and 2, of
  // which 1.25x come out; the third reading of each batch's wait finds it at 100 again in front of batches 3
  // and on.
  ScriptedDevice device;
  device.factors = {{1.25, 1.25}, {1.25, 1.25}};
  RulerOptions options;
  options.cpu_time = true;
  options.most_throttled = 0.06;
  options.usual_pace = 100;
  int reads = 0;
  const Measurement hasty = measure_call(
      std::ref(device), [&] { return ++reads <= 4 ? 80.0 : 100.0; }, options);
  CHECK(hasty.throttled == 2);
  CHECK(hasty.kept == 9);
  CHECK(hasty.waited_seconds == 0);
  CHECK(hasty.seconds == doctest::Approx(1e-4));
  CHECK(hasty.pace == 100);
  // With patience nothing is measured before the pace is back.
  device = {};
  options.patience_seconds = 60;
  reads = 0;
  const Measurement patient = measure_call(
      std::ref(device), [&] { return ++reads <= 4 ? 80.0 : 100.0; }, options);
  CHECK(reads == 4 + 2 * 9);
  CHECK(patient.throttled == 0);
  CHECK(patient.kept == 9);
  CHECK(patient.waited_seconds >= 4e-3);  // four sleeps of a millisecond
}

TEST_CASE("a core that is never left alone is measured all the same, and the sample says so") {
  ScriptedDevice device;
  RulerOptions options;
  options.usual_pace = 100;
  options.most_batches = 12;
  options.budget_seconds = 10;
  const Measurement m = measure_call(
      std::ref(device), [] { return 60.0; }, options);
  CHECK(m.disturbed);
  CHECK(m.throttled == 12);
  CHECK(m.kept == 12);
  CHECK(m.seconds == doctest::Approx(1e-4));
}

TEST_CASE("on a shared core the answer is the lower quartile") {
  // Nine batches: three at 1x, six at 1.3x. The median is 1.3, the lower quartile (the third of nine) 1.
  ScriptedDevice device;
  device.factors = {{1.3, 1.3}, {1, 1}, {1.3, 1.3}, {1.3, 1.3}, {1, 1}, {1.3, 1.3}, {1.3, 1.3}, {1.3, 1.3}};
  RulerOptions options;
  options.answer_quantile = 0.25;
  CHECK(measure_call(std::ref(device), kSteadyClock, options).seconds == doctest::Approx(1e-4));
}

TEST_CASE("the median and the quartiles survive outliers") {
  // Nine batches: six at 1x and 1.0, 1.2, 5.0 as factors. Sorted: 1 x7, 1.2, 5. Median 1, quartiles 1 and 1.
  ScriptedDevice device;
  device.factors = {{1, 1}, {5, 5}, {1, 1}, {1.2, 1.2}};
  const Measurement m = measure_call(std::ref(device), kSteadyClock, {});
  CHECK(m.seconds == doctest::Approx(1e-4));
  CHECK(m.spread == doctest::Approx(0));
}

TEST_CASE("the ruler measures work of known duration, whatever else runs on the machine") {
  // The work spins until the thread's own CPU clock has advanced, so stealing cannot lengthen it.
  const auto backend = kernels::make_cpu_backend();
  RulerOptions options;
  options.cpu_time = true;
  const RulerTest test = test_ruler(*backend, 2e-3, options);
  CHECK(test.measured_seconds >= 2e-3);
  CHECK(test.measured_seconds < 2.1e-3);
}

TEST_CASE("the first points of a list span its range") {
  // Points at 0, 1, ..., 8 on a line, starting at 0: the farthest is 8, then the middle, 4, then 2 and 6.
  std::vector<Point> points;
  for (int i = 0; i <= 8; ++i) points.push_back({CopyPoint{i}, {static_cast<double>(i)}});
  points = most_informative_first(points);
  std::vector<std::int64_t> order;
  for (const Point& point : points) order.push_back(std::get<CopyPoint>(point.what).bytes);
  CHECK(std::vector<std::int64_t>(order.begin(), order.begin() + 5) ==
        std::vector<std::int64_t>{0, 8, 4, 2, 6});
  CHECK(std::set<std::int64_t>(order.begin(), order.end()).size() == 9);
}

TEST_CASE("point lists hold valid, distinct points that fit the device, the same for the same seed") {
  for (const std::string device : {"cpu", "cuda"}) {
    CAPTURE(device);
    ListOptions options;
    options.scale = scale_of(device);
    options.type = device == "cpu" ? kernels::ElementType::f32 : kernels::ElementType::bf16;
    options.lengths = {17, 300, 5, 1200, 80, 9000};
    options.seed = 3;
    std::vector<Point> all = attention_points(options);
    CHECK(all.size() > 300);
    std::size_t packed = 0;
    for (const Point& point : all) {
      const auto& attention = std::get<AttentionPoint>(point.what);
      kernels::validate_attention(attention.shape, attention.pieces);
      packed += attention.pieces.size() > 1 ? 1U : 0U;
    }
    CHECK(packed > 50);
    for (const auto& more :
         {gemm_points(options), row_points(options), copy_points(options), collective_points(options, 8)}) {
      CHECK(more.size() > 10);
      all.insert(all.end(), more.begin(), more.end());
    }
    std::set<std::string> keys;
    for (const Point& point : all) {
      keys.insert(key_of(point));
      CHECK(flops_of(point) <= options.scale.most_flops);
      CHECK(bytes_of(point, options.type) <= options.scale.most_bytes);
    }
    CHECK(keys.size() == all.size());
    // The ten that have published rates (five lengths, two directions) come first, so that every run has
    // them.
    for (std::size_t i = 0; i < 10; ++i)
      CHECK((std::get<AttentionPoint>(all[i].what).what == "published shape") == (device == "cuda"));
    const std::vector<Point> again = attention_points(options);
    CHECK(key_of(again[7]) == key_of(attention_points(options)[7]));
  }
}

TEST_CASE(
    "the shortest run has samples of every table: each row op comes four times before any comes a fifth "
    "time") {
  for (const std::string device : {"cpu", "cuda"}) {
    CAPTURE(device);
    ListOptions options;
    options.scale = scale_of(device);
    options.type = device == "cpu" ? kernels::ElementType::f32 : kernels::ElementType::bf16;
    const std::vector<Point> rows = row_points(options);
    constexpr std::size_t kOps = kernels::kRowOps.size();
    REQUIRE(rows.size() > kLeastOfTable * kOps);
    for (std::size_t turn = 0; turn < kLeastOfTable; ++turn) {
      std::set<std::size_t> ops;
      for (std::size_t i = 0; i < kOps; ++i) ops.insert(std::get<RowPoint>(rows[turn * kOps + i].what).op);
      CHECK(ops.size() == kOps);
    }
    std::set<kernels::Pass> passes;
    const std::vector<Point> attention = attention_points(options);
    for (std::size_t i = 0; i < 2 * kLeastOfTable; ++i)
      passes.insert(std::get<AttentionPoint>(attention[i].what).pass);
    CHECK(passes.size() == 2);
  }
}

TEST_CASE("a model's GEMMs are those of its linear layers") {
  // Llama-2-7B on TP 2, 512 tokens: QKV is 512 x (3 * 4096 / 2) x 4096; its weight gradient 6144 x 4096 x
  // 512.
  const LayerShape& llama = gpu_layers()[0];
  const std::vector<GemmPoint> points = gemms_of(llama, 2, 512);
  REQUIRE(points.size() == 15);
  CHECK(points[0].shape.m == 512);
  CHECK(points[0].shape.n == 6144);
  CHECK(points[0].shape.k == 4096);
  CHECK(points[0].shape.transpose_b);
  CHECK(points[2].shape.m == 6144);
  CHECK(points[2].shape.n == 4096);
  CHECK(points[2].shape.k == 512);
  CHECK(gemms_of(llama, 64, 512).empty());  // 64 does not divide 32 heads
  ListOptions options;
  options.scale = scale_of("cpu");
  options.models = {"no-such-model"};
  CHECK_THROWS_AS(gemm_points(options), UserError);
}

TEST_CASE("a short real run writes a samples file, and a resumed one goes on where it stopped" *
          doctest::test_suite("figures")) {
  const std::string path = temporary("equipoise_samples") + ".json";
  SessionOptions options;
  options.minutes = 30;  // never reached, however busy the machine: most_points ends it
  options.out = path;
  options.most_points = 8;
  options.quiet = true;
  options.lengths = {10, 200, 33};
  std::ostringstream log;
  const std::atomic<bool> go{false};
  const SessionReport first = run_session(options, log, go);
  CHECK(first.checks_passed);
  CHECK(first.measured == 8);
  {
    // A launch, four copies, then the first of attention: what no profile can do without comes first.
    const auto begun = nlohmann::json::parse(std::ifstream(path)).at("samples");
    CHECK(begun.at("elementwise").size() == 4);
    CHECK(begun.at("attention").size() == 3);
  }
  {
    std::ofstream torn(path + ".journal", std::ios::app);
    torn << "{\"family\": \"gemm\", \"ke";  // as after a power cut
  }
  options.resume = true;
  const SessionReport second = run_session(options, log, go);
  CHECK(second.measured == 8);
  const auto file = nlohmann::json::parse(std::ifstream(path));
  CHECK(file.at("schema") == "equipoise.samples/1");
  const auto& samples = file.at("samples");
  const std::size_t count =
      samples.at("attention").size() + samples.at("gemm").size() + samples.at("elementwise").size();
  CHECK(count == second.finished);
  CHECK(count >= 5);  // 16 visits of at most three each, some to the launch, which is a fact of the device
  CHECK(first.finished < second.finished);
  for (const auto& sample : samples.at("attention")) {
    CHECK(sample.at("seconds").get<double>() > 0);
    CHECK(sample.at("pieces").at(0).size() == 2);
  }
  CHECK(file.at("checks").at("all").size() == first.checks);
  const std::atomic<bool> stopped{true};
  CHECK(run_session(options, log, stopped).measured == 0);  // Ctrl-C before the first point
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".journal");
}

TEST_CASE("what no profile can do without is measured even where the time is over") {
  SessionOptions options;
  options.minutes = 1e-6;
  options.out = temporary("equipoise_least") + ".json";
  options.quiet = true;
  options.families = {"copy", "launch"};
  std::ostringstream log;
  const std::atomic<bool> go{false};
  CHECK(run_session(options, log, go).measured == 1 + kLeastOfTable);
  options.minutes = 0;
  CHECK(run_session(options, log, go).measured == 0);
  std::filesystem::remove(options.out);
  std::filesystem::remove(options.out + ".journal");
}

TEST_CASE("a device that is not there is the user's error") {
  SessionOptions options;
  options.device = "tpu";
  std::ostringstream log;
  const std::atomic<bool> go{false};
  CHECK_THROWS_WITH_AS(run_session(options, log, go), "--device: expected cpu or cuda, found 'tpu'",
                       UserError);
}

// Holds the search of `tune` against chance: the best of 2,000 random candidates of the default space may not
// be more than 0.5% faster than what the search found.
//
//   tune_quality traces/studies/7b-128k.json ... [--budget N]
//
// Prints seconds on all cores and CPU seconds of both; exit 1 where chance was better. A random candidate
// ends as soon as it is known to be slower than the best one before it, which changes nothing in what is
// compared.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "policies/base/parallel.h"
#include "policies/base/random.h"
#include "sim/study/models.h"
#include "sim/tune/candidate_text.h"
#include "sim/tune/search.h"
#include "sim/tune/space.h"

namespace {

using namespace equipoise;

constexpr int kDraws = 2000, kBatch = 100;
constexpr double kAllowed = 1.005;

class Stopwatch {
 public:
  [[nodiscard]] std::string text() const {
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - wall_;
    const double cpu = static_cast<double>(std::clock() - cpu_) / CLOCKS_PER_SEC;
    return std::to_string(wall.count()) + " s (CPU " + std::to_string(cpu) + " s)";
  }

 private:
  std::chrono::steady_clock::time_point wall_ = std::chrono::steady_clock::now();
  std::clock_t cpu_ = std::clock();
};

struct Drawn {
  double seconds_per_token = std::numeric_limits<double>::infinity();
  Point point;
  int ran = 0;
};

Drawn best_of_random(const Candidates& candidates, const StudyInputs& inputs, int jobs, const char* name) {
  Drawn best;
  SplitMix64 random(2026);
  for (int done = 0; done < kDraws; done += kBatch) {
    std::vector<Point> points(kBatch);
    for (Point& point : points)
      point = {static_cast<std::uint32_t>(random.next() % candidates.layouts.size()),
               static_cast<std::uint32_t>(random.next() % candidates.rows.size())};
    std::vector<Trial> trials(points.size());
    TrialLimits limits;
    limits.seconds_per_token = best.seconds_per_token;
    parallel_for(jobs, points.size(), [&](int, std::size_t i) {
      trials[i] = try_candidate(candidate_study(candidates, points[i], name), inputs, limits, {});
    });
    for (std::size_t i = 0; i < trials.size(); ++i) {
      best.ran += trials[i].steps > 0 ? 1 : 0;
      if (trials[i].outcome == Outcome::ok && trials[i].seconds_per_token < best.seconds_per_token) {
        best.seconds_per_token = trials[i].seconds_per_token;
        best.point = points[i];
      }
    }
  }
  return best;
}

bool compare(const char* path, std::int64_t budget) {
  const nlohmann::json file = absolute_study(path, {});
  const Study study = parse_study(file, path);
  const StudyInputs inputs = load_inputs(study);
  const std::int64_t gpus = study.layout.gpus();
  const int jobs = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const Space space = default_space(study, file, gpus, gpus_per_node(study.cluster, inputs.profile));
  const Candidates candidates = candidates_of(space, file, gpus, path, jobs);
  SearchOptions options;
  options.budget = budget;
  options.run.jobs = jobs;
  options.name = path;
  const Stopwatch searching;
  const SearchResult found = search(candidates, inputs, options, nullptr);
  const std::string search_time = searching.text();
  if (found.ranking.empty()) {
    std::printf("%s: no candidate runs\n", path);
    return false;
  }
  const Tried& first = found.tried[found.ranking.front()];
  const Stopwatch drawing;
  const Drawn drawn = best_of_random(candidates, inputs, jobs, path);
  const auto speed = [&](double seconds) { return 1 / seconds / static_cast<double>(gpus); };
  std::printf("%s: %lld candidates\n", path, static_cast<long long>(candidates.count()));
  std::printf("  search: %zu tried, %lld slower by bound, %lld not reached, %s\n", found.tried.size(),
              static_cast<long long>(found.bounded), static_cast<long long>(found.left), search_time.c_str());
  std::printf("    best %.1f tokens/s/GPU: %s\n", speed(first.trial.seconds_per_token),
              candidate_text(candidates, first.point).c_str());
  std::printf("  %d random: %d simulated, %s\n", kDraws, drawn.ran, drawing.text().c_str());
  std::printf("    best %.1f tokens/s/GPU: %s\n", speed(drawn.seconds_per_token),
              candidate_text(candidates, drawn.point).c_str());
  std::printf("  search / random: %.4f\n", drawn.seconds_per_token / first.trial.seconds_per_token);
  return first.trial.seconds_per_token <= drawn.seconds_per_token * kAllowed;
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t budget = 10'000;
  std::vector<const char*> studies;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--budget" && i + 1 < argc)
      budget = std::strtoll(argv[++i], nullptr, 10);
    else
      studies.push_back(argv[i]);
  }
  bool good = !studies.empty();
  try {
    for (const char* study : studies) good = compare(study, budget) && good;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 2;
  }
  return good ? 0 : 1;
}

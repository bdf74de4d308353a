// The equivalence matrix by one command: every case is planned, run for real on ranks that are threads, and
// compared with its slices alone in float64.
//   equivalence_matrix                            everything; --seed N: with other documents
//   equivalence_matrix --sample SECONDS --seed N  first what covers every value of every axis, then more
//   equivalence_matrix --group NAME               one group of cases
//   equivalence_matrix --case JSON                one case, as a failure prints it
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <map>
#include <set>

#include "policies/base/random.h"
#include "policies/base/text.h"
#include "policies/policy.h"
#include "tests/execution/equivalence_case.h"
#include "tests/execution/matrix_cases.h"

namespace {

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

EquivalenceResult run_case(const json& repeats) {
  EquivalenceOptions options;
  options.step = repeats.value("step", std::size_t{0});
  options.fold_tp = repeats.value("fold_tp", true);
  options.normalizer = static_cast<execution::LossNormalizer>(
      choice_of(repeats.value("normalizer", "token"), "normalizer", execution::kLossNormalizerNames));
  return run_equivalence(repeats.at("study"), options);
}

// Ranks that wait for each other for ever, or a crash: the case is told before the program ends.
constexpr unsigned kLongestCase = 120;  // seconds
std::string current_case;               // for the signal handler
void give_up(int) {
  constexpr char kText[] = "\nhangs or crashes: equivalence_matrix --case '";
  const auto say = [](const char* text, std::size_t size) { return ::write(STDERR_FILENO, text, size) >= 0; };
  const bool said =
      say(kText, sizeof kText - 1) && say(current_case.data(), current_case.size()) && say("'\n", 2);
  _exit(said ? 1 : 3);
}

// "expected 4, found 3" and "expected 8, found 5" are one reason.
std::string without_numbers(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit) out += c;
    if (digit && (out.empty() || out.back() != '#')) out += '#';
  }
  return out;
}

struct Tally {
  int ran = 0, refused = 0;
  double worst = 0, seconds = 0;
};

class Report {
 public:
  // Whether the case ran.
  bool add(const MatrixCase& c) {
    const Clock::time_point start = Clock::now();
    json repeats = c.to_json();
    current_case = repeats.dump();
    alarm(kLongestCase);
    Tally& tally = groups_[std::string(c.group)];
    bool ran = false;
    try {
      EquivalenceResult result = run_case(repeats);
      ran = result.refused.empty();
      if (ran &&
          result.equivalence.tokens == 0) {  // a policy that holds tokens back left the step empty: the next
        repeats["step"] = (repeats["step"].get<int>() + 1) % repeats["study"]["batch"]["steps"].get<int>();
        current_case = repeats.dump();
        result = run_case(repeats);
      }
      if (ran && !result.nccl_fault.empty()) fail("over NCCL: " + result.nccl_fault);
      if (ran)
        check(c, result.equivalence, tally);
      else
        ++reasons_[without_numbers(result.refused)];
    } catch (const std::exception& e) {
      fail(e.what());
    }
    alarm(0);
    ++(ran ? tally.ran : tally.refused);
    Tally& of_policy = policies_[{c.policy, c.context}];
    ++(ran ? of_policy.ran : of_policy.refused);
    tally.seconds += seconds_since(start);
    return ran;
  }

  // Every policy ran at every CP degree; of the whole matrix, more often than not.
  void check_policies(bool whole) {
    for (const Policy& policy : packing_policies()) {
      Tally all;
      for (const int context : kContexts) {
        const Tally& tally = policies_[{std::string(policy.name), context}];
        all.ran += tally.ran;
        all.refused += tally.refused;
        if (tally.ran == 0)
          complain(std::string(policy.name) + " never ran at CP " + std::to_string(context));
      }
      if (whole && all.refused > all.ran)
        complain(std::string(policy.name) + " was refused " + std::to_string(all.refused) +
                 " times and ran " + std::to_string(all.ran) + " times");
    }
  }

  void print(double seconds) const {
    Tally all;
    std::printf("%-10s %6s %8s %12s %8s\n", "group", "ran", "refused", "worst error", "seconds");
    const auto line = [](const char* name, const Tally& t) {
      std::printf("%-10s %6d %8d %12.2e %8.1f\n", name, t.ran, t.refused, t.worst, t.seconds);
    };
    for (const auto& [name, tally] : groups_) {
      line(name.c_str(), tally);
      all.ran += tally.ran;
      all.refused += tally.refused;
      all.worst = std::max(all.worst, tally.worst);
    }
    all.seconds = seconds;
    line("all", all);
    for (const auto& [reason, count] : reasons_) std::printf("refused %4d: %s\n", count, reason.c_str());
    std::printf("worst: %s\n", worst_.second.c_str());
    std::printf("%s, limit %.0e\n", failures_ == 0 ? "all equal" : "DIFFERENT", execution::kLimitF32);
  }

  [[nodiscard]] int failures() const { return failures_; }

 private:
  void check(const MatrixCase& c, const execution::Equivalence& e, Tally& tally) {
    tally.worst = std::max({tally.worst, e.worst_error, e.loss_error});
    if (e.worst_error > worst_.first)
      worst_ = {e.worst_error, e.worst_tensor + ", in --case '" + current_case + "'"};
    if (e.holds() && e.tokens > 0) return;
    char text[200];
    std::snprintf(text, sizeof text, "%s: loss %.7f, expected %.7f; worst error %.1e in %s",
                  std::string(c.group).c_str(), e.loss, e.reference_loss, e.worst_error,
                  e.worst_tensor.c_str());
    fail(text);
  }
  void fail(const std::string& what) {
    complain(what + "\n  equivalence_matrix --case '" + current_case + "'");
  }
  void complain(const std::string& what) {
    ++failures_;
    std::printf("FAILED: %s\n", what.c_str());
    std::fflush(stdout);
  }

  std::map<std::string, Tally> groups_;
  std::map<std::pair<std::string, int>, Tally> policies_;
  std::map<std::string, int> reasons_;
  std::pair<double, std::string> worst_{};  // of all: error, and where
  int failures_ = 0;
};

// Cases in a random order: first those that show something new, then the others while there is time.
void run_sample(std::vector<MatrixCase> cases, double budget, std::uint64_t seed, Report& report) {
  const Clock::time_point start = Clock::now();
  SplitMix64 random(seed);
  shuffle(cases, random);
  std::set<std::string> seen;
  std::vector<const MatrixCase*> others;
  for (const MatrixCase& c : cases) {
    const std::vector<std::string> covers = c.covers();
    const bool shows_more = std::any_of(covers.begin(), covers.end(),
                                        [&](const std::string& what) { return !seen.contains(what); });
    if (!shows_more)
      others.push_back(&c);
    else if (report.add(c))
      seen.insert(covers.begin(), covers.end());
  }
  std::printf("%zu values of axes covered after %.1f s\n", seen.size(), seconds_since(start));
  for (const MatrixCase* c : others) {
    if (seconds_since(start) > budget) return;
    report.add(*c);
  }
}

int run_one(const std::string& text) {
  const EquivalenceResult result = run_case(json::parse(text));
  if (!result.refused.empty()) {
    std::printf("refused: %s\n", result.refused.c_str());
    return 2;
  }
  const execution::Equivalence& e = result.equivalence;
  std::printf("%d ranks, %ld tokens: loss %.7f, expected %.7f (%.1e); worst error %.2e in %s: %s\n",
              result.ranks, static_cast<long>(e.tokens), e.loss, e.reference_loss, e.loss_error,
              e.worst_error, e.worst_tensor.c_str(), e.holds() ? "equal" : "DIFFERENT");
  return e.holds() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs the equivalence matrix");
  double budget = 0;
  std::uint64_t seed = 0;
  std::string one, group;
  app.add_option("--sample", budget, "Seconds for a random part of it")->check(CLI::PositiveNumber);
  app.add_option("--seed", seed, "Of the documents and of the sample");
  app.add_option("--group", group, "One group of cases");
  app.add_option("--case", one, "One case, as a failure prints it");
  CLI11_PARSE(app, argc, argv);
  if (!one.empty()) return run_one(one);

  for (const int sign : {SIGALRM, SIGSEGV, SIGABRT}) signal(sign, give_up);
  std::vector<MatrixCase> cases = equivalence_matrix(seed);
  if (!group.empty()) std::erase_if(cases, [&](const MatrixCase& c) { return c.group != group; });
  const Clock::time_point start = Clock::now();
  Report report;
  if (budget > 0)
    run_sample(std::move(cases), budget, seed, report);
  else
    for (const MatrixCase& c : cases) report.add(c);
  if (group.empty()) report.check_policies(budget == 0);
  report.print(seconds_since(start));
  return report.failures() == 0 ? 0 : 1;
}

// Who moves on to more steps, by hand, and what the search makes of it.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "sim/tune/halving.h"
#include "sim/tune/journal.h"
#include "tests/scratch_folder.h"
#include "tests/sim/tune/tune_case.h"

namespace equipoise {
namespace {

using testing::small_space;
using testing::small_study;
using testing::TuneCase;

TEST_CASE("a study of few steps is not cut into parts of fewer than 4") {
  CHECK(Halving(100, 10).batches() == std::vector<int>{6, 25, 0});
  CHECK(Halving(64, 10).batches() == std::vector<int>{4, 16, 0});
  CHECK(Halving(63, 10).batches() == std::vector<int>{15, 0});
  CHECK(Halving(15, 10).batches() == std::vector<int>{0});
  CHECK(Halving(100'000, 10).batches() == std::vector<int>{6250, 25'000, 0});
}

TEST_CASE("the fastest quarter moves on, two at least") {
  // 12 candidates of 1 to 12 s a token: a quarter is three. Of those two run on more steps, and the second of
  // them is slower there than it looked: the quarter of three is none, so that the best two are on all steps.
  Halving halving(100, 2);
  for (std::size_t c = 0; c < 12; ++c) halving.ran(c, 0, static_cast<double>(12 - c), {});
  CHECK(halving.moving_on(0) == std::vector<std::size_t>{11, 10, 9});
  CHECK(halving.moving_on(1).empty());
  halving.ran(11, 1, 1.5, {});
  halving.ran(10, 1, 9, {});
  CHECK(halving.moving_on(0) == std::vector<std::size_t>{9});
  CHECK(halving.moving_on(1) == std::vector<std::size_t>{11, 10});
  CHECK(halving.reached_by(10).rung == 1);
  CHECK(halving.reached_by(10).seconds == 9);
}

TEST_CASE("one that does not run on more steps makes room for the next") {
  Halving halving(100, 2);
  for (std::size_t c = 0; c < 4; ++c) halving.ran(c, 0, static_cast<double>(1 + c), {});
  halving.ran(4, 0, 0, {});  // it does not fit
  CHECK(halving.moving_on(0) == std::vector<std::size_t>{0, 1});
  halving.ran(0, 1, 0, {});
  CHECK(halving.moving_on(0) == std::vector<std::size_t>{1, 2});
  CHECK(halving.reached_by(0).rung == 0);
}

TEST_CASE("of candidates that pack slowly two move on, whatever room there is") {
  Halving halving(100, 10);
  for (std::size_t c = 0; c < 6; ++c) halving.ran(c, 0, static_cast<double>(1 + c), {c < 4, Claim::fastest});
  CHECK(halving.moving_on(0) == std::vector<std::size_t>{0, 1, 4, 5});
}

TEST_CASE("faster candidates that the framework does not run take no room from those that it runs") {
  // The four fastest of six are not run: two of them move on as ever, and two of the others with them.
  Halving halving(100, 2);
  for (std::size_t c = 0; c < 6; ++c)
    halving.ran(c, 0, static_cast<double>(1 + c), {false, c < 4 ? Claim::fastest_elsewhere : Claim::fastest});
  CHECK(halving.moving_on(0) == std::vector<std::size_t>{0, 1, 4, 5});
}

// Of 64 steps and 8 windows each, where a candidate takes a few milliseconds.
const TuneCase& halved_case() {
  static const TuneCase kCase = [] {
    nlohmann::json file = small_study();
    file["batch"]["steps"] = 64;
    return TuneCase(file, small_space(), 8);
  }();
  return kCase;
}

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool same_search(const SearchResult& a, const SearchResult& b) {
  if (a.tried.size() != b.tried.size() || a.ranking != b.ranking || a.trials != b.trials) return false;
  for (std::size_t i = 0; i < a.tried.size(); ++i)
    if (!(a.tried[i].point == b.tried[i].point) || !(a.tried[i].trial == b.tried[i].trial)) return false;
  return true;
}

TEST_CASE("a halved search drops candidates, says so, and finds what running all of them finds") {
  SearchOptions all;
  all.prune = false;
  const SearchResult exhaustive = halved_case().find(all);
  SearchOptions options;
  options.budget = 100;
  const SearchResult found = halved_case().find(options);
  CHECK(found.batches == std::vector<int>{4, 16, 0});
  CHECK(found.tried.size() == 100);
  CHECK(found.dropped() > 20);
  CHECK(!found.complete());
  const double best = exhaustive.tried[exhaustive.ranking.front()].trial.seconds_per_token;
  REQUIRE(!found.ranking.empty());
  CHECK(found.tried[found.ranking.front()].trial.seconds_per_token <= 1.005 * best);
  for (const std::size_t place : found.ranking) CHECK(found.tried[place].trial.batches == 0);
}

TEST_CASE("a quarter runs on all steps, also where most of it is proven slower on the way") {
  SearchOptions options;
  options.budget = 100;
  const SearchResult found = halved_case().find(options);
  std::size_t in_full = 0;
  for (const Tried& tried : found.tried)
    if (tried.trial.batches == 0 && tried.trial.steps > 0) ++in_full;
  std::size_t on_more = in_full;  // of 4 batches, 16 or more
  for (const Tried& tried : found.tried)
    if (tried.trial.batches == 16) ++on_more;
  CHECK(on_more <= 50);
  CHECK(in_full <= 25);
}

TEST_CASE("where the budget reaches all candidates none is dropped, and the ranking is exact") {
  SearchOptions all;
  all.prune = false;
  const SearchResult exhaustive = halved_case().find(all), found = halved_case().find();
  CHECK(found.complete());
  CHECK(found.dropped() == 0);
  REQUIRE(found.ranking.size() >= 10);
  for (std::size_t i = 0; i < 10; ++i)
    CHECK(found.tried[found.ranking[i]].point == exhaustive.tried[exhaustive.ranking[i]].point);
}

TEST_CASE("threads and a journal that is cut change nothing in a halved search") {
  SearchOptions options;
  options.budget = 100;
  const SearchResult whole = halved_case().find(options);
  options.run.jobs = 2;
  CHECK(same_search(whole, halved_case().find(options)));
  const test::Scratch folder;
  const std::string path = folder.path("tune.journal");
  {
    Journal journal(path, nullptr, false);
    (void)halved_case().find(options, &journal);
  }
  const std::string text = text_of(path);
  folder.write("tune.journal", text.substr(0, text.size() / 2));
  Journal journal(path, nullptr, true);
  const SearchResult again = halved_case().find(options, &journal);
  CHECK(same_search(whole, again));
  CHECK(again.ran > 0);
  CHECK(again.ran < again.trials);
  CHECK(text_of(path) == text);
}

TEST_CASE("a search that the user stops says which policies it has not come to") {
  std::atomic<bool> stop = false;
  SearchOptions options;
  options.run.stop = &stop;
  options.progress = [&](std::int64_t tried, std::int64_t, double) { stop = stop || tried >= 5; };
  const SearchResult found = halved_case().find(options);
  CHECK(found.interrupted);
  CHECK(!found.timed_out);
  CHECK(found.tried.size() < 32);
  // Only the probe, wlb, was tried.
  CHECK(found.not_compared == std::vector<std::string>{"plain-4d", "chunkflow"});
}

// Options of a search of one minute. Its clock moves only after so many trials, to a share of that minute.
SearchOptions waiting(std::map<std::int64_t, double> until) {
  constexpr auto kNoticed = std::chrono::milliseconds(300);  // the limit looks at the clock more often
  const auto minutes = std::make_shared<std::atomic<double>>(0);
  SearchOptions options;
  options.budget = 48;
  options.minutes = 1;
  options.clock = [minutes] { return minutes->load(); };
  options.progress = [until, minutes, kNoticed](std::int64_t tried, std::int64_t, double) {
    const auto now = until.find(tried);
    if (now == until.end()) return;
    *minutes = now->second;
    std::this_thread::sleep_for(kNoticed);
  };
  return options;
}

TEST_CASE("a search whose time is over has tried every policy, and one candidate runs on all steps") {
  // The probes take more than half of the time, and the two policies that are missing the rest.
  const SearchResult found = halved_case().find(waiting({{5, 0.55}, {7, 1.05}}));
  CHECK(found.timed_out);
  CHECK(!found.interrupted);
  CHECK(found.tried.size() == 7);
  CHECK(found.ranking.size() == 1);
  CHECK(found.not_compared.empty());
}

TEST_CASE("a journal has the trials that time put out of order, and a resumed search finds them") {
  const test::Scratch folder;
  const std::string path = folder.path("tune.journal");
  std::int64_t trials = 0;
  {
    Journal journal(path, nullptr, false);
    trials = halved_case().find(waiting({{5, 0.55}, {7, 1.05}}), &journal).trials;
  }
  CHECK(std::ssize(read_journal(path).tried) == trials);
  Journal journal(path, nullptr, true);
  const SearchResult all = halved_case().find({}, &journal);
  CHECK(all.complete());
  CHECK(all.trials - all.ran == trials);
}

TEST_CASE("shares of the time obey the budget") {
  SearchOptions options = waiting({{5, 0.55}});
  options.budget = 6;
  CHECK(halved_case().find(options).tried.size() == 6);
}

TEST_CASE("after half of its time a search compares policies and goes on in its order, a shard goes on") {
  SearchOptions options = waiting({{5, 0.55}});
  const SearchResult found = halved_case().find(options);
  CHECK(!found.timed_out);
  CHECK(found.not_compared.empty());
  CHECK(found.tried.size() == 48);
  CHECK(found.ranking.size() > 1);
  SearchOptions shard = waiting({{5, 0.55}}), untimed;
  shard.share = untimed.share = {0, 2};
  untimed.budget = shard.budget;
  CHECK(same_search(halved_case().find(shard), halved_case().find(untimed)));
}

TEST_CASE("a stop by the user after half of the time starts no comparison") {
  std::atomic<bool> stop = false;
  SearchOptions options = waiting({{5, 0.55}});
  options.run.stop = &stop;
  options.progress = [&stop, wait = options.progress](std::int64_t tried, std::int64_t most, double best) {
    wait(tried, most, best);
    stop = stop || tried == 5;
  };
  const SearchResult found = halved_case().find(options);
  CHECK(found.interrupted);
  CHECK(found.tried.size() == 5);
}

TEST_CASE("policies are compared before the budget is spent on probes") {
  SearchOptions options;
  options.budget = 48;
  const SearchResult found = halved_case().find(options);
  CHECK(found.not_compared.empty());
}

}  // namespace
}  // namespace equipoise

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "policies/base/parallel.h"
#include "sim/study/cores.h"

using namespace equipoise;

TEST_CASE("Every item runs once, whatever the cores and items") {
  for (const int count : {1, 2, 5})
    for (const std::size_t items : {0U, 1U, 2U, 100U}) {
      CAPTURE(count);
      CAPTURE(items);
      Cores cores(count);
      Cores::Row row(cores, 0);
      std::vector<std::atomic<int>> ran(items);
      std::atomic<bool> strange = false;
      row.for_each(items, [&](int worker, std::size_t i) {
        if (worker < 0 || worker >= count) strange = true;
        ++ran[i];
      });
      CHECK(!strange);
      for (const std::atomic<int>& times : ran) CHECK(times == 1);
    }
}

TEST_CASE("Rows that share cores never compute on more than there are, and all come to their end") {
  constexpr int kCores = 3, kRows = 20;
  Cores cores(kCores);
  std::atomic<int> at_work = 0, most = 0, done = 0;
  const auto work = [&](int, std::size_t) {
    const int now = ++at_work;
    for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    ++done;
    --at_work;
  };
  parallel_for(8, kRows, [&](int, std::size_t row) {
    Cores::Row at(cores, row);
    for (int phase = 0; phase < 3; ++phase) at.for_each(1 + row, work);
  });
  CHECK(most >= 1);
  CHECK(most <= kCores);
  CHECK(done == 3 * kRows * (kRows + 1) / 2);
}

TEST_CASE("The error of the lowest item is thrown, after all were tried; the cores go on") {
  Cores cores(2);
  Cores::Row row(cores, 0);
  std::atomic<int> tried = 0;
  CHECK_THROWS_WITH(row.for_each(50,
                                 [&](int, std::size_t i) {
                                   ++tried;
                                   if (i == 7 || i == 30) throw std::runtime_error(std::to_string(i));
                                 }),
                    "7");
  CHECK(tried == 50);
  row.for_each(10, [&](int, std::size_t) { ++tried; });
  CHECK(tried == 60);
}

TEST_CASE("A row goes before the rows after it, as soon as one of their items ends") {
  constexpr std::size_t kItems = 10'000;
  Cores cores(1);
  std::atomic<bool> first_is_done = false, second_began = false;
  std::atomic<std::size_t> before = 0;  // items of the second row
  std::thread second([&] {
    Cores::Row row(cores, 1);
    row.for_each(kItems, [&](int, std::size_t) {
      second_began = true;
      if (first_is_done) return;
      ++before;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  });
  while (!second_began) std::this_thread::yield();
  {
    Cores::Row row(cores, 0);
    first_is_done = true;
  }
  second.join();
  CHECK(before >= 1);
  CHECK(before < kItems);
}

TEST_CASE("A row that fails puts the rows after it in vain, not those before") {
  Cores cores(3);
  Cores::Row first(cores, 0), second(cores, 1), third(cores, 2);
  CHECK(!third.is_in_vain());
  second.fail();
  CHECK(!first.is_in_vain());
  CHECK(!second.is_in_vain());
  CHECK(third.is_in_vain());
  third.fail();
  CHECK(!second.is_in_vain());
  first.fail();
  CHECK(second.is_in_vain());
}

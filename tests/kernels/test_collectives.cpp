#include <doctest/doctest.h>

#include <thread>

#include "kernels/checks.h"

using namespace equipoise::kernels;

namespace {

// Runs body(communicator) on one thread per rank.
template <class Body>
void on_ranks(std::vector<std::unique_ptr<Communicator>> ranks, Body body) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&body, &rank] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("in-process collectives deliver what each rank should have") {
  for (const int ranks : {1, 2, 3, 5}) {
    CAPTURE(ranks);
    std::vector<std::vector<CheckResult>> results(static_cast<std::size_t>(ranks));
    on_ranks(make_in_process_group(ranks), [&](Communicator& me) {
      results[static_cast<std::size_t>(me.rank())] = check_collectives(me, 9);
    });
    for (const auto& of_rank : results) {
      REQUIRE(of_rank.size() >= 15);  // three sizes, at least five collectives each
      for (const CheckResult& result : of_rank) {
        CAPTURE(result.op);
        CAPTURE(result.shape);
        CHECK(result.passed());
      }
    }
  }
}

TEST_CASE("a split group holds the ranks of its color in key order") {
  // Six ranks as TP 2 x CP 3 with TP fastest: color = rank / 2 are TP groups. Keys reverse the order.
  std::vector<int> rank_in_group(6), sum(6);
  on_ranks(make_in_process_group(6), [&](Communicator& me) {
    const auto group = me.split(me.rank() / 2, -me.rank());
    const auto mine = static_cast<float>(me.rank());
    float total = 0;
    group->all_reduce(&mine, &total, 1);
    rank_in_group[static_cast<std::size_t>(me.rank())] = group->rank();
    sum[static_cast<std::size_t>(me.rank())] = static_cast<int>(total);
  });
  CHECK(rank_in_group == std::vector<int>{1, 0, 1, 0, 1, 0});
  CHECK(sum == std::vector<int>{1, 1, 5, 5, 9, 9});
}

TEST_CASE("without a launcher there is no MPI world, and the reason is given") {
  std::string reason;
  if (make_mpi_world(reason) == nullptr) CHECK_FALSE(reason.empty());
}

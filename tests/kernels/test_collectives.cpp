#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>

#include "kernels/checks.h"
#include "kernels/collectives.h"

using namespace equipoise::kernels;

TEST_CASE("in-process collectives deliver what each rank should have") {
  for (const int ranks : {1, 2, 3, 5}) {
    CAPTURE(ranks);
    std::vector<std::vector<CheckResult>> results(static_cast<std::size_t>(ranks));
    run_in_process(ranks, [&](Communicator& me) {
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
  run_in_process(6, [&](Communicator& me) {
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

TEST_CASE("when a rank fails, whoever waits for it in any call fails too, and its reason is reported") {
  using Call = void (*)(Communicator & me, float* data);
  const Call calls[] = {
      [](Communicator& me, float*) { me.barrier(); },
      [](Communicator& me, float* data) { me.all_reduce(data, data + 1, 1); },
      [](Communicator& me, float* data) { me.receive(data, 1, 0); },
      [](Communicator& me, float* data) { me.send(data, 1, 0); },
      [](Communicator& me, float* data) { (void)me.start_send(data, 1, 0); },  // waits when it goes
      [](Communicator& me, float*) { (void)me.split(0, me.rank()); },
  };
  for (std::size_t i = 0; i < std::size(calls); ++i) {
    CAPTURE(i);
    std::atomic<int> aborted = 0;
    Turn turn;
    for (Turn* one : {static_cast<Turn*>(nullptr), &turn}) {
      const auto body = [&](Communicator& me) {
        if (me.rank() == 0) throw std::invalid_argument("no such layer");
        float data[2] = {1, 0};
        try {
          calls[i](me, data);
          me.barrier();
        } catch (const Aborted& e) {
          ++aborted;
          CHECK(std::string(e.what()) == "rank 0: no such layer");
          throw;
        }
      };
      CHECK_THROWS_WITH_AS(run_in_process(4, body, one), "no such layer", std::invalid_argument);
    }
    CHECK(aborted == 6);
  }
}

TEST_CASE("a rank that fails with messages under way takes them back and does not wait for their receiver") {
  const auto body = [](Communicator& me) {
    float data = 1;
    const auto sent = me.start_send(&data, 1, 1 - me.rank(), 3);
    if (me.rank() == 0) throw std::runtime_error("out of memory");
    me.receive(&data, 1, 0, 4);  // never sent
  };
  CHECK_THROWS_WITH(run_in_process(2, body), "out of memory");
}

TEST_CASE("a message received with another length than it was sent is refused") {
  const auto body = [](Communicator& me) {
    float data[2] = {1, 2};
    if (me.rank() == 0) me.send(data, 2, 1);
    if (me.rank() == 1) me.receive(data, 1, 0);
  };
  CHECK_THROWS_WITH(run_in_process(2, body), "a message of 2 elements was received as one of 1");
}

TEST_CASE("a group that was split off is aborted with the whole") {
  // Ranks 0 and 1 wait for each other only; rank 2 fails.
  const auto body = [](Communicator& me) {
    const auto group = me.split(me.rank() / 2, 0);
    float data = 0;
    if (me.rank() == 0) group->receive(&data, 1, 1);
    if (me.rank() == 1) group->receive(&data, 1, 0);
    if (me.rank() == 2) throw std::runtime_error("gone");
  };
  CHECK_THROWS_WITH(run_in_process(3, body), "gone");
}

TEST_CASE("with a turn one rank computes at a time, and waiting ranks leave it to the others") {
  constexpr int kRanks = 4;
  Turn turn;
  std::atomic<int> computing = 0;
  std::atomic<int> together = 0;  // the most ranks seen at once
  const auto compute = [&] {
    const int now = ++computing;
    if (now > together) together = now;
    for (int spin = 0; spin < 100000; ++spin) std::atomic_signal_fence(std::memory_order_seq_cst);
    --computing;
  };
  // Were the turn kept while waiting, rank 0 would wait for ever for a message that nobody may send.
  run_in_process(
      kRanks,
      [&](Communicator& me) {
        const int next = (me.rank() + 1) % kRanks;
        const int previous = (me.rank() + kRanks - 1) % kRanks;
        for (int i = 0; i < 10; ++i) {
          compute();
          const auto mine = static_cast<float>(me.rank());
          float got = -1;
          float total = 0;
          const auto sent = me.start_send(&mine, 1, next);
          me.receive(&got, 1, previous);
          compute();
          me.all_reduce(&mine, &total, 1);
          CHECK(got == static_cast<float>(previous));
          CHECK(total == 6.0F);  // 0 + 1 + 2 + 3
        }
      },
      &turn);
  CHECK(together == 1);
}

TEST_CASE("without a launcher there is no MPI world, and the reason is given") {
  std::string reason;
  if (make_mpi_world(reason) == nullptr) CHECK_FALSE(reason.empty());
}

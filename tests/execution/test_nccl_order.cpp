// The model of NCCL's order by itself: what hangs there or is taken for another message, and what does not.
#include <doctest/doctest.h>

#include "tests/execution/nccl_order.h"

using namespace equipoise::testing;

namespace {

NcclCall collective(const char* what, std::int64_t count, int communicator = 0) {
  return {NcclCall::collective, what, communicator, count};
}
NcclCall send(int to, int tag = 0) {
  return {NcclCall::send, "", 0, 8, to, -1, tag};
}
NcclCall started(int to, int tag = 0) {
  return {NcclCall::started_send, "", 0, 8, to, -1, tag};
}
NcclCall wait(std::size_t started) {
  return {NcclCall::wait, "", 0, 8, -1, -1, 0, started};
}
NcclCall receive(int from, int tag = 0) {
  return {NcclCall::receive, "", 0, 8, -1, from, tag};
}
NcclCall exchange(int to, int from) {
  return {NcclCall::exchange, "", 0, 8, to, from};
}

std::string fault_of(const std::vector<std::vector<NcclCall>>& calls,
                     const std::vector<std::vector<int>>& groups = {}) {
  NcclRecord record(static_cast<int>(calls.size()));
  record.calls = calls;
  record.members.insert(record.members.end(), groups.begin(), groups.end());
  return nccl_fault(record);
}

}  // namespace

TEST_CASE(
    "two ranks may send to each other, as up and down are communicators of their own; a circle of three may "
    "not") {
  CHECK(fault_of({{started(1), receive(1), wait(0)}, {started(0), receive(0), wait(0)}}) == "");
  // Without a stream for sends each waits on its own until the other receives.
  CHECK(fault_of({{send(1), receive(1)}, {send(0), receive(0)}}) ==
        "for ever: rank 0: send of 8 on communicator 0 by its rank 0 to 1; rank 1: send of 8 on communicator "
        "0 by its rank 1 to 0");
  // Rank 1 is told to receive behind its send to 2, rank 2 receives from 0 first, and 0 sends to 1 first.
  const std::string circle =
      fault_of({{started(1), started(2)}, {started(2), receive(0)}, {receive(0), receive(1)}});
  CHECK(circle.find("for ever: rank 0: start_send of 8 on communicator 0 by its rank 0 to 1") == 0);
  CHECK(fault_of({{started(1), started(2)}, {started(2), receive(0)}, {receive(1), receive(0)}}) == "");
  CHECK(fault_of({{started(1), started(2)}, {receive(0), started(2)}, {receive(0), receive(1)}}) == "");
}

TEST_CASE("messages of a pair are received in the order of sending, or one is taken for another") {
  CHECK(fault_of({{started(1, 5), started(1, 6)}, {receive(0, 5), receive(0, 6)}}) == "");
  CHECK(fault_of({{started(1, 5), started(1, 6)}, {receive(0, 6), receive(0, 5)}}) ==
        "rank 0: start_send of 8 on communicator 0 by its rank 0 to 1, tag 5 arrives as receive of 8 on "
        "communicator 0 by its "
        "rank 1 from 0, tag 6");
}

TEST_CASE("rings of exchanges go on, and a collective has to be everybody's") {
  CHECK(fault_of({{exchange(1, 2)}, {exchange(2, 0)}, {exchange(0, 1)}}) == "");
  CHECK(fault_of({{exchange(1, 1)}, {collective("all_gather", 8)}}) != "");
  CHECK(fault_of({{collective("all_gather", 8)}, {collective("all_gather", 9)}}).find(" meets ") !=
        std::string::npos);
  CHECK(fault_of({{collective("all_gather", 8)}, {collective("all_reduce", 8)}}).find(" meets ") !=
        std::string::npos);
  // Two groups of the same ranks, in another order on each: the default stream runs one at a time.
  const std::vector<std::vector<int>> groups = {{0, 1}, {1, 0}};
  CHECK(fault_of({{collective("all_gather", 8, 1), collective("all_gather", 8, 2)},
                  {collective("all_gather", 8, 1), collective("all_gather", 8, 2)}},
                 groups) == "");
  CHECK(fault_of({{collective("all_gather", 8, 1), collective("all_gather", 8, 2)},
                  {collective("all_gather", 8, 2), collective("all_gather", 8, 1)}},
                 groups)
            .find("for ever: ") == 0);
}

TEST_CASE("calls are recorded by rank, with the groups that they split off") {
  NcclRecord record(4);
  equipoise::kernels::run_in_process(4, [&](equipoise::kernels::Communicator& threads) {
    const auto world = recorded(threads, record);
    const auto half = world->split(world->rank() / 2, -world->rank());  // the later rank comes first
    float mine = 1, sum = 0;
    half->all_reduce(&mine, &sum, 1);
    const auto message = half->rank() == 0 ? half->start_send(&mine, 1, 1, 9) : nullptr;
    if (half->rank() == 1) half->receive(&sum, 1, 0, 9);
  });
  REQUIRE(record.members.size() == 3);
  CHECK(std::vector<std::vector<int>>{record.members[1], record.members[2]} ==
        (record.members[1][0] == 1 ? std::vector<std::vector<int>>{{1, 0}, {3, 2}}
                                   : std::vector<std::vector<int>>{{3, 2}, {1, 0}}));
  CHECK(record.calls[0].size() == 3);
  CHECK(record.calls[1].size() == 4);  // with the wait for the message, when it goes
  CHECK(nccl_fault(record) == "");
  record.calls[0].pop_back();
  CHECK(nccl_fault(record).find("for ever: rank 1: start_send") == 0);
}

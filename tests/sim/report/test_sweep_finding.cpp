// What a sweep found, in one line.
#include <doctest/doctest.h>

#include "sim/report/sweep_finding.h"

using equipoise::sweep_finding;

TEST_CASE("the value that moves most is compared with the key's first, at equal other keys") {
  CHECK(sweep_finding({{{"parallel.context=2", "cluster.network.nic_GBps=25"}, 100},
                       {{"parallel.context=2", "cluster.network.nic_GBps=50"}, 120},
                       {{"parallel.context=4", "cluster.network.nic_GBps=25"}, 60},
                       {{"parallel.context=4", "cluster.network.nic_GBps=50"}, 84}}) ==
        "CP 4 costs 30 to 40 % a GPU against 2; NIC 50 GB/s adds 20 to 40 % a GPU against 25");
  CHECK(sweep_finding({{{"batch.steps=1"}, 100}, {{"batch.steps=2"}, 100.5}}) ==
        "steps moves tokens/s/GPU by less than 1 %");
  CHECK(sweep_finding({}).empty());
}

TEST_CASE("a row that the framework does not run is compared only where it runs none") {
  CHECK(sweep_finding({{{"parallel.context=1"}, 500, false},
                       {{"parallel.context=2"}, 100, true},
                       {{"parallel.context=4"}, 80, true}}) == "CP 4 costs 20 % a GPU against 2");
  CHECK(sweep_finding({{{"parallel.context=1"}, 500, false}, {{"parallel.context=2"}, 100, true}}).empty());
  CHECK(sweep_finding({{{"parallel.context=1"}, 100, false}, {{"parallel.context=2"}, 150, false}}) ==
        "CP 2 adds 50 % a GPU against 1");
}

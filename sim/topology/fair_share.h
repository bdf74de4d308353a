// Max-min fair rates of flows that share links, by progressive filling.
//
// All flows' rates grow together; when a link is full its flows stop there, the others go on, until every
// flow is stopped by a full link or by its own cap. The result is the only allocation in which no flow can
// get more without taking from one that has no more than it (Bertsekas and Gallager, Data Networks, 6.5.2).
//
// Example: links of 10. Flows A and B use link 1, B and C link 2, D link 2 too. Link 2 is the tightest: B, C,
// D get 10/3; A gets the rest of link 1, 20/3.
//
// A collective is one flow over all links of its ring, each counted as often as the ring crosses it: its
// members move at the pace of the slowest hop. O(rounds x (links + flow links)); a round stops at least one
// flow.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace equipoise {

using LinkId = std::uint32_t;

struct LinkUse {
  LinkId link = 0;
  std::int32_t times = 1;  // hops of the flow over this link
};

class FairShare {
 public:
  // Bytes per second of every link.
  explicit FairShare(std::vector<double> capacities) : capacity_(std::move(capacities)) {
    left_.resize(capacity_.size());
    claims_.resize(capacity_.size());
    given_.resize(capacity_.size());
    tight_.resize(capacity_.size());
  }

  struct Flow {
    std::span<const LinkUse> links;
    double cap = 0;   // most it could use alone, bytes per second
    double rate = 0;  // result
  };
  // Sets every flow's rate. Links that fill at the same level fill together, so that the rates do not depend,
  // not by a bit, on the order of flows or links. Flows without links get their cap.
  void share(std::span<Flow* const> flows);

  [[nodiscard]] std::span<const double> capacities() const { return capacity_; }

 private:
  std::vector<double> capacity_;
  std::vector<double> left_;          // scratch: not yet given away
  std::vector<std::int64_t> claims_;  // scratch: uses by flows that still grow
  std::vector<std::int64_t> given_;   // scratch: uses by flows that stop now
  std::vector<char> tight_;           // scratch: full now
  std::vector<LinkId> used_;          // scratch: links that some flow uses
  std::vector<char> stopped_;         // scratch
};

}  // namespace equipoise

// What a sweep found, as one line: by how much each swept key moves the tokens/s/GPU of the fastest row.
//
//   CP 4 costs 31 to 41 % a GPU against CP 1; nic_GBps 50 adds 17 to 19 % against 25
//
// A value of a key is compared with the key's first in cases that agree in all other keys, so that the range
// is over those. Of a key's values the one that moves most is named. Cases in which nothing runs are in no
// pair.
#pragma once

#include <string>
#include <vector>

namespace equipoise {

struct SweptCase {
  std::vector<std::string> assignments;  // "key=value", in the same order in every case
  double rate = 0;                       // tokens/s/GPU of its fastest row
};

// Empty where no two cases can be compared.
std::string sweep_finding(const std::vector<SweptCase>& cases);

}  // namespace equipoise

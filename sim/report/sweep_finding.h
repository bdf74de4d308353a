// What a sweep found, as one line: by how much each swept key moves the tokens/s/GPU of the fastest row.
//
//   CP 4 costs 31 to 41 % a GPU against 1; NIC 50 GB/s adds 17 to 19 % a GPU against 25
//
// A value of a key is compared with the key's first in cases that agree in all other keys, so that the range
// is over those. Of a key's values the one that moves most is named. Cases in which nothing runs are in no
// pair. Nor are those in which the framework runs no row, as long as it runs one in another case.
#pragma once

#include <string>
#include <vector>

namespace equipoise {

struct SweptCase {
  std::vector<std::string> assignments;  // "key=value", in the same order in every case
  double rate = 0;                       // tokens/s/GPU of its fastest row
  bool runs = true;                      // whether the framework runs that row
};

// A case by the short names of its keys, "CP 4, NIC 50 GB/s". Keys that have one short name keep their own.
std::string case_name(const std::vector<std::string>& assignments);

// Empty where no two cases can be compared.
std::string sweep_finding(std::vector<SweptCase> cases);

}  // namespace equipoise

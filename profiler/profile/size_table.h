// "size-table": a collective between processes of one machine, as times at sizes. No formula of a few
// parameters has its shape: the library sends short messages with their envelope, longer ones in pieces, yet
// longer ones by letting the receiver copy from the sender's memory, and costs jump by six where one way
// ends; beyond, the caches that hold the buffers end one after the other.
//
// With x = the bytes that the busiest link carries (size times nccl-tests' bus factor): a straight line
// between neighbouring sizes in log x and log time, the first time below the first size, in proportion to x
// beyond the last. Times never fall with size. Every rank beyond the second adds `rank_us`.
// Cost: O(log sizes).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "profiler/profile/cost_models.h"

namespace equipoise {

inline constexpr const char* kSizeTable = "size-table";

struct SizeTable {
  std::vector<double> bytes;  // on the busiest link, ascending; empty: no table
  std::vector<double> us;
  double rank_us = 0;
};

double table_seconds(const SizeTable& table, Collective kind, double bytes, int ranks);
// At a size on the busiest link, between two ranks.
double table_us(const SizeTable& table, double link_bytes);

// The bandwidth at the last size.
double bus_GBps(const SizeTable& table);

SizeTable size_table(const nlohmann::json& table, const std::string& where);
nlohmann::json to_json(const SizeTable& table);

}  // namespace equipoise

// What a sharding rule is told.
#pragma once

#include <cstdint>
#include <string_view>

namespace equipoise {

class Workload;

enum class Remainder { slots, tail, pad };  // per-document: where L mod 2c extra tokens go
inline constexpr std::string_view kRemainderNames[] = {"slots", "tail", "pad"};
// per-sequence: a length that 2c does not divide. adaptive always compares with `tail`, which could run.
enum class Pad { error, tail };
inline constexpr std::string_view kPadNames[] = {"error", "tail"};

struct ShardOptions {
  Remainder remainder = Remainder::slots;
  Pad pad = Pad::error;
  std::int64_t block = 128;            // heap-dispatch, snake: query block
  std::int64_t tile = 128;             // query tile of the attention kernel
  std::int64_t bucket_size = 0;        // dacp: tokens a CP rank
  bool rollback = true;                // dacp
  const Workload* workload = nullptr;  // dacp: cost(s); null is refused there
};

}  // namespace equipoise

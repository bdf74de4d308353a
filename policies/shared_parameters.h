// Keys that several policies use, and those that concern every one.
#pragma once

#include "policies/parameter.h"

namespace equipoise {

inline constexpr PackParameter kMicroBatches = parameter::integer<&PackOptions::micro_batches>(
    "micro_batches", 1, 1 << 24, "Micro-batches of a step over all lanes");
inline constexpr PackParameter kOversize = parameter::choice<&PackOptions::oversize>(
    "oversize", kOversizeNames, "What happens to a document above the policy's limit");
inline constexpr PackParameter kSeed =
    parameter::integer<&PackOptions::seed>("seed", 0, INT64_MAX, "Of shuffles");
inline constexpr PackParameter kShuffle =
    parameter::flag<&PackOptions::shuffle>("shuffle", "false keeps data order, and packs as created");

inline constexpr PackParameter kMaxTokens = parameter::integer<&PackOptions::max_tokens>(
    "max_tokens", 1, kLongestSize, "L_max, most tokens of a micro-batch; from the memory model by default");
inline constexpr PackParameter kBucketSize = parameter::integer<&PackOptions::bucket_size>(
    "bucket_size", 1, kLongestSize, "tokens of a CP rank; from the memory model by default");
inline constexpr PackParameter kRollback =
    parameter::flag<&PackOptions::rollback>("rollback", "false distributes the document at hand instead");
inline constexpr PackParameter kKeep = parameter::integer<&PackOptions::keep>(
    "keep", 1, 1 << 20, "K, chunks of a dependent group that keep activations");
inline constexpr PackParameter kStrictKeep = parameter::flag<&PackOptions::strict_keep>(
    "strict_keep", "state-aware-1f1b never holds K + 1 chunks of a group");

// What make_plan does around any policy.
inline constexpr PackParameter kOfEveryPolicy[] = {
    parameter::choice<&PackOptions::order>("order", kOrderNames, "Of the micro-batches in a lane"),
    parameter::flag<&PackOptions::verify>("verify", "Check the finished plan")};

}  // namespace equipoise

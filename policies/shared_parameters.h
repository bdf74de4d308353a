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

// What make_plan does around any policy.
inline constexpr PackParameter kOfEveryPolicy[] = {
    parameter::choice<&PackOptions::order>("order", kOrderNames, "Of the micro-batches in a lane"),
    parameter::flag<&PackOptions::verify>("verify", "Check the finished plan")};

}  // namespace equipoise

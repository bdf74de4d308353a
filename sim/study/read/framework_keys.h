// The keys of a study's `framework` that differ from a preset.
#pragma once

#include <span>

#include "sim/study/read/framework.h"
#include "sim/study/read/key_rows.h"

namespace equipoise {

std::span<const Key<Anchor>> anchor_keys();
std::span<const Key<Framework>> framework_keys();

namespace keys {

ordered_json framework_schema();

}  // namespace keys

}  // namespace equipoise

// DeepSpeed's JSON, torchtitan's TOML and verl's overrides.
#pragma once

#include "sim/export/export.h"

namespace equipoise {

Exporter deepspeed_exporter();
Exporter torchtitan_exporter();
Exporter verl_exporter();

}  // namespace equipoise

// Megatron-LM's arguments, and the same settings as overrides of a Megatron-Bridge (NeMo) recipe.
#pragma once

#include "sim/export/export.h"

namespace equipoise {

Exporter megatron_exporter();
Exporter nemo_exporter();

}  // namespace equipoise

// The nodes that tests of links share.
#pragma once

#include "sim/topology/fabric.h"

namespace equipoise::testing {

// Eight GPUs with NVLink of 450 GB/s and a NIC of 50 GB/s each.
inline FabricOptions hgx() {
  FabricOptions options;
  options.gpus_per_node = 8;
  options.nvlink_GBps = 450;
  options.nic_GBps = 50;
  return options;
}

}  // namespace equipoise::testing

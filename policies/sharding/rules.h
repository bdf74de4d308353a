// The sharding rules, one a file; policies/sharding/registry.cpp gives them their names.
#pragma once

#include "policies/sharding/sharding.h"

namespace equipoise {

void shard_per_sequence(const MicroBatch&, int ranks, const ShardOptions&, const AttentionCost&,
                        Sharding& out);
void shard_per_document(const MicroBatch&, int ranks, const ShardOptions&, const AttentionCost&,
                        Sharding& out);
void shard_contiguous(const MicroBatch&, int ranks, const ShardOptions&, const AttentionCost&, Sharding& out);
void shard_striped(const MicroBatch&, int ranks, const ShardOptions&, const AttentionCost&, Sharding& out);
void shard_adaptive(const MicroBatch&, int ranks, const ShardOptions&, const AttentionCost&, Sharding& out);
void shard_dacp(const MicroBatch&, int ranks, const ShardOptions&, const AttentionCost&, Sharding& out);
void shard_heap_dispatch(const MicroBatch&, int ranks, const ShardOptions&, const AttentionCost&,
                         Sharding& out);
void shard_snake(const MicroBatch&, int ranks, const ShardOptions&, const AttentionCost&, Sharding& out);

}  // namespace equipoise

// The one table of sharding rules, in help order.

#include <algorithm>
#include <span>
#include <utility>

#include "policies/base/text.h"
#include "policies/sharding/rules.h"
#include "policies/sharding/sharding.h"

namespace equipoise {
namespace {

using namespace parameter;

constexpr ShardParameter kPad = choice<&ShardOptions::pad>(
    "pad", kPadNames,
    "what happens to a length that 2 x CP does not divide, tail by default; error: the row is refused; tail: "
    "it is padded at its end");
constexpr ShardParameter kRemainder = choice<&ShardOptions::remainder>(
    "remainder", kRemainderNames,
    "where the tokens go that 2 x CP does not divide; slots: to chunks in turn, over all documents; tail: to "
    "ranks one by one; pad: each document is filled up, and the padding counted; policies that never cut "
    "documents leave room for it in their limits, and still accept a document that alone fills a limit");

constexpr ShardParameter kPerSequence[] = {kPad};
constexpr ShardParameter kPerDocument[] = {kRemainder};
constexpr ShardParameter kAdaptive[] = {
    kRemainder, integer<&ShardOptions::tile>("tile", 1, 1 << 20, "query tile of the attention kernel")};
constexpr ShardParameter kSimulated[] = {kPad, kRemainder};
// The words are those of packing, which derives the size (sim/study/row/plan_row.cpp).
constexpr ShardParameter bucket_size_parameter() {
  ShardParameter size = integer<&ShardOptions::bucket_size>("bucket_size", 1, kLongestSize, kBucketSizeHelp);
  size.words = kBucketSizeWords;
  return size;
}
constexpr ShardParameter kDacp[] = {bucket_size_parameter(),
                                    flag<&ShardOptions::rollback>("rollback", kRollbackHelp), kRemainder};
constexpr ShardParameter kBlock =
    integer<&ShardOptions::block>("block", 1, kLongestSize, "queries of a block");
constexpr ShardParameter kHeap[] = {
    kBlock,
    number<&ShardOptions::top_p>("top_p", 0, 1,
                                 "share of the CP ranks that are asked for each block, the least loaded "
                                 "first; the one that sees most of its keys already takes it; 0: one")};
constexpr ShardParameter kBlocks[] = {kBlock};
constexpr ShardParameter kPlacement[] = {
    kBlock,
    number<&ShardOptions::tolerance>(
        "tolerance", 0, 1,
        "how far above the mean a rank's causal pairs may be, as a share of it; as far as heap-dispatch's if "
        "that is more")};

constexpr ShardPolicy kRules[] = {
    {"per-sequence", "Megatron-LM, Llama 3", "2c equal chunks of the packed sequence, paired zig-zag",
     shard_per_sequence, kPerSequence},
    {"per-document", "WLB-LLM 5.2", "Every document cut into 2c chunks, paired zig-zag", shard_per_document,
     kPerDocument},
    {"contiguous", "before zig-zag", "One run of the packed sequence a rank", shard_contiguous},
    {.name = "striped",
     .paper = "Striped Attention",
     .summary = "Token t to rank t mod c",
     .shard = shard_striped,
     .deals_tokens = true},
    {"adaptive", "WLB-LLM 5.3", "Per micro-batch the predicted faster of per-sequence and per-document",
     shard_adaptive, kAdaptive, ShardChoice::adaptive},
    {"static-best", "WLB-LLM 6 (Fixed-4D)", "The faster of per-sequence and per-document for the whole run",
     shard_adaptive, kSimulated, ShardChoice::static_best},
    {"optimal", "WLB-LLM 5.3", "Both simulated, the faster taken: the bound for adaptive", shard_adaptive,
     kSimulated, ShardChoice::optimal},
    {"dacp", "Skrull Algorithm 1", "Short documents whole on one rank, long ones distributed", shard_dacp,
     kDacp, ShardChoice::fixed, true},
    {"heap-dispatch", "MagiAttention",
     "Query blocks, largest area first, to the least loaded rank with a slot", shard_heap_dispatch, kHeap},
    {"snake", "PTRR", "Query blocks sorted by area, dealt in snake order", shard_snake, kBlocks},
    {"block-placement", "DCP", "Query blocks where least K and V travel, within a balance of areas",
     shard_block_placement, kPlacement},
};

}  // namespace

std::span<const ShardPolicy> sharding_policies() {
  return kRules;
}

const ShardPolicy& sharding_policy(std::string_view name) {
  return find_named(kRules, name, "sharding");
}

double TileAttentionCost::seconds(std::span<const Segment> segments) const {
  double pairs = 0;
  for (const Segment& s : segments) {
    const auto padded = static_cast<double>((s.queries() + tile_ - 1) / tile_ * tile_);
    const auto before = static_cast<double>(s.q_begin - s.kv_begin);
    pairs += padded * before + padded * (padded + 1) / 2;
  }
  return pairs;
}

// Sorts segments that are a few sorted runs, as ranks put together leave them: neighbouring runs are merged
// until one is left.
static void merge_runs(std::span<Segment> segments) {
  const auto before = [](const Segment& a, const Segment& b) {
    return a.slice != b.slice ? a.slice < b.slice : a.q_begin < b.q_begin;
  };
  for (bool merged = true; merged;) {
    merged = false;
    for (auto run = segments.begin(); run != segments.end();) {
      const auto middle = std::is_sorted_until(run, segments.end(), before);
      const auto end = std::is_sorted_until(middle, segments.end(), before);
      merged = merged || middle != segments.end();
      std::inplace_merge(run, middle, end, before);
      run = end;
    }
  }
}

void join_touching(Sharding& sharding) {
  std::size_t kept = 0, next = 0;
  for (std::size_t r = 1; r < sharding.rank_begin.size(); ++r) {
    const std::size_t first = kept, end = sharding.rank_begin[r];
    merge_runs(std::span(sharding.segments).subspan(next, end - next));
    for (; next < end; ++next) {
      const Segment s = sharding.segments[next];
      Segment& last = sharding.segments[kept > first ? kept - 1 : kept];
      if (kept > first && last.slice == s.slice && last.q_end == s.q_begin)
        last.q_end = s.q_end;
      else
        sharding.segments[kept++] = s;
    }
    sharding.rank_begin[r] = static_cast<std::uint32_t>(kept);
  }
  sharding.segments.resize(kept);
}

}  // namespace equipoise

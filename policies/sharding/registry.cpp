// The one table of sharding rules, in help order.

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "policies/base/index.h"
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

namespace {

// Joins the segments of one rank in whatever order they come.
class Joiner {
 public:
  void add(const Segment& segment) {
    if (slices_.size() <= at(segment.slice)) slices_.resize(at(segment.slice) + 1);
    Runs& own = slices_[at(segment.slice)];
    const auto added = static_cast<std::uint32_t>(runs_.size());
    if (own.end == kNone) {
      runs_.push_back({segment, added});
      own = {added, added};
      return;
    }
    // Rules give every rank its pieces of a slice in one order, so the next piece touches the next run, or
    // the first one where a rank begins.
    for (const std::uint32_t run : {runs_[own.last].next, runs_[own.end].next})
      if (grows(runs_[run].joined, segment)) {
        own.last = run;
        return;
      }
    const auto follows = [&](std::uint32_t run) { return segment.q_begin > runs_[run].joined.q_begin; };
    const std::uint32_t before = follows(own.last) ? own.last : own.end;
    runs_.push_back({segment, std::exchange(runs_[before].next, added)});
    if (before == own.end && follows(before)) own.end = added;
    own.last = added;
  }

  // Appends them by slice and place, and forgets them.
  void take(std::vector<Segment>& out) {
    for (const Runs& own : slices_) {
      if (own.end == kNone) continue;
      of_slice_.clear();
      std::uint32_t run = own.end;
      do {
        run = runs_[run].next;
        of_slice_.push_back(runs_[run].joined);
      } while (run != own.end);
      if (!std::ranges::is_sorted(of_slice_, {}, &Segment::q_begin))
        std::ranges::sort(of_slice_, {}, &Segment::q_begin);
      for (std::size_t i = 0; i < of_slice_.size(); ++i)
        if (i == 0 || !grows(out.back(), of_slice_[i])) out.push_back(of_slice_[i]);
    }
    slices_.clear();
    runs_.clear();
  }

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  struct Run {
    Segment joined;
    std::uint32_t next;  // of its slice, mostly by place; the first one after the end
  };
  struct Runs {
    std::uint32_t end = kNone, last = kNone;  // last: the one that grew
  };

  // Whether the segment touched the run of its slice and sees keys from the same one on, and so is part of it
  // now.
  static bool grows(Segment& run, const Segment& segment) {
    if (run.kv_begin != segment.kv_begin) return false;
    if (run.q_end == segment.q_begin) {
      run.q_end = segment.q_end;
      return true;
    }
    if (run.q_begin != segment.q_end) return false;
    run.q_begin = segment.q_begin;
    return true;
  }

  std::vector<Runs> slices_;
  std::vector<Run> runs_;
  std::vector<Segment> of_slice_;
};

}  // namespace

void join_ranks(const Sharding& from, int each, Sharding& out) {
  thread_local Joiner joiner;
  const std::size_t ranks = from.rank_begin.size() - 1;
  out.segments.clear();
  out.rank_begin.assign(1, 0);
  for (std::size_t first = 0; first < ranks; first += at(each)) {
    const std::size_t begin = from.rank_begin[first], end = from.rank_begin[first + at(each)];
    for (const Segment& segment : std::span(from.segments).subspan(begin, end - begin)) joiner.add(segment);
    joiner.take(out.segments);
    out.rank_begin.push_back(static_cast<std::uint32_t>(out.segments.size()));
  }
}

void join_touching(Sharding& sharding) {
  thread_local Sharding joined;
  join_ranks(sharding, 1, joined);
  sharding.segments.swap(joined.segments);
  sharding.rank_begin.swap(joined.rank_begin);
}

}  // namespace equipoise

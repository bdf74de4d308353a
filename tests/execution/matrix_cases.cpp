#include "tests/execution/matrix_cases.h"

#include <algorithm>
#include <optional>

#include "policies/base/random.h"
#include "policies/policy.h"
#include "policies/sharding/sharding.h"
#include "sim/execution/executable_step.h"
#include "sim/schedule/schedule.h"
#include "tests/execution/equivalence_case.h"

namespace equipoise::testing {
namespace {

using nlohmann::json;

constexpr std::int64_t kChunk = 48;  // of a window of 128: divides no window, and no document but by chance
constexpr std::int64_t kOddChunk = 42;  // is padded by 2 x CP
constexpr int kSteps = 2;
constexpr int kHeads = 4;  // of tiny_study's model
constexpr int kMostRanks = 16;
constexpr const char* kForms[] = {"all-gather", "ring", "ulysses"};
constexpr const char* kRecompute[] = {"none", "selective", "full", "layers"};
constexpr const char* kOrders[] = {"tp-cp-ep-dp-pp", "cp-tp-ep-dp-pp", "dp-cp-ep-tp-pp", "pp-tp-cp-ep-dp"};

std::string number(std::int64_t n) {
  return std::to_string(n);
}

// Documents of one token, short ones, and ones of up to three windows, until both kinds of batch have enough.
std::vector<std::int64_t> random_lengths(std::uint64_t seed, std::int64_t window, std::int64_t tokens,
                                         std::int64_t documents) {
  SplitMix64 random(seed);
  std::vector<std::int64_t> lengths;
  std::int64_t sum = 0;
  const auto up_to = [&](std::int64_t most) {
    return 1 + static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(most));
  };
  while (sum < tokens || static_cast<std::int64_t>(lengths.size()) < documents) {
    const std::uint64_t kind = random.next() % 10;
    const std::int64_t length = kind < 2   ? 1
                                : kind < 7 ? up_to(window / 3)
                                : kind < 9 ? up_to(window)
                                           : up_to(3 * window);
    lengths.push_back(length);
    sum += length;
  }
  return lengths;
}

bool interleaves(const MatrixCase& c) {
  return (c.schedule == "interleaved-1f1b" || (c.schedule == "seq1f1b" && c.interleave)) && c.pipeline > 1;
}
// Whole documents instead of windows, where the policy takes them.
bool takes_documents(const MatrixCase& c) {
  return packing_policy(c.policy).batches == BatchKind::documents && c.seed % 2 == 0;
}

// Sizes that make a policy cut, place and group even documents this short. Keys that a policy does not know
// are of no effect.
json policy_entry(const MatrixCase& c) {
  json entry = {{"name", c.policy}, {"shard", c.shard}, {"schedule", c.schedule}, {"verify", true}};
  entry["order"] = kOrderNames[c.seed % 3];
  entry["remainder"] = kRemainderNames[c.seed / 3 % 3];
  entry["block"] = 16;
  const Policy& policy = packing_policy(c.policy);
  const bool by_degree = c.policy == "hybrid-cp" || c.policy == "dynamic-cp" || c.policy == "flexsp";
  if (policy.hard_limit != nullptr) entry["oversize"] = "split";
  if (by_degree || policy.derives == Derives::bucket_size)
    entry["bucket_size"] = 72;
  else if (c.shard == "dacp")
    entry["bucket_size"] = 2 * c.window / c.context;
  if (by_degree) entry["tokens_per_rank"] = 64;
  if (c.policy == "chunkflow")
    entry.update({{"chunk_size", (c.seed % 4 == 0 ? kOddChunk : kChunk) * c.window / 128},
                  {"keep", c.keep},
                  {"strict_keep", c.strict_keep}});
  if (c.exchange) entry["stage_attention_exchange"] = true;
  if (c.recompute == "by-stage") entry.update({{"recompute", "auto"}, {"recompute_by_stage", true}});
  if (c.policy == "sequence-slices")
    entry.update({{"slices", c.slices}, {"slice_by", c.seed % 3 == 0 ? "tokens" : "work"}});
  if (c.policy == "equipoise" && c.schedule == "seq1f1b") entry["start"] = "sequence-slices";
  if (c.policy == "wlb" || c.policy == "varlen-solver")
    entry.update({{"queues", 2}, {"max_tokens", c.window * 5 / 4}});
  if (c.policy.ends_with("-solver")) entry["node_limit"] = 20;
  if (c.policy == "isf") entry["threshold"] = c.window - 16;
  if (c.policy == "hbp") {
    entry["threshold"] = 16;
    entry["groups"] = number(c.window / 4) + ":1," + number(c.window) + ":" + number(c.context);
  }
  return entry;
}

json batch_of(const MatrixCase& c) {
  const int per_lane = std::max(2, c.pipeline);
  json batch = {{"context_window", c.window}, {"sequences_per_step", per_lane * c.data}, {"steps", kSteps}};
  if (takes_documents(c)) batch["documents_per_step"] = (per_lane + 3) * c.data;
  const bool wide = c.seed % 5 == 0 && !interleaves(c) && per_lane % 2 == 0;
  if (wide || packing_policy(c.policy).pads_documents) batch["micro_batch_size"] = 2;
  return batch;
}

}  // namespace

json MatrixCase::to_json() const {
  json parallel = {{"tensor", tensor}, {"context", context},   {"pipeline", pipeline}, {"data", data},
                   {"zero", zero},     {"context_comm", form}, {"order", order}};
  if (inner > 0) {
    parallel["context_inner"] = inner;
    parallel["context_placement"] = seed % 2 == 0 ? "inner-first" : "outer-first";
  }
  if (block > 0) {
    parallel["block"] = block;
    parallel["cast_stages"] = 1 + seed % 3;
    if (node_ranks > 0) parallel["cast_once_per_node"] = true;
  }
  if (form == "disaggregated") parallel["epsilon"] = 0.05 * static_cast<double>(seed % 4);
  const bool by_stage = recompute == "by-stage";  // a row's own
  parallel["recompute"] = recompute == "layers" ? json{{"layers", 3}} : json(by_stage ? "none" : recompute);
  if (interleaves(*this)) parallel["virtual_pipeline"] = 2;
  if (count_ends) parallel["count_embedding_and_head"] = true;
  const json batch = batch_of(*this);
  const std::int64_t tokens = kSteps * window * batch["sequences_per_step"].get<std::int64_t>();
  const std::int64_t documents = kSteps * batch.value("documents_per_step", std::int64_t{1});
  json study = tiny_study(parallel, policy_entry(*this), batch,
                          random_lengths(seed, window, takes_documents(*this) ? 1 : tokens, documents));
  study["model"]["tied_embeddings"] = tied;
  if (node_ranks > 0) study["cluster"]["gpus_per_node"] = tensor * node_ranks;
  if (by_stage)  // the reserve and 0.3 to 1.2 MB: for all layers, some or none
    study["cluster"]["memory_GB"] = 3.758097 + 0.0003 * static_cast<double>(1 + seed % 4);
  study["model"]["kv_heads"] = kv_heads;
  if (exchange)  // attention so short is worth its exchange only if it is slow
    study["framework"] = {{"preset", "execution"}, {"attention_slowdown", 100}};
  if (interleaves(*this) || pipeline == 3)
    study["model"]["layers"] = pipeline == 2 ? 4 : 2 * pipeline;
  else if (pipeline > 1 && seed % 4 == 1 && !exchange)
    study["model"]["layers"] = 5;  // one stage has more than the others
  return {{"study", study}, {"step", seed / 2 % 4}, {"normalizer", normalizer}, {"fold_tp", seed % 3 == 0}};
}

std::vector<std::string> MatrixCase::covers() const {
  const std::string cp = " at CP " + number(context);
  const std::string pp = " at PP " + number(pipeline);
  std::vector<std::string> seen = {
      std::string(group),
      "policy " + policy + cp,
      "sharding " + shard + cp,
      "schedule " + schedule + pp,
      "recompute " + recompute + pp,
      "TP " + number(tensor) + " of " + number(kv_heads) + " KV heads",
      "TP " + number(tensor) + cp + " by " + form + (inner > 0 ? " " + number(inner) : ""),
      "DP " + number(data) + ", ZeRO " + number(zero),
      std::string(tied ? "tied" : "untied") + pp,
      "normalizer " + normalizer,
      "order " + order};
  if (count_ends) seen.push_back("counted ends" + pp);
  if (context > 1) {
    seen.push_back("policy " + policy + " by " + form);
    seen.push_back("sharding " + shard + " by " + form);
  }
  if (policy == "sequence-slices") {
    seen.push_back("slices " + number(slices) + (interleave ? ", interleaved," : "") + pp);
    seen.push_back("slices " + number(slices) + cp + " by " + form);
  }
  if (policy == "chunkflow") {
    seen.push_back("keep " + number(keep) + pp);
    seen.push_back("keep " + number(keep) + cp + " by " + form);
    if (strict_keep) seen.push_back("strict keep" + pp);
  }
  return seen;
}

namespace {

// Collects cases; each has documents of its own.
class Matrix {
 public:
  explicit Matrix(std::uint64_t seed) : seed_(seed) {}
  void add(MatrixCase c) {
    c.seed = cases_.size() + kMostCases * seed_;
    if (c.schedule.empty()) c.schedule = packing_policy(c.policy).schedule;
    if (c.schedule.empty()) c.schedule = "1f1b";
    cases_.push_back(std::move(c));
  }
  // The case with every form, where there is a CP group.
  void add_forms(MatrixCase c) {
    for (const char* form : kForms) {
      if (c.context == 1 && form != kForms[0]) continue;
      c.form = form;
      add(c);
    }
  }
  std::vector<MatrixCase> take() { return std::move(cases_); }
  [[nodiscard]] std::size_t size() const { return cases_.size(); }

 private:
  static constexpr std::uint64_t kMostCases = 100'000;
  std::uint64_t seed_;
  std::vector<MatrixCase> cases_;
};

void add_packing(Matrix& matrix) {
  for (const Policy& policy : packing_policies())
    for (const char* shard : {"per-sequence", "per-document", "dacp"})
      for (const int context : kContexts)
        for (int repeat = 0; repeat < 2; ++repeat) {
          MatrixCase c;
          c.group = "packing";
          c.policy = policy.name;
          c.shard = shard;
          c.context = context;
          matrix.add_forms(c);
        }
}

void add_sharding(Matrix& matrix) {
  for (const ShardPolicy& shard : sharding_policies())
    for (const char* policy : {"plain", "wlb", "padded", "chunkflow", "sequence-slices", "skrull", "hbp"})
      for (const int context : {2, 4}) {
        MatrixCase c;
        c.group = "sharding";
        c.policy = policy;
        c.shard = shard.name;
        c.context = context;
        matrix.add_forms(c);
      }
}

std::vector<SchedulePolicy> runnable_schedules() {
  std::vector<SchedulePolicy> runnable;
  for (const SchedulePolicy& schedule : schedule_policies())
    if (!schedule.bidirectional) runnable.push_back(schedule);
  return runnable;
}

void add_schedules(Matrix& matrix) {
  for (const SchedulePolicy& schedule : runnable_schedules())
    for (const int pipeline : {1, 2, 4})
      for (const char* recompute : kRecompute)
        for (const char* policy : {"plain", "fixed-greedy", "ffd", "padded", "lpt"}) {
          MatrixCase c;
          c.group = "schedules";
          c.policy = policy;
          c.schedule = schedule.name;
          c.pipeline = pipeline;
          c.recompute = recompute;
          c.context = matrix.size() % 3 == 0 ? 2 : 1;
          c.form = kForms[c.context == 1 ? 0 : matrix.size() / 3 % 3];
          c.tied = matrix.size() % 2 == 0;
          c.count_ends = matrix.size() % 4 >= 2;
          matrix.add(c);
        }
}

void add_chunks(Matrix& matrix) {
  for (const int keep : {1, 2, 4})
    for (const int pipeline : {1, 2, 4})
      for (const int context : kContexts)
        for (const bool strict : {false, true})
          for (int repeat = 0; repeat < 2; ++repeat) {
            MatrixCase c;
            c.group = "chunks";
            c.policy = "chunkflow";
            c.keep = keep;
            c.strict_keep = strict;
            c.pipeline = pipeline;
            c.context = context;
            c.shard = repeat == 0 ? "per-sequence" : "per-document";
            c.recompute = kRecompute[matrix.size() / 4 % 4];
            matrix.add_forms(c);
          }
}

// Fewer slices than stages, as many and more.
void add_slices(Matrix& matrix) {
  for (const int slices : {1, 2, 4, 7})
    for (const int pipeline : {1, 2, 4})
      for (const int context : kContexts)
        for (const bool interleave : {false, true}) {
          if (interleave && pipeline == 1) continue;
          MatrixCase c;
          c.group = "slices";
          c.policy = "sequence-slices";
          c.slices = slices;
          c.interleave = interleave;
          c.pipeline = pipeline;
          c.context = context;
          c.shard = matrix.size() % 2 == 0 ? "per-sequence" : "per-document";
          c.recompute = matrix.size() % 3 == 0 ? "by-stage" : kRecompute[matrix.size() / 2 % 4];
          matrix.add_forms(c);
        }
}

// Slices that stay as they are behind documents that are packed anew.
void add_slices_packed_anew(Matrix& matrix) {
  for (const int pipeline : {1, 2, 4})
    for (const int context : {1, 2})
      for (const int data : {1, 2}) {
        MatrixCase c;
        c.group = "slices packed anew";
        c.policy = "equipoise";
        c.schedule = "seq1f1b";
        c.pipeline = pipeline;
        c.context = context;
        c.data = data;
        c.recompute = kRecompute[matrix.size() / 2 % 4];
        matrix.add(c);
      }
}

// Stages that even out their attention: documents cut into fewer slices than stages, as many and more, whole
// ones that share a micro-batch, and chunks of one length.
void add_stage_exchange(Matrix& matrix) {
  for (const int pipeline : {2, 4})
    for (const char* policy : {"sequence-slices", "plain", "chunkflow", "wlb"})
      for (const char* recompute : kRecompute)
        for (const bool interleave : {false, true}) {
          MatrixCase c;
          c.group = "stage exchange";
          c.policy = policy;
          c.schedule = "seq1f1b";
          c.exchange = true;
          c.window = 512;
          c.pipeline = pipeline;
          c.interleave = interleave;
          c.kv_heads = 1 << matrix.size() % 3;
          c.recompute = recompute;
          c.slices = static_cast<int>(2 + matrix.size() % 7);
          c.shard = matrix.size() % 2 == 0 ? "per-sequence" : "per-document";
          c.tensor = 1 + static_cast<int>(matrix.size() / 4 % 2);
          c.data = 1 + static_cast<int>(matrix.size() / 3 % 2);
          matrix.add(c);
        }
}

// The CP ranks of all stages as one pool, those without an op in it, too.
void add_stage_pools(Matrix& matrix) {
  for (const int pipeline : {2, 3, 4})
    for (const int context : {2, 3, 4})
      for (const char* policy : {"plain", "wlb", "lpt"})
        for (const char* recompute : {"none", "selective", "full"})
          for (const bool interleave : {false, true}) {
            if (pipeline * context > 12 || (interleave && pipeline * context > 6)) continue;
            MatrixCase c;
            c.group = "stage pools";
            c.policy = policy;
            c.schedule = "seq1f1b";
            c.form = "disaggregated";
            c.exchange = true;
            c.pipeline = pipeline;
            c.context = context;
            c.interleave = interleave;
            c.recompute = recompute;
            c.kv_heads = 1 << matrix.size() % 3;
            for (std::size_t i = matrix.size();; ++i)
              if (const ShardPolicy& rule = sharding_policies()[i % sharding_policies().size()];
                  !rule.deals_tokens) {
                c.shard = rule.name;
                break;
              }
            c.tensor = pipeline * context <= 4 ? 1 + static_cast<int>(matrix.size() % 2) : 1;
            c.data = pipeline * context <= 6 ? 1 + static_cast<int>(matrix.size() / 2 % 2) : 1;
            matrix.add(c);
          }
}

// Steps in lanes of other CP degrees than the layout's, some one after the other, with whole documents on
// ranks.
void add_own_degrees(Matrix& matrix) {
  for (const int pipeline : {1, 2})
    for (const int context : {1, 2, 4})
      for (const int data : {2, 4}) {
        if (context * data * pipeline > 8) continue;
        MatrixCase c;
        c.group = "own degrees";
        c.policy = "equipoise";
        c.pipeline = pipeline;
        c.context = context;
        c.data = data;
        matrix.add(c);
      }
}

void add_layouts(Matrix& matrix) {
  for (const int tensor : {1, 2, 4})
    for (const int kv_heads : {1, 2, 4})
      for (const int data : {1, 2})
        for (const int zero : {0, 1})
          for (const bool tied : {false, true})
            for (const char* recompute : kRecompute) {
              MatrixCase c;
              c.group = "layouts";
              c.policy = packing_policies()[matrix.size() % packing_policies().size()].name;
              c.shard = matrix.size() % 3 == 0 ? "per-document" : "per-sequence";
              c.tensor = tensor;
              c.kv_heads = kv_heads;
              c.data = data;
              c.zero = zero;
              c.tied = tied;
              c.recompute = recompute;
              c.pipeline = matrix.size() % 5 == 0 ? 2 : 1;
              c.context = kContexts[matrix.size() % 3];
              if (tensor * c.context * data * c.pipeline > kMostRanks) c.context = 1;
              c.form = kForms[c.context == 1 ? 0 : matrix.size() / 3 % 3];
              if (kHeads / tensor % c.context != 0) c.form = kForms[0];  // nothing for Ulysses to deal out
              matrix.add(c);
            }
}

// CP in two dimensions: inner groups of fewer, as many and more ranks than there are KV heads.
void add_nested(Matrix& matrix) {
  struct Degrees {
    int context, inner;
  };
  for (const char* form : {"ulysses-ring", "ulysses-all-gather"})
    for (const auto& [context, inner] : {Degrees{4, 2}, {8, 2}, {8, 4}, {6, 2}, {4, 1}, {4, 4}})
      for (const char* policy : {"plain", "wlb", "chunkflow", "skrull", "hbp", "dynamic-cp"})
        for (const int kv_heads : {1, 2, 4}) {
          MatrixCase c;
          c.group = "nested";
          const std::string_view name = policy;
          if (context == 6 && (name == "hbp" || name == "dynamic-cp")) continue;  // degrees are powers of two
          c.policy = policy;
          c.form = form;
          c.context = context;
          c.inner = inner;
          c.kv_heads = kv_heads;
          c.shard = sharding_policies()[matrix.size() % sharding_policies().size()].name;
          c.recompute = kRecompute[matrix.size() / 3 % 4];
          c.tensor = inner == 2 && context == 4 ? 1 + static_cast<int>(matrix.size() % 2) : 1;
          c.pipeline = context < 8 && c.tensor == 1 && matrix.size() % 3 == 0 ? 2 : 1;
          matrix.add(c);
        }
}

// Nothing where the policy takes powers of two only and the degree is none.
std::optional<MatrixCase> group_cast_case(const Matrix& matrix, int context, int block,
                                          std::string_view policy) {
  if (context % 3 == 0 && (policy == "hbp" || policy == "dynamic-cp")) return std::nullopt;
  MatrixCase c;
  c.group = "group-cast";
  c.policy = policy;
  c.form = "group-cast";
  c.context = context;
  c.block = block;
  c.kv_heads = 1 << matrix.size() % 3;
  c.shard = sharding_policies()[matrix.size() % sharding_policies().size()].name;
  c.tensor = context <= 4 ? 1 + static_cast<int>(matrix.size() % 2) : 1;
  c.pipeline = context < 8 && c.tensor == 1 && matrix.size() % 3 == 0 ? 2 : 1;
  return c;
}

// Blocks of a token, of fewer tokens than a rank has, and of more than a micro-batch.
void add_group_cast(Matrix& matrix) {
  for (const int context : {2, 3, 4, 6, 8})
    for (const int block : {1, 16, 512})
      for (const char* policy : {"plain", "wlb", "padded", "chunkflow", "skrull", "hbp", "dynamic-cp"})
        for (int repeat = 0; repeat < 2; ++repeat)
          if (auto c = group_cast_case(matrix, context, block, policy)) {
            c->recompute = kRecompute[matrix.size() / 3 % 4];
            matrix.add(*c);
          }
}

// A CP group on two nodes of two, three nodes of two, and two of four ranks.
void add_cast_once_per_node(Matrix& matrix) {
  for (const int context : {4, 6, 8})
    for (const int block : {1, 16})
      for (const char* policy : {"plain", "wlb", "chunkflow", "skrull", "hbp", "dynamic-cp"})
        for (int repeat = 0; repeat < 2; ++repeat)
          if (auto c = group_cast_case(matrix, context, block, policy)) {
            c->group = "cast-once-per-node";
            c->node_ranks = context == 8 ? 4 : 2;
            if (context > 4) c->pipeline = 1;
            matrix.add(*c);
          }
}

// Attention on ranks that do not hold its tokens: whole documents on some, runs of them, or shares of all.
void add_disaggregated(Matrix& matrix) {
  for (const int context : {2, 3, 4, 6, 8})
    for (const char* policy : {"plain", "wlb", "padded", "skrull", "hbp", "dynamic-cp"})
      for (const ShardPolicy& rule : sharding_policies()) {
        MatrixCase c;
        c.group = "disaggregated";
        const std::string_view name = policy;
        if (rule.deals_tokens) continue;
        if (context % 3 == 0 && (name == "hbp" || name == "dynamic-cp")) continue;  // powers of two
        c.policy = policy;
        c.form = "disaggregated";
        c.context = context;
        c.kv_heads = 1 << matrix.size() % 3;
        c.shard = rule.name;
        c.recompute = kRecompute[matrix.size() / 3 % 4];
        c.tensor = context <= 4 ? 1 + static_cast<int>(matrix.size() % 2) : 1;
        c.pipeline = context < 8 && c.tensor == 1 && matrix.size() % 3 == 0 ? 2 : 1;
        matrix.add(c);
      }
}

MatrixCase four_dimensions(const char* group) {
  MatrixCase c;
  c.group = group;
  c.tensor = c.context = c.pipeline = c.data = 2;
  return c;
}

void add_all_four(Matrix& matrix) {
  for (const Policy& policy : packing_policies()) {
    MatrixCase c = four_dimensions("4D");
    c.policy = policy.name;
    c.shard = policy.shard;
    c.order = kOrders[matrix.size() % std::size(kOrders)];
    matrix.add_forms(c);
  }
  for (const SchedulePolicy& schedule : runnable_schedules())
    for (const char* recompute : kRecompute)
      for (const bool tied : {false, true}) {
        MatrixCase c = four_dimensions("4D");
        c.schedule = schedule.name;
        c.recompute = recompute;
        c.tied = tied;
        c.kv_heads = 1;
        c.zero = matrix.size() % 2 == 0 ? 0 : 1;
        c.form = kForms[matrix.size() / 2 % 3];
        c.order = kOrders[matrix.size() % std::size(kOrders)];
        matrix.add(c);
      }
}

void add_losses(Matrix& matrix) {
  for (const std::string_view normalizer : execution::kLossNormalizerNames)
    for (const char* policy : {"plain", "padded", "chunkflow", "hbp", "hybrid-cp"}) {
      MatrixCase c;
      c.group = "losses";
      c.policy = policy;
      c.normalizer = normalizer;
      c.data = 2;
      c.context = 2;
      matrix.add(c);
    }
}

}  // namespace

std::vector<MatrixCase> equivalence_matrix(std::uint64_t seed) {
  Matrix matrix(seed);
  add_packing(matrix);
  add_sharding(matrix);
  add_schedules(matrix);
  add_chunks(matrix);
  add_slices(matrix);
  add_layouts(matrix);
  add_all_four(matrix);
  add_losses(matrix);
  add_nested(matrix);
  add_group_cast(matrix);
  add_disaggregated(matrix);
  add_slices_packed_anew(matrix);
  add_stage_exchange(matrix);
  add_stage_pools(matrix);
  add_own_degrees(matrix);
  add_cast_once_per_node(matrix);
  return matrix.take();
}

}  // namespace equipoise::testing

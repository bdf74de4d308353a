// Each fault that a plan or a rank could have makes the equivalence check fail, well above its limit, where
// the same case without it passes: what the matrix finds equal was compared with something.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "tests/execution/equivalence_case.h"
#include "tests/kernels/wrapped_backend.h"

using namespace equipoise;
using namespace equipoise::testing;
using execution::ExecutableStep;
using nlohmann::json;

namespace {

struct Options : EquivalenceOptions {
  explicit Options(ChangeStep by_step) { change = std::move(by_step); }
  explicit Options(WrapBackend by_backend) { wrap = std::move(by_backend); }
};

void check_found(const json& study, const EquivalenceOptions& mutation) {
  const EquivalenceResult right = run_equivalence(study);
  REQUIRE(right.refused == "");
  CHECK(right.equivalence.holds());
  const execution::Equivalence wrong = run_equivalence(study, mutation).equivalence;
  CAPTURE(wrong.worst_tensor);
  CAPTURE(wrong.loss_error);
  CHECK_FALSE(wrong.holds());
  CHECK(std::max(wrong.worst_error, wrong.loss_error) > 10 * wrong.limit);
}

// Two windows of 128: documents of 40 and 88 tokens, of 1, 100 and 27.
json windows(const json& parallel, const char* shard = "per-document") {
  return tiny_study(parallel, {{"name", "plain"}, {"shard", shard}}, {{"sequences_per_step", 2}},
                    {40, 88, 1, 100, 27});
}
// Three chunks of one document, then a chunk of two; the first two of the three are computed again.
json chunks(const json& parallel = json::object()) {
  return tiny_study(parallel, {{"name", "chunkflow"}, {"chunk_size", 48}, {"keep", 1}},
                    {{"documents_per_step", 3}}, {130, 20, 25});
}

template <class Faulty>
WrapBackend on_every_rank() {
  return [](std::unique_ptr<kernels::Backend>, int) { return std::make_unique<Faulty>(); };
}

Sharding& first_sharding(ExecutableStep& step) {
  return step.sharding[0][0];
}

}  // namespace

TEST_CASE("the check finds a token that nobody computes") {
  check_found(windows({{"context", 2}}),
              Options([](ExecutableStep& step) { --first_sharding(step).segments.back().q_end; }));
}

TEST_CASE("the check finds a token that two ranks compute") {
  // Contiguous: rank 1 begins one token before rank 0 ends.
  check_found(windows({{"context", 2}}, "contiguous"), Options([](ExecutableStep& step) {
                Sharding& sharding = first_sharding(step);
                --sharding.segments[sharding.rank_begin[1]].q_begin;
              }));
}

TEST_CASE("the check finds a document whose loss is skipped") {
  // The weight of one token among 256.
  check_found(windows(json::object()), Options([](ExecutableStep& step) { step.weights[0][1][0] = 0; }));
}

TEST_CASE("the check finds a loss that is normalised by micro-batches of unequal size") {
  check_found(chunks(), Options([](ExecutableStep& step) {
                const std::vector<MicroBatch>& all = step.step.lanes[0].micro_batches;
                for (std::size_t j = 0; j < all.size(); ++j)
                  for (double& weight : step.weights[0][j])
                    weight = 1.0 / static_cast<double>(all[j].tokens()) / static_cast<double>(all.size());
              }));
}

TEST_CASE("the check finds a wrong target") {
  // The first document seems to go on: its last token should predict a token, not the end.
  check_found(windows(json::object()), Options([](ExecutableStep& step) {
                step.documents = execution::DocumentLengths({41, 88, 1, 100, 27});
              }));
}

TEST_CASE("the check finds a chunk that is computed again twice") {
  check_found(chunks(), Options([](ExecutableStep& step) {
                std::vector<ScheduledOp>& ops = step.program.lanes[0].stages[0];
                const auto again = std::find_if(ops.begin(), ops.end(), [](const ScheduledOp& scheduled) {
                  return scheduled.op.kind == OpKind::R;
                });
                REQUIRE(again != ops.end());
                const ScheduledOp twice = *again;
                ops.insert(again, twice);
              }));
}

namespace {

// Every document but the first of a call sees the last key of the one before it.
class LeakyMask final : public kernels::WrappedBackend {
 public:
  std::unique_ptr<kernels::AttentionPlan> plan_attention(const kernels::AttentionShape& shape,
                                                         std::span<const kernels::Piece> pieces,
                                                         kernels::Pass pass,
                                                         const kernels::AttentionRows& rows) override {
    std::vector<kernels::Piece> leaky(pieces.begin(), pieces.end());
    for (kernels::Piece& piece : leaky)
      if (piece.key_begin > 0) {
        --piece.key_begin;
        ++piece.keys;
      }
    return WrappedBackend::plan_attention(shape, leaky, pass, rows);
  }
};

// What later chunks found for the keys of earlier ones is not added.
class ForgetfulChunks final : public kernels::WrappedBackend {
 public:
  void run(const kernels::RowCall& call) override {
    const auto* sum = std::get_if<kernels::ResidualAdd>(&call);
    if (sum == nullptr || sum->out != sum->x) WrappedBackend::run(call);
  }
};

// The second half of the rows is three positions behind. (Whole documents may be anywhere: rotary
// embeddings see differences only.)
class WrongPositions final : public kernels::WrappedBackend {
 public:
  void run(const kernels::RowCall& call) override {
    const auto* rope = std::get_if<kernels::Rope>(&call);
    if (rope == nullptr) return WrappedBackend::run(call);
    const auto rows = static_cast<std::size_t>(rope->shape.rows);
    std::vector<std::int32_t> positions(rope->positions, rope->positions + rows);
    for (std::size_t row = rows / 2; row < rows; ++row) positions[row] = std::max(0, positions[row] - 3);
    kernels::Rope wrong = *rope;
    wrong.positions = positions.data();
    WrappedBackend::run(wrong);
  }
};

// The gradients of norms stay what they were.
class NoNormGradients final : public kernels::WrappedBackend {
 public:
  void run(const kernels::RowCall& call) override {
    const auto* norm = std::get_if<kernels::RmsNormBackward>(&call);
    if (norm == nullptr) return WrappedBackend::run(call);
    std::vector<float> nowhere(static_cast<std::size_t>(norm->shape.columns));
    kernels::RmsNormBackward wrong = *norm;
    wrong.weight_gradient = nowhere.data();
    WrappedBackend::run(wrong);
  }
};

// Ring: instead of the block that arrived, the rank attends to its own once more.
class StuckRing final : public kernels::WrappedBackend {
 public:
  std::unique_ptr<kernels::AttentionPlan> plan_attention(const kernels::AttentionShape& shape,
                                                         std::span<const kernels::Piece> pieces,
                                                         kernels::Pass pass,
                                                         const kernels::AttentionRows& rows) override {
    auto plan = WrappedBackend::plan_attention(shape, pieces, pass, rows);
    Call& call = calls_[plan.get()];
    call.arrived = pieces.front().full;
    call.row_floats = static_cast<std::size_t>(shape.kv_heads * shape.head_dim);
    for (const kernels::Piece& piece : pieces)
      call.key_rows = std::max(call.key_rows, static_cast<std::size_t>(piece.key_begin + piece.keys));
    return plan;
  }
  void attention_forward(kernels::AttentionPlan& plan, const void* query, const void* key, const void* value,
                         void* out, float* log_sum) override {
    const Call& call = calls_.at(&plan);
    const std::size_t floats = call.key_rows * call.row_floats;
    if (call.arrived) {
      own_key_.resize(std::max(own_key_.size(), floats));
      own_value_.resize(own_key_.size());
      return WrappedBackend::attention_forward(plan, query, own_key_.data(), own_value_.data(), out, log_sum);
    }
    own_key_.assign(static_cast<const float*>(key), static_cast<const float*>(key) + floats);
    own_value_.assign(static_cast<const float*>(value), static_cast<const float*>(value) + floats);
    WrappedBackend::attention_forward(plan, query, key, value, out, log_sum);
  }

 private:
  struct Call {
    bool arrived = false;
    std::size_t key_rows = 0, row_floats = 0;
  };
  std::map<const kernels::AttentionPlan*, Call> calls_;
  std::vector<float> own_key_, own_value_;
};

}  // namespace

TEST_CASE("the check finds a mask that lets a document see one token of another") {
  for (const char* form : {"all-gather", "ulysses"}) {
    CAPTURE(form);
    check_found(windows({{"context", 2}, {"context_comm", form}}), Options(on_every_rank<LeakyMask>()));
  }
  check_found(windows(json::object()), Options(on_every_rank<LeakyMask>()));
}

TEST_CASE("the check finds gradients of K and V that do not reach earlier chunks") {
  for (const int context : {1, 2}) {
    CAPTURE(context);
    check_found(chunks({{"context", context}}), Options(on_every_rank<ForgetfulChunks>()));
  }
}

TEST_CASE("the check finds a query and a key that stages leave to each other") {
  // Two stages, documents in slices.
  json study = tiny_study({{"pipeline", 2}}, {{"name", "slimpipe"}, {"slices", 4}, {"shard", "per-sequence"}},
                          {{"context_window", 1024}, {"documents_per_step", 3}}, {1200, 350, 800});
  study["framework"] = {{"preset", "execution"}, {"attention_slowdown", 100}};
  for (const bool keys : {true, false})
    for (const std::size_t pass : {0, 1}) {
      study["model"]["kv_heads"] = keys ? 4 : 1;  // which of the two are fewer bytes
      CAPTURE(keys);
      CAPTURE(pass);
      check_found(study, Options([&](ExecutableStep& step) {
                    execution::LaneTicks& lane = step.ticks.at(0);
                    for (std::size_t t = 0; t < lane.ticks.size(); ++t) {
                      const TickOp first = lane.first[t];
                      const OpKind kind = step.program.lanes[0].stages[first.stage][first.position].op.kind;
                      if ((kind == OpKind::B) != (pass == 1)) continue;
                      for (StageMove& move : lane.ticks[t].moves[pass])
                        if (move.keys == keys && move.begin == 0) {
                          ++move.begin;
                          return;
                        }
                    }
                    FAIL("no such move");
                  }));
    }
}

TEST_CASE("the check finds a part of a document at wrong positions") {
  check_found(windows(json::object()), Options(on_every_rank<WrongPositions>()));
}

TEST_CASE("the check finds the gradient of a norm that one TP rank does not add") {
  const WrapBackend on_second = [](std::unique_ptr<kernels::Backend> real, int rank) {
    return rank == 1 ? std::unique_ptr<kernels::Backend>(std::make_unique<NoNormGradients>())
                     : std::move(real);
  };
  check_found(windows({{"tensor", 2}}), Options(on_second));
}

TEST_CASE("the check finds a ring in which a block is used twice") {
  check_found(windows({{"context", 2}, {"context_comm", "ring"}}), Options(on_every_rank<StuckRing>()));
}

TEST_CASE("the check finds one replica's gradients that are missing") {
  // Its losses weigh nothing.
  check_found(windows({{"data", 2}}), Options([](ExecutableStep& step) {
                for (std::vector<double>& of_slices : step.weights[1])
                  std::fill(of_slices.begin(), of_slices.end(), 0);
              }));
}

// Ring attention from its parts: a rank's queries against their own keys by a causal piece, against an
// earlier block by a full one, joined; then the gradients of either part from the joined output. Everything
// must equal one causal call over all keys.
#include "tests/kernels/ring_check.h"

#include <string>

#include "kernels/checks.h"
#include "kernels/ops.h"

namespace equipoise::kernels {
namespace {

constexpr std::int64_t kBefore = 90;  // keys of the earlier block
constexpr std::int64_t kOwn = 110;    // queries, and the keys among themselves
constexpr Piece kWhole{0, kOwn, 0, kBefore + kOwn};

// Where a part's keys lie in the buffers of the whole: parts are calls on buffers of their own.
struct Part {
  Piece piece;
  std::int64_t first_key = 0;
};
constexpr Part kParts[] = {{{0, kOwn, 0, kOwn, false}, kBefore}, {{0, kOwn, 0, kBefore, true}, 0}};

struct Tensors {
  Input query;
  Input key;
  Input value;
  Input out_gradient;
};

const void* from(const Buffer& buffer, std::int64_t elements, ElementType type) {
  return static_cast<const char*>(buffer.data()) + elements * static_cast<std::int64_t>(bytes_of(type));
}
void* to(Buffer& buffer, std::int64_t elements, ElementType type) {
  return static_cast<char*>(buffer.data()) + elements * static_cast<std::int64_t>(bytes_of(type));
}

class RingCheck {
 public:
  RingCheck(Checker& checker, const AttentionShape& shape)
      : checker_(checker),
        backend_(checker.backend()),
        type_(backend_.element_type()),
        shape_(shape),
        queries_(kOwn * shape.query_heads * shape.head_dim),
        key_row_(std::int64_t{shape.kv_heads} * shape.head_dim),
        what_(std::to_string(shape.query_heads) + "/" + std::to_string(shape.kv_heads) + " heads of " +
              std::to_string(shape.head_dim) + ", two blocks of keys"),
        in_{checker.input(queries_, 4.0F), checker.input((kBefore + kOwn) * key_row_),
            checker.input((kBefore + kOwn) * key_row_), checker.input(queries_)},
        out_(checker.output(queries_)),
        log_sum_(checker.statistics(kOwn * shape.query_heads)) {}

  void forward() {
    run_forward(kParts[0], out_, log_sum_);
    const Buffer part = checker_.output(queries_);
    const Buffer part_log_sum = checker_.statistics(kOwn * shape_.query_heads);
    run_forward(kParts[1], part, part_log_sum);
    backend_.run(AttentionMerge{kOwn, shape_.query_heads, shape_.head_dim, out_.data(), log_sum_.floats(),
                                part.data(), part_log_sum.floats()});
    const auto expected =
        reference::attention(shape_, {&kWhole, 1}, in_.query.values, in_.key.values, in_.value.values);
    checker_.compare("ring_attention_forward", "out", what_, expected.out, out_,
                     checker_.limits().attention_forward);
    checker_.compare_f32("ring_attention_forward", "log_sum", what_, expected.log_sum, log_sum_);
  }

  // After forward(): the parts' gradients of the queries are added, those of the keys are each other's rest.
  void backward() {
    Buffer dq = checker_.output(queries_);
    Buffer dq_part = checker_.output(queries_);
    Buffer dk = checker_.output((kBefore + kOwn) * key_row_);
    Buffer dv = checker_.output((kBefore + kOwn) * key_row_);
    for (const Part& part : kParts) {
      const std::int64_t first = part.first_key * key_row_;
      const auto plan = backend_.plan_attention(shape_, {&part.piece, 1}, Pass::backward);
      backend_.attention_backward(
          *plan, in_.query.device.data(), from(in_.key.device, first, type_),
          from(in_.value.device, first, type_), out_.data(), log_sum_.floats(),
          in_.out_gradient.device.data(),
          {&part == kParts ? dq.data() : dq_part.data(), to(dk, first, type_), to(dv, first, type_)});
    }
    backend_.run(ResidualAdd{queries_, dq.data(), dq_part.data(), dq.data()});
    const auto expected = reference::attention_gradient(
        shape_, {&kWhole, 1}, in_.query.values, in_.key.values, in_.value.values, in_.out_gradient.values);
    const double limit = checker_.limits().attention_backward;
    checker_.compare("ring_attention_backward", "query_gradient", what_, expected.query, dq, limit);
    checker_.compare("ring_attention_backward", "key_gradient", what_, expected.key, dk, limit);
    checker_.compare("ring_attention_backward", "value_gradient", what_, expected.value, dv, limit);
  }

 private:
  void run_forward(const Part& part, const Buffer& out, const Buffer& log_sum) {
    const std::int64_t first = part.first_key * key_row_;
    const auto plan = backend_.plan_attention(shape_, {&part.piece, 1}, Pass::forward);
    backend_.attention_forward(*plan, in_.query.device.data(), from(in_.key.device, first, type_),
                               from(in_.value.device, first, type_), out.data(), log_sum.floats());
  }

  Checker& checker_;
  Backend& backend_;
  ElementType type_;
  AttentionShape shape_;
  std::int64_t queries_;  // elements
  std::int64_t key_row_;  // elements
  std::string what_;
  Tensors in_;
  Buffer out_;
  Buffer log_sum_;
};

}  // namespace

std::vector<CheckResult> check_ring_attention(Backend& backend, std::uint64_t seed) {
  Checker checker(backend, seed);
  for (const AttentionShape& shape : {AttentionShape{64, 2, 2}, AttentionShape{128, 8, 2}}) {
    RingCheck check(checker, shape);
    check.forward();
    check.backward();
  }
  return checker.take();
}

}  // namespace equipoise::kernels

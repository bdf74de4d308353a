// Row-wise ops in f32: each input is read once and each output written once (the backward of RMSNorm and both
// passes of the cross-entropy read their row twice, from cache).
#include "kernels/cpu/isa.h"
#include "kernels/cpu/vector.h"

namespace equipoise::kernels::EQUIPOISE_ISA {
namespace {

// The last, partial vector of a row; missing lanes read as `filler`.
Vector load_some(const float* source, std::int64_t count, float filler) {
  Vector value = broadcast(filler);
  for (std::int64_t lane = 0; lane < count; ++lane) value[lane] = source[lane];
  return value;
}

void store_some(float* target, Vector value, std::int64_t count) {
  for (std::int64_t lane = 0; lane < count; ++lane) target[lane] = value[lane];
}

// Calls body(read, write) for every vector of a row. Lanes beyond the row's end read as 0 and are not
// written. That is correct for sums of products and for maps, but not for sums of exponentials.
template <class Body>
void for_vectors(std::int64_t columns, Body body) {
  std::int64_t j = 0;
  for (; j + kLanes <= columns; j += kLanes)
    body([j](const float* row) { return load(row + j); }, [j](float* row, Vector v) { store(row + j, v); });
  const std::int64_t rest = columns - j;
  if (rest > 0) {
    body([j, rest](const float* row) { return load_some(row + j, rest, 0.0F); },
         [j, rest](float* row, Vector v) { store_some(row + j, v, rest); });
  }
}

float dot(const float* a, const float* b, std::int64_t columns) {
  Vector sum = broadcast(0.0F);
  for_vectors(columns, [&](auto read, auto) { sum += read(a) * read(b); });
  return sum_of(sum);
}

Vector sigmoid(Vector x) {
  return 1.0F / (1.0F + exp_of(-larger(x, broadcast(-87.0F))));
}

const float* in(const void* elements) {
  return static_cast<const float*>(elements);
}
float* to(void* elements) {
  return static_cast<float*>(elements);
}

void run(const RmsNorm& call) {
  const Rows shape = call.shape;
  const float* weight = in(call.weight);
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* x = in(call.x) + row * shape.columns;
    float* out = to(call.out) + row * shape.columns;
    const float mean = dot(x, x, shape.columns) / static_cast<float>(shape.columns);
    const float inverse = 1.0F / __builtin_sqrtf(mean + call.epsilon);
    call.inverse_rms[row] = inverse;
    for_vectors(shape.columns, [&](auto read, auto write) { write(out, read(x) * inverse * read(weight)); });
  }
}

void run(const RmsNormBackward& call) {
  const Rows shape = call.shape;
  const float* weight = in(call.weight);
  float* dweight = call.weight_gradient;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* x = in(call.x) + row * shape.columns;
    const float* gradient = in(call.out_gradient) + row * shape.columns;
    float* dx = to(call.x_gradient) + row * shape.columns;
    const float inverse = call.inverse_rms[row];
    Vector sum = broadcast(0.0F);
    for_vectors(shape.columns, [&](auto read, auto write) {
      const Vector product = read(x) * read(gradient);
      sum += product * read(weight);
      write(dweight, read(dweight) + product * inverse);
    });
    const float pull = sum_of(sum) * inverse * inverse / static_cast<float>(shape.columns);
    for_vectors(shape.columns, [&](auto read, auto write) {
      write(dx, (read(gradient) * read(weight) - read(x) * pull) * inverse);
    });
  }
}

void run(const Rope& call) {
  const RopeShape shape = call.shape;
  const int half = shape.head_dim / 2;
  const float direction = call.inverse ? -1.0F : 1.0F;
  float* x = to(call.x);
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* angle = call.table + static_cast<std::int64_t>(call.positions[row]) * shape.head_dim;
    for (int head = 0; head < shape.heads; ++head) {
      float* low = x + (row * shape.heads + head) * shape.head_dim;
      float* high = low + half;
      for (int i = 0; i < half; ++i) {
        const float cosine = angle[2 * i];
        const float sine = angle[2 * i + 1] * direction;
        const float a = low[i];
        const float b = high[i];
        low[i] = a * cosine - b * sine;
        high[i] = b * cosine + a * sine;
      }
    }
  }
}

void run(const Swiglu& call) {
  const Rows shape = call.shape;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* gate = in(call.gate_up) + row * 2 * shape.columns;
    const float* up = gate + shape.columns;
    float* out = to(call.out) + row * shape.columns;
    for_vectors(shape.columns, [&](auto read, auto write) {
      const Vector g = read(gate);
      write(out, g * sigmoid(g) * read(up));
    });
  }
}

void run(const SwigluBackward& call) {
  const Rows shape = call.shape;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* gate = in(call.gate_up) + row * 2 * shape.columns;
    const float* up = gate + shape.columns;
    const float* gradient = in(call.out_gradient) + row * shape.columns;
    float* dgate = to(call.gate_up_gradient) + row * 2 * shape.columns;
    float* dup = dgate + shape.columns;
    for_vectors(shape.columns, [&](auto read, auto write) {
      const Vector g = read(gate);
      const Vector s = sigmoid(g);
      const Vector silu = g * s;
      const Vector d = read(gradient);
      write(dgate, d * read(up) * (s + silu * (1.0F - s)));
      write(dup, d * silu);
    });
  }
}

void run(const Adam& call) {
  const AdamStep& step = call.step;
  const float* gradient = in(call.gradient);
  float* master = call.master;
  float* mean = call.mean;
  float* square = call.square;
  float* weights = to(call.weights);
  for (std::int64_t i = 0; i < step.elements; ++i) {
    const float g = gradient[i];
    mean[i] = step.beta1 * mean[i] + (1.0F - step.beta1) * g;
    square[i] = step.beta2 * square[i] + (1.0F - step.beta2) * g * g;
    master[i] -= step.rate * mean[i] / (__builtin_sqrtf(square[i]) + step.epsilon);
    weights[i] = master[i];
  }
}

void run(const ResidualAdd& call) {
  const float* x = in(call.x);
  const float* residual = in(call.residual);
  float* out = to(call.out);
  for_vectors(call.elements, [&](auto read, auto write) { write(out, read(x) + read(residual)); });
}

void run(const CrossEntropy& call) {
  const Rows shape = call.shape;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* logits = in(call.logits) + row * shape.columns;
    Vector high = broadcast(logits[0]);
    std::int64_t j = 0;
    for (; j + kLanes <= shape.columns; j += kLanes) high = larger(high, load(logits + j));
    float highest = largest_of(high);
    for (; j < shape.columns; ++j) highest = logits[j] > highest ? logits[j] : highest;
    Vector sum = broadcast(0.0F);
    for (j = 0; j + kLanes <= shape.columns; j += kLanes) sum += exp_of(load(logits + j) - highest);
    if (j < shape.columns) {
      const Vector rest = exp_of(load_some(logits + j, shape.columns - j, highest) - highest);
      for (std::int64_t lane = 0; lane < shape.columns - j; ++lane) sum[lane] += rest[lane];
    }
    call.log_sum[row] = highest + __builtin_logf(sum_of(sum));
    const std::int64_t target = call.targets[row] - call.first_token;
    call.target_logit[row] = target >= 0 && target < shape.columns ? logits[target] : 0.0F;
  }
}

void run(const CrossEntropyBackward& call) {
  const Rows shape = call.shape;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* logits = in(call.logits) + row * shape.columns;
    float* dlogits = to(call.logits_gradient) + row * shape.columns;
    const float total = call.log_sum[row];
    const float weight = call.row_weight[row];
    for_vectors(shape.columns,
                [&](auto read, auto write) { write(dlogits, exp_of(read(logits) - total) * weight); });
    const std::int64_t target = call.targets[row] - call.first_token;
    if (target >= 0 && target < shape.columns) dlogits[target] -= weight;
  }
}

void run(const Embedding& call) {
  const Rows shape = call.shape;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const std::int64_t token = call.tokens[row] - call.first_token;
    float* out = to(call.out) + row * shape.columns;
    if (token < 0 || token >= call.tokens_here) {
      for_vectors(shape.columns, [&](auto, auto write) { write(out, broadcast(0.0F)); });
      continue;
    }
    const float* entry = in(call.table) + token * shape.columns;
    for_vectors(shape.columns, [&](auto read, auto write) { write(out, read(entry)); });
  }
}

void run(const EmbeddingBackward& call) {
  const Rows shape = call.shape;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const std::int64_t token = call.tokens[row] - call.first_token;
    if (token < 0 || token >= call.tokens_here) continue;
    const float* gradient = in(call.out_gradient) + row * shape.columns;
    float* entry = to(call.table_gradient) + token * shape.columns;
    for_vectors(shape.columns, [&](auto read, auto write) { write(entry, read(entry) + read(gradient)); });
  }
}

void run(const AttentionMerge& call) {
  for (std::int64_t i = 0; i < call.rows * call.heads; ++i) {
    const float mine = call.log_sum[i];
    const float other = call.part_log_sum[i];
    if (other == -__builtin_inff()) continue;
    float* out = to(call.out) + i * call.head_dim;
    const float* part = in(call.part) + i * call.head_dim;
    if (mine == -__builtin_inff()) {
      call.log_sum[i] = other;
      for_vectors(call.head_dim, [&](auto read, auto write) { write(out, read(part)); });
      continue;
    }
    const float highest = mine > other ? mine : other;
    const float own_weight = __builtin_expf(mine - highest);
    const float part_weight = __builtin_expf(other - highest);
    const float total = own_weight + part_weight;
    call.log_sum[i] = highest + __builtin_logf(total);
    const float own_share = own_weight / total;
    const float part_share = part_weight / total;
    for_vectors(call.head_dim,
                [&](auto read, auto write) { write(out, read(out) * own_share + read(part) * part_share); });
  }
}

// One function per row op, in the order of kRowOps. Everything here has internal linkage: a function of the
// standard library that this file instantiated would be shared with the copies for other instruction sets.
using Kernel = void (*)(const void* call);
template <class Calls>
struct KernelsOf;
template <class... Calls>
struct KernelsOf<std::variant<Calls...>> {
  static constexpr Kernel kAll[] = {[](const void* call) { run(*static_cast<const Calls*>(call)); }...};
};

}  // namespace

void run_row_op(std::size_t op, const void* call) {
  KernelsOf<RowCall>::kAll[op](call);
}

}  // namespace equipoise::kernels::EQUIPOISE_ISA

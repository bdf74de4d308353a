// Row-wise ops in f32: each input is read once and each output written once (the backward of RMSNorm and both
// passes of the cross-entropy read their row twice, from cache).
#include "kernels/cpu/isa_parts.h"
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
// written: right for sums of products and for maps, not for sums of exponentials.
template <class Body>
void for_vectors(std::int64_t columns, Body body) {
  std::int64_t j = 0;
  for (; j + kLanes <= columns; j += kLanes) {
    body([j](const float* row) { return load(row + j); }, [j](float* row, Vector v) { store(row + j, v); });
  }
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

}  // namespace

void rms_norm(const Rows& shape, float epsilon, const float* x, const float* weight, float* out,
              float* inverse_rms) {
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* in = x + row * shape.columns;
    float* to = out + row * shape.columns;
    const float mean = dot(in, in, shape.columns) / static_cast<float>(shape.columns);
    const float inverse = 1.0F / __builtin_sqrtf(mean + epsilon);
    inverse_rms[row] = inverse;
    for_vectors(shape.columns, [&](auto read, auto write) { write(to, read(in) * inverse * read(weight)); });
  }
}

void rms_norm_backward(const Rows& shape, const float* x, const float* weight, const float* inverse_rms,
                       const float* dout, float* dx, float* dweight) {
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* in = x + row * shape.columns;
    const float* gradient = dout + row * shape.columns;
    float* to = dx + row * shape.columns;
    const float inverse = inverse_rms[row];
    Vector sum = broadcast(0.0F);
    for_vectors(shape.columns, [&](auto read, auto write) {
      const Vector product = read(in) * read(gradient);
      sum += product * read(weight);
      write(dweight, read(dweight) + product * inverse);
    });
    const float pull = sum_of(sum) * inverse * inverse / static_cast<float>(shape.columns);
    for_vectors(shape.columns, [&](auto read, auto write) {
      write(to, (read(gradient) * read(weight) - read(in) * pull) * inverse);
    });
  }
}

void rope(const RopeShape& shape, bool inverse, const std::int32_t* positions, const float* table, float* x) {
  const int half = shape.head_dim / 2;
  const float direction = inverse ? -1.0F : 1.0F;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* angle = table + static_cast<std::int64_t>(positions[row]) * shape.head_dim;
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

void swiglu(const Rows& shape, const float* gate_up, float* out) {
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* gate = gate_up + row * 2 * shape.columns;
    const float* up = gate + shape.columns;
    float* to = out + row * shape.columns;
    for_vectors(shape.columns, [&](auto read, auto write) {
      const Vector g = read(gate);
      write(to, g * sigmoid(g) * read(up));
    });
  }
}

void swiglu_backward(const Rows& shape, const float* gate_up, const float* dout, float* dgate_up) {
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* gate = gate_up + row * 2 * shape.columns;
    const float* up = gate + shape.columns;
    const float* gradient = dout + row * shape.columns;
    float* dgate = dgate_up + row * 2 * shape.columns;
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

void adam_step(const AdamStep& step, const float* gradient, float* master, float* mean, float* square,
               float* weights) {
  for (std::int64_t i = 0; i < step.elements; ++i) {
    const float g = gradient[i];
    mean[i] = step.beta1 * mean[i] + (1.0F - step.beta1) * g;
    square[i] = step.beta2 * square[i] + (1.0F - step.beta2) * g * g;
    master[i] -= step.rate * mean[i] / (__builtin_sqrtf(square[i]) + step.epsilon);
    weights[i] = master[i];
  }
}

void residual_add(std::int64_t elements, const float* x, const float* residual, float* out) {
  for_vectors(elements, [&](auto read, auto write) { write(out, read(x) + read(residual)); });
}

void cross_entropy(const Rows& shape, std::int64_t first_token, const float* logits,
                   const std::int32_t* targets, float* log_sum, float* target_logit) {
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* in = logits + row * shape.columns;
    Vector high = broadcast(in[0]);
    std::int64_t j = 0;
    for (; j + kLanes <= shape.columns; j += kLanes) high = larger(high, load(in + j));
    float highest = largest_of(high);
    for (; j < shape.columns; ++j) highest = in[j] > highest ? in[j] : highest;
    Vector sum = broadcast(0.0F);
    for (j = 0; j + kLanes <= shape.columns; j += kLanes) sum += exp_of(load(in + j) - highest);
    if (j < shape.columns) {
      const Vector rest = exp_of(load_some(in + j, shape.columns - j, highest) - highest);
      for (std::int64_t lane = 0; lane < shape.columns - j; ++lane) sum[lane] += rest[lane];
    }
    log_sum[row] = highest + __builtin_logf(sum_of(sum));
    const std::int64_t target = targets[row] - first_token;
    target_logit[row] = target >= 0 && target < shape.columns ? in[target] : 0.0F;
  }
}

void cross_entropy_backward(const Rows& shape, std::int64_t first_token, const float* logits,
                            const std::int32_t* targets, const float* log_sum, const float* row_weight,
                            float* dlogits) {
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* in = logits + row * shape.columns;
    float* to = dlogits + row * shape.columns;
    const float total = log_sum[row];
    const float weight = row_weight[row];
    for_vectors(shape.columns, [&](auto read, auto write) { write(to, exp_of(read(in) - total) * weight); });
    const std::int64_t target = targets[row] - first_token;
    if (target >= 0 && target < shape.columns) to[target] -= weight;
  }
}

}  // namespace equipoise::kernels::EQUIPOISE_ISA

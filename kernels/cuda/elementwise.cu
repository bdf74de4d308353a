#include <algorithm>

#include "kernels/cuda/ops.h"
#include "kernels/cuda/packs.cuh"

namespace equipoise::kernels::cuda {
namespace {

// The sum over the block, known to every thread.
__device__ float block_sum(float value) {
  __shared__ float of_warp[kThreads / kWarp];
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffU, value, step);
  __syncthreads();  // the array may still be read from an earlier sum
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = 0;
  for (float part : of_warp) total += part;
  return total;
}

__device__ float block_max(float value) {
  __shared__ float of_warp[kThreads / kWarp];
  for (int step = kWarp / 2; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, step));
  __syncthreads();
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  float highest = of_warp[0];
  for (float part : of_warp) highest = fmaxf(highest, part);
  return highest;
}

__device__ float sigmoid(float x) {
  return 1.0F / (1.0F + __expf(-x));
}

__global__ void empty() {}

__global__ void spin(unsigned long long nanoseconds) {  // launch <<<1, 1>>>
  unsigned long long start = 0;
  unsigned long long now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

template <int pack>
__global__ void rms_norm(std::int64_t columns, float epsilon, const bf16* x,
                         const bf16* weight,               // (rows, columns)
                         bf16* out, float* inverse_rms) {  // launch <<<rows, kThreads>>>
  const bf16* in = x + blockIdx.x * columns;
  bf16* to = out + blockIdx.x * columns;
  float sum = 0;
  for (std::int64_t j = threadIdx.x * pack; j < columns; j += kThreads * pack) {
    const Pack<pack> values = load<pack>(in + j);
    for (int i = 0; i < pack; ++i)
      sum += __bfloat162float(values.value[i]) * __bfloat162float(values.value[i]);
  }
  const float inverse = rsqrtf(block_sum(sum) / static_cast<float>(columns) + epsilon);
  if (threadIdx.x == 0) inverse_rms[blockIdx.x] = inverse;
  for (std::int64_t j = threadIdx.x * pack; j < columns; j += kThreads * pack) {
    Pack<pack> values = load<pack>(in + j);
    const Pack<pack> scale = load<pack>(weight + j);
    for (int i = 0; i < pack; ++i) {
      values.value[i] =
          __float2bfloat16(__bfloat162float(values.value[i]) * inverse * __bfloat162float(scale.value[i]));
    }
    store<pack>(to + j, values);
  }
}

// Each block takes every gridDim.x-th row and keeps its columns' weight gradients in shared memory (one owner
// thread per column), adding them to the total once at the end.
template <int pack>
__global__ void rms_norm_backward(Rows shape, const bf16* x, const bf16* weight, const float* inverse_rms,
                                  const bf16* dout, bf16* dx, float* dweight) {
  extern __shared__ float weight_part[];  // of_thread
  const std::int64_t columns = shape.columns;
  for (std::int64_t j = threadIdx.x * pack; j < columns; j += kThreads * pack)
    for (int i = 0; i < pack; ++i) of_thread<pack>(weight_part, j, i) = 0;
  for (std::int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const bf16* in = x + row * columns;
    const bf16* gradient = dout + row * columns;
    const float inverse = inverse_rms[row];
    float sum = 0;
    for (std::int64_t j = threadIdx.x * pack; j < columns; j += kThreads * pack) {
      const Pack<pack> values = load<pack>(in + j);
      const Pack<pack> d = load<pack>(gradient + j);
      const Pack<pack> scale = load<pack>(weight + j);
      for (int i = 0; i < pack; ++i) {
        const float product = __bfloat162float(values.value[i]) * __bfloat162float(d.value[i]);
        sum += product * __bfloat162float(scale.value[i]);
        of_thread<pack>(weight_part, j, i) += product * inverse;
      }
    }
    const float pull = block_sum(sum) * inverse * inverse / static_cast<float>(columns);
    for (std::int64_t j = threadIdx.x * pack; j < columns; j += kThreads * pack) {
      const Pack<pack> values = load<pack>(in + j);
      const Pack<pack> d = load<pack>(gradient + j);
      const Pack<pack> scale = load<pack>(weight + j);
      Pack<pack> result;
      for (int i = 0; i < pack; ++i) {
        const float own = __bfloat162float(d.value[i]) * __bfloat162float(scale.value[i]);
        result.value[i] = __float2bfloat16((own - __bfloat162float(values.value[i]) * pull) * inverse);
      }
      store<pack>(dx + row * columns + j, result);
    }
  }
  // Neighbouring threads add neighbouring columns, so that a memory sector gets one request from a block and
  // not `pack`. Every block has a row, and its threads have met in a sum since the last weight gradient.
  for (std::int64_t column = threadIdx.x; column < columns; column += kThreads)
    atomicAdd(dweight + column, of_column<pack>(weight_part, column));
}

template <int pack>
__global__ void rope(RopeShape shape, float direction, const std::int32_t* positions, const float* table,
                     bf16* x) {  // one thread per `pack` rotated pairs of a head
  const int half = shape.head_dim / 2;
  const int packs = half / pack;
  const std::int64_t count = shape.rows * shape.heads * packs;
  for (std::int64_t at = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; at < count;
       at += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    const auto j = static_cast<int>(at % packs) * pack;
    const std::int64_t head = at / packs;
    const float* angle =
        table + static_cast<std::int64_t>(positions[head / shape.heads]) * shape.head_dim + 2 * j;
    bf16* low_at = x + head * shape.head_dim + j;
    Pack<pack> low = load<pack>(low_at);
    Pack<pack> high = load<pack>(low_at + half);
    for (int i = 0; i < pack; ++i) {
      const float cosine = angle[2 * i];
      const float sine = angle[2 * i + 1] * direction;
      const float a = __bfloat162float(low.value[i]);
      const float b = __bfloat162float(high.value[i]);
      low.value[i] = __float2bfloat16(a * cosine - b * sine);
      high.value[i] = __float2bfloat16(b * cosine + a * sine);
    }
    store<pack>(low_at, low);
    store<pack>(low_at + half, high);
  }
}

// One pack of a row-wise map; packs are numbered over all rows.
struct Place {
  std::int64_t row;
  std::int64_t column;
};

template <int pack>
__device__ Place place_of(std::int64_t index, std::int64_t columns) {
  const std::int64_t packs = columns / pack;
  return {index / packs, index % packs * pack};
}

template <int pack>
__global__ void swiglu(Rows shape, const bf16* gate_up, bf16* out) {
  const std::int64_t count = shape.rows * (shape.columns / pack);
  for (std::int64_t at = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; at < count;
       at += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    const Place place = place_of<pack>(at, shape.columns);
    const bf16* gate_at = gate_up + place.row * 2 * shape.columns + place.column;
    const Pack<pack> gate = load<pack>(gate_at);
    const Pack<pack> up = load<pack>(gate_at + shape.columns);
    Pack<pack> result;
    for (int i = 0; i < pack; ++i) {
      const float g = __bfloat162float(gate.value[i]);
      result.value[i] = __float2bfloat16(g * sigmoid(g) * __bfloat162float(up.value[i]));
    }
    store<pack>(out + place.row * shape.columns + place.column, result);
  }
}

template <int pack>
__global__ void swiglu_backward(Rows shape, const bf16* gate_up, const bf16* dout, bf16* dgate_up) {
  const std::int64_t count = shape.rows * (shape.columns / pack);
  for (std::int64_t at = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; at < count;
       at += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    const Place place = place_of<pack>(at, shape.columns);
    const std::int64_t gate_at = place.row * 2 * shape.columns + place.column;
    const Pack<pack> gate = load<pack>(gate_up + gate_at);
    const Pack<pack> up = load<pack>(gate_up + gate_at + shape.columns);
    const Pack<pack> d = load<pack>(dout + place.row * shape.columns + place.column);
    Pack<pack> dgate;
    Pack<pack> dup;
    for (int i = 0; i < pack; ++i) {
      const float g = __bfloat162float(gate.value[i]);
      const float s = sigmoid(g);
      const float silu = g * s;
      const float gradient = __bfloat162float(d.value[i]);
      dgate.value[i] = __float2bfloat16(gradient * __bfloat162float(up.value[i]) * (s + silu * (1.0F - s)));
      dup.value[i] = __float2bfloat16(gradient * silu);
    }
    store<pack>(dgate_up + gate_at, dgate);
    store<pack>(dgate_up + gate_at + shape.columns, dup);
  }
}

template <int pack>
__global__ void residual_add(std::int64_t elements, const bf16* x, const bf16* residual, bf16* out) {
  for (std::int64_t j = (blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x) * pack; j < elements;
       j += static_cast<std::int64_t>(gridDim.x) * kThreads * pack) {
    Pack<pack> a = load<pack>(x + j);
    const Pack<pack> b = load<pack>(residual + j);
    for (int i = 0; i < pack; ++i)
      a.value[i] = __float2bfloat16(__bfloat162float(a.value[i]) + __bfloat162float(b.value[i]));
    store<pack>(out + j, a);
  }
}

__global__ void adam_step(AdamStep step, const bf16* gradient, float* master, float* mean, float* square,
                          bf16* weights) {
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; i < step.elements;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    const float g = __bfloat162float(gradient[i]);
    const float m = step.beta1 * mean[i] + (1.0F - step.beta1) * g;
    const float s = step.beta2 * square[i] + (1.0F - step.beta2) * g * g;
    const float w = master[i] - step.rate * m / (sqrtf(s) + step.epsilon);
    mean[i] = m;
    square[i] = s;
    master[i] = w;
    weights[i] = __float2bfloat16(w);
  }
}

template <int pack>
__global__ void cross_entropy(std::int64_t columns, std::int64_t first_token, const bf16* logits,
                              const std::int32_t* targets, float* log_sum,
                              float* target_logit) {  // launch <<<rows, kThreads>>>
  const bf16* in = logits + blockIdx.x * columns;
  float highest = -INFINITY;
  float sum = 0;  // of exp(x - highest), rescaled whenever highest grows, so that one pass suffices
  for (std::int64_t j = threadIdx.x * pack; j < columns; j += kThreads * pack) {
    const Pack<pack> values = load<pack>(in + j);
    float top = highest;
    for (int i = 0; i < pack; ++i) top = fmaxf(top, __bfloat162float(values.value[i]));
    sum *= __expf(highest - top);  // accurate to a few units in the last place of f32
    for (int i = 0; i < pack; ++i) sum += __expf(__bfloat162float(values.value[i]) - top);
    highest = top;
  }
  const float top = block_max(highest);
  const float total = block_sum(highest == -INFINITY ? 0.0F : sum * expf(highest - top));
  if (threadIdx.x != 0) return;
  log_sum[blockIdx.x] = top + logf(total);
  const std::int64_t target = targets[blockIdx.x] - first_token;
  target_logit[blockIdx.x] = target >= 0 && target < columns ? __bfloat162float(in[target]) : 0.0F;
}

template <int pack>
__global__ void cross_entropy_backward(std::int64_t columns, std::int64_t first_token, const bf16* logits,
                                       const std::int32_t* targets, const float* log_sum,
                                       const float* row_weight,
                                       bf16* dlogits) {  // launch <<<rows, kThreads>>>
  const bf16* in = logits + blockIdx.x * columns;
  const float total = log_sum[blockIdx.x];
  const float weight = row_weight[blockIdx.x];
  const std::int64_t target = targets[blockIdx.x] - first_token;
  for (std::int64_t j = threadIdx.x * pack; j < columns; j += kThreads * pack) {
    Pack<pack> values = load<pack>(in + j);
    for (int i = 0; i < pack; ++i) {
      const float p = __expf(__bfloat162float(values.value[i]) - total);
      values.value[i] = __float2bfloat16((j + i == target ? p - 1.0F : p) * weight);
    }
    store<pack>(dlogits + blockIdx.x * columns + j, values);
  }
}

}  // namespace

void launch_empty() {
  empty<<<1, 1>>>();
  launched("empty");
}

void launch_spin(double seconds) {
  spin<<<1, 1>>>(static_cast<unsigned long long>(seconds * 1e9));
  launched("spin");
}

namespace {

void launch_op(const RmsNorm& call, int) {
  const Rows& shape = call.shape;
  if (shape.rows == 0) return;
  const auto kernel = packs(shape.columns) ? rms_norm<8> : rms_norm<1>;
  kernel<<<static_cast<unsigned int>(shape.rows), kThreads>>>(
      shape.columns, call.epsilon, in(call.x), in(call.weight), to(call.out), call.inverse_rms);
  launched("rms_norm");
}

void launch_op(const RmsNormBackward& call, int sms) {
  const Rows& shape = call.shape;
  if (shape.rows == 0) return;
  const auto kernel = packs(shape.columns) ? rms_norm_backward<8> : rms_norm_backward<1>;
  const std::size_t shared = bytes_of_threads(shape.columns, packs(shape.columns) ? 8 : 1);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "rms_norm_backward: columns do not fit shared memory");
  const auto blocks = static_cast<unsigned int>(std::min<std::int64_t>(shape.rows, 4 * sms));
  kernel<<<blocks, kThreads, shared>>>(shape, in(call.x), in(call.weight), call.inverse_rms,
                                       in(call.out_gradient), to(call.x_gradient), call.weight_gradient);
  launched("rms_norm_backward");
}

void launch_op(const Rope& call, int) {
  const RopeShape& shape = call.shape;
  const int half = shape.head_dim / 2;
  const bool eight = packs(half);
  const auto kernel = eight ? rope<8> : rope<1>;
  kernel<<<blocks_for(shape.rows * shape.heads * (half / (eight ? 8 : 1))), kThreads>>>(
      shape, call.inverse ? -1.0F : 1.0F, call.positions, call.table, to(call.x));
  launched("rope");
}

void launch_op(const Swiglu& call, int) {
  const Rows& shape = call.shape;
  const bool eight = packs(shape.columns);
  const auto kernel = eight ? swiglu<8> : swiglu<1>;
  kernel<<<blocks_for(shape.rows * shape.columns / (eight ? 8 : 1)), kThreads>>>(shape, in(call.gate_up),
                                                                                 to(call.out));
  launched("swiglu");
}

void launch_op(const SwigluBackward& call, int) {
  const Rows& shape = call.shape;
  const bool eight = packs(shape.columns);
  const auto kernel = eight ? swiglu_backward<8> : swiglu_backward<1>;
  kernel<<<blocks_for(shape.rows * shape.columns / (eight ? 8 : 1)), kThreads>>>(
      shape, in(call.gate_up), in(call.out_gradient), to(call.gate_up_gradient));
  launched("swiglu_backward");
}

void launch_op(const ResidualAdd& call, int) {
  const bool eight = packs(call.elements);
  const auto kernel = eight ? residual_add<8> : residual_add<1>;
  kernel<<<blocks_for(call.elements / (eight ? 8 : 1)), kThreads>>>(call.elements, in(call.x),
                                                                    in(call.residual), to(call.out));
  launched("residual_add");
}

void launch_op(const Adam& call, int) {
  adam_step<<<blocks_for(call.step.elements), kThreads>>>(call.step, in(call.gradient), call.master,
                                                          call.mean, call.square, to(call.weights));
  launched("adam_step");
}

void launch_op(const CrossEntropy& call, int) {
  const Rows& shape = call.shape;
  if (shape.rows == 0) return;
  const auto kernel = packs(shape.columns) ? cross_entropy<8> : cross_entropy<1>;
  kernel<<<static_cast<unsigned int>(shape.rows), kThreads>>>(
      shape.columns, call.first_token, in(call.logits), call.targets, call.log_sum, call.target_logit);
  launched("cross_entropy");
}

void launch_op(const CrossEntropyBackward& call, int) {
  const Rows& shape = call.shape;
  if (shape.rows == 0) return;
  const auto kernel = packs(shape.columns) ? cross_entropy_backward<8> : cross_entropy_backward<1>;
  kernel<<<static_cast<unsigned int>(shape.rows), kThreads>>>(shape.columns, call.first_token,
                                                              in(call.logits), call.targets, call.log_sum,
                                                              call.row_weight, to(call.logits_gradient));
  launched("cross_entropy_backward");
}

}  // namespace

void launch(const RowCall& call, int sms) {
  std::visit([sms](const auto& one) { launch_op(one, sms); }, call);
}

}  // namespace equipoise::kernels::cuda

// Ops of real execution between the layers: they turn tokens into rows and back, and join parts of attention.
#include "kernels/cuda/packs.cuh"

namespace equipoise::kernels::cuda {
namespace {

template <int pack>
__global__ void embedding(std::int64_t columns, std::int64_t first_token, std::int64_t tokens_here,
                          const std::int32_t* tokens, const bf16* table,
                          bf16* out) {  // launch <<<rows, kThreads>>>
  const std::int64_t token = tokens[blockIdx.x] - first_token;
  const bool here = token >= 0 && token < tokens_here;
  for (std::int64_t j = threadIdx.x * pack; j < columns; j += kThreads * pack) {
    Pack<pack> values;
    for (int i = 0; i < pack; ++i) values.value[i] = __float2bfloat16(0.0F);
    if (here) values = load<pack>(table + token * columns + j);
    store<pack>(out + blockIdx.x * columns + j, values);
  }
}

// The block of a token's first row gathers all its rows, in their order, in f32, and adds them to the table
// once: no atomics, the same bits every time, and one rounding however often a token comes up. Finding the
// rows reads all tokens for each token that occurs: rows^2 / kThreads steps of a thread at worst, a
// millisecond for 128K rows, which is why chunks without a match are skipped at the price of one vote.
template <int pack>
__global__ void embedding_backward(Rows shape, std::int64_t first_token, std::int64_t tokens_here,
                                   const std::int32_t* tokens, const bf16* dout,
                                   bf16* dtable) {  // launch <<<rows, kThreads>>>
  extern __shared__ float sum[];                    // of_thread
  __shared__ bool matches[kThreads];
  const std::int64_t columns = shape.columns;
  const std::int64_t first_row = blockIdx.x;
  const std::int32_t token = tokens[first_row];
  const std::int64_t entry = token - first_token;
  if (entry < 0 || entry >= tokens_here) return;
  for (std::int64_t base = 0; base < first_row; base += kThreads) {
    const std::int64_t row = base + threadIdx.x;
    if (__syncthreads_or(static_cast<int>(row < first_row && tokens[row] == token)) != 0) return;
  }
  bf16* to = dtable + entry * columns;
  for (std::int64_t j = threadIdx.x * pack; j < columns; j += kThreads * pack) {
    const Pack<pack> before = load<pack>(to + j);
    for (int i = 0; i < pack; ++i) of_thread<pack>(sum, j, i) = __bfloat162float(before.value[i]);
  }
  for (std::int64_t base = first_row; base < shape.rows; base += kThreads) {
    const std::int64_t row = base + threadIdx.x;
    const bool match = row < shape.rows && tokens[row] == token;
    if (__syncthreads_or(static_cast<int>(match)) == 0) continue;
    matches[threadIdx.x] = match;
    __syncthreads();
    for (int k = 0; k < kThreads; ++k) {
      if (!matches[k]) continue;
      const bf16* gradient = dout + (base + k) * columns;
      for (std::int64_t j = threadIdx.x * pack; j < columns; j += kThreads * pack) {
        const Pack<pack> values = load<pack>(gradient + j);
        for (int i = 0; i < pack; ++i) of_thread<pack>(sum, j, i) += __bfloat162float(values.value[i]);
      }
    }
  }
  for (std::int64_t j = threadIdx.x * pack; j < columns; j += kThreads * pack) {
    Pack<pack> after;
    for (int i = 0; i < pack; ++i) after.value[i] = __float2bfloat16(of_thread<pack>(sum, j, i));
    store<pack>(to + j, after);
  }
}

// One warp for each row of a head; its lanes read both log_sums before one of them writes.
__global__ void attention_merge(std::int64_t count, int head_dim, bf16* out, float* log_sum, const bf16* part,
                                const float* part_log_sum) {
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kThreads / kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (std::int64_t at = blockIdx.x * static_cast<std::int64_t>(kThreads / kWarp) + threadIdx.x / kWarp;
       at < count; at += warps) {
    const float mine = log_sum[at];
    const float other = part_log_sum[at];
    __syncwarp();
    if (other == -INFINITY) continue;
    const float highest = fmaxf(mine, other);
    const float own_weight = expf(mine - highest);  // 0 if mine is -infinity
    const float part_weight = expf(other - highest);
    const float total = own_weight + part_weight;
    if (lane == 0) log_sum[at] = highest + logf(total);
    for (int c = lane; c < head_dim; c += kWarp) {
      const float added = __bfloat162float(part[at * head_dim + c]) * (part_weight / total);
      const float kept =
          mine == -INFINITY ? 0.0F : __bfloat162float(out[at * head_dim + c]) * (own_weight / total);
      out[at * head_dim + c] = __float2bfloat16(kept + added);
    }
  }
}

}  // namespace

void launch_op(const Embedding& call, int) {
  const Rows& shape = call.shape;
  if (shape.rows == 0) return;
  const auto kernel = packs(shape.columns) ? embedding<8> : embedding<1>;
  kernel<<<static_cast<unsigned int>(shape.rows), kThreads>>>(
      shape.columns, call.first_token, call.tokens_here, call.tokens, in(call.table), to(call.out));
  launched("embedding");
}

void launch_op(const EmbeddingBackward& call, int) {
  const Rows& shape = call.shape;
  if (shape.rows == 0) return;
  const auto kernel = packs(shape.columns) ? embedding_backward<8> : embedding_backward<1>;
  const std::size_t shared = bytes_of_threads(shape.columns, packs(shape.columns) ? 8 : 1);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "embedding_backward: columns do not fit shared memory");
  kernel<<<static_cast<unsigned int>(shape.rows), kThreads, shared>>>(
      shape, call.first_token, call.tokens_here, call.tokens, in(call.out_gradient), to(call.table_gradient));
  launched("embedding_backward");
}

void launch_op(const AttentionMerge& call, int) {
  const std::int64_t count = call.rows * call.heads;
  if (count == 0) return;
  attention_merge<<<blocks_for(count * kWarp), kThreads>>>(count, call.head_dim, to(call.out), call.log_sum,
                                                           in(call.part), call.part_log_sum);
  launched("attention_merge");
}

}  // namespace equipoise::kernels::cuda

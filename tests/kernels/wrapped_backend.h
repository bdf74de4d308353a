// The CPU backend with every call passed through, so that a test can break one of them.
#pragma once

#include "kernels/backend.h"

namespace equipoise::kernels {

class WrappedBackend : public Backend {
 public:
  std::string_view name() const override { return real_->name(); }
  ElementType element_type() const override { return real_->element_type(); }
  DeviceDescription describe() const override { return real_->describe(); }
  double clock_mhz() const override { return real_->clock_mhz(); }
  void* allocate(std::size_t bytes) override { return real_->allocate(bytes); }
  void release(void* device) noexcept override { real_->release(device); }
  void to_device(void* device, const void* host, std::size_t bytes) override {
    real_->to_device(device, host, bytes);
  }
  void to_host(void* host, const void* device, std::size_t bytes) override {
    real_->to_host(host, device, bytes);
  }
  void synchronize() override { real_->synchronize(); }
  void start_timer() override { real_->start_timer(); }
  Elapsed stop_timer() override { return real_->stop_timer(); }
  void empty_op() override { real_->empty_op(); }
  void spin(double seconds) override { real_->spin(seconds); }
  void adam_step(const AdamStep& step, const void* gradient, float* master, float* mean, float* square,
                 void* weights) override {
    real_->adam_step(step, gradient, master, mean, square, weights);
  }
  void copy(void* target, const void* source, std::size_t bytes) override {
    real_->copy(target, source, bytes);
  }
  std::unique_ptr<AttentionPlan> plan_attention(const AttentionShape& shape, std::span<const Piece> pieces,
                                                Pass pass) override {
    return real_->plan_attention(shape, pieces, pass);
  }
  void attention_forward(AttentionPlan& plan, const void* query, const void* key, const void* value,
                         void* out, float* log_sum) override {
    real_->attention_forward(plan, query, key, value, out, log_sum);
  }
  void attention_backward(AttentionPlan& plan, const void* query, const void* key, const void* value,
                          const void* out, const float* log_sum, const void* out_gradient,
                          const AttentionGradients& gradients) override {
    real_->attention_backward(plan, query, key, value, out, log_sum, out_gradient, gradients);
  }
  void gemm(const GemmShape& shape, const void* a, const void* b, void* c) override {
    real_->gemm(shape, a, b, c);
  }
  void rms_norm(const Rows& shape, float epsilon, const void* x, const void* weight, void* out,
                float* inverse_rms) override {
    real_->rms_norm(shape, epsilon, x, weight, out, inverse_rms);
  }
  void rms_norm_backward(const Rows& shape, const void* x, const void* weight, const float* inverse_rms,
                         const void* out_gradient, void* x_gradient, float* weight_gradient) override {
    real_->rms_norm_backward(shape, x, weight, inverse_rms, out_gradient, x_gradient, weight_gradient);
  }
  void rope(const RopeShape& shape, bool inverse, const std::int32_t* positions, const float* table,
            void* x) override {
    real_->rope(shape, inverse, positions, table, x);
  }
  void swiglu(const Rows& shape, const void* gate_up, void* out) override {
    real_->swiglu(shape, gate_up, out);
  }
  void swiglu_backward(const Rows& shape, const void* gate_up, const void* out_gradient,
                       void* gate_up_gradient) override {
    real_->swiglu_backward(shape, gate_up, out_gradient, gate_up_gradient);
  }
  void residual_add(std::int64_t elements, const void* x, const void* residual, void* out) override {
    real_->residual_add(elements, x, residual, out);
  }
  void cross_entropy(const Rows& shape, std::int64_t first_token, const void* logits,
                     const std::int32_t* targets, float* log_sum, float* target_logit) override {
    real_->cross_entropy(shape, first_token, logits, targets, log_sum, target_logit);
  }
  void cross_entropy_backward(const Rows& shape, std::int64_t first_token, const void* logits,
                              const std::int32_t* targets, const float* log_sum, const float* row_weight,
                              void* logits_gradient) override {
    real_->cross_entropy_backward(shape, first_token, logits, targets, log_sum, row_weight, logits_gradient);
  }

 private:
  std::unique_ptr<Backend> real_ = make_cpu_backend();
};

}  // namespace equipoise::kernels

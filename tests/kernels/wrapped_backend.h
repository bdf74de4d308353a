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
  void copy(void* target, const void* source, std::size_t bytes) override {
    real_->copy(target, source, bytes);
  }
  void clear(void* target, std::size_t bytes) override { real_->clear(target, bytes); }
  std::unique_ptr<AttentionPlan> plan_attention(const AttentionShape& shape, std::span<const Piece> pieces,
                                                Pass pass, const AttentionRows& rows) override {
    return real_->plan_attention(shape, pieces, pass, rows);
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
  void run(const RowCall& call) override { real_->run(call); }

 private:
  std::unique_ptr<Backend> real_ = make_cpu_backend();
};

}  // namespace equipoise::kernels

// Ranks of one device talk through host memory: device memory of the backend's type goes to the host as
// floats, travels there, and comes back. For replays, whose collectives are not timed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/collectives.h"

namespace equipoise::execution {

class StagedCommunicator final : public kernels::Communicator {
 public:
  // Keeps references to both.
  StagedCommunicator(kernels::Communicator& host, kernels::Backend& backend)
      : host_(&host), backend_(backend) {}
  StagedCommunicator(std::unique_ptr<kernels::Communicator> host, kernels::Backend& backend)
      : owned_(std::move(host)), host_(owned_.get()), backend_(backend) {}

  [[nodiscard]] std::string_view name() const override { return "staged"; }
  [[nodiscard]] int rank() const override { return host_->rank(); }
  [[nodiscard]] int size() const override { return host_->size(); }
  void barrier() override { host_->barrier(); }
  void all_gather(const void* send, void* receive, std::int64_t count) override;
  void reduce_scatter(const void* send, void* receive, std::int64_t count) override;
  void all_reduce(const void* send, void* receive, std::int64_t count) override;
  void all_to_all(const void* send, void* receive, std::int64_t count) override;
  void send(const void* data, std::int64_t count, int to, int tag) override;
  [[nodiscard]] std::unique_ptr<kernels::Pending> start_send(const void* data, std::int64_t count, int to,
                                                             int tag) override;
  void receive(void* data, std::int64_t count, int from, int tag) override;
  void send_receive(const void* data, int to, void* incoming, int from, std::int64_t count) override;
  [[nodiscard]] std::unique_ptr<kernels::Communicator> split(int color, int key) override;
  void abort(const std::string& reason) override { host_->abort(reason); }

 private:
  [[nodiscard]] std::vector<float> to_host(const void* device, std::int64_t count) const;
  void to_device(void* device, const std::vector<float>& values) const;

  std::unique_ptr<kernels::Communicator> owned_;
  kernels::Communicator* host_;
  kernels::Backend& backend_;
};

}  // namespace equipoise::execution

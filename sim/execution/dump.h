// Writes an executed step so that anyone can check it without us:
//
//   config.json                  the model as a Hugging Face LLaMA configuration
//   tokens/DOC.npy               int64, the whole document; targets/DOC.npy likewise
//   LABEL/plan.json              which slices the step has (schema equipoise.plan/1)
//   LABEL/loss.json              {"loss": token mean over the step, "tokens": n}
//   LABEL/weights/NAME.npy       fp32, unsharded, names of the state dict
//   LABEL/gradients/NAME.npy     of the token mean
//
// tests/execution/torch_check.py reads it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "sim/execution/parameters.h"

namespace equipoise::execution {

// A whole document and its number of tokens.
struct DumpedDocument {
  std::int64_t document = 0;
  std::int64_t tokens = 0;
};

class Dump {
 public:
  // Files go below `folder`, which is created if needed.
  explicit Dump(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void write_config(const ModelShape& model) const;
  void write_documents(std::span<const DumpedDocument> documents, std::uint64_t seed,
                       std::int64_t vocab) const;

  // `label` is the name of a folder. Values are the whole tensor's, in row-major order.
  void write_weights(const std::string& label, const Tensor& tensor, std::span<const float> values) const;
  void write_gradients(const std::string& label, const Tensor& tensor, std::span<const float> values) const;
  // `plan` has schema equipoise.plan/1, and its first step is the one that ran.
  void write_plan(const std::string& label, const nlohmann::json& plan) const;
  void write_loss(const std::string& label, double loss, std::int64_t tokens) const;

 private:
  [[nodiscard]] std::string path_of(const std::filesystem::path& name) const;  // creates its folder
  void write_tensor(const std::filesystem::path& parent, const Tensor& tensor,
                    std::span<const float> values) const;

  std::filesystem::path folder_;
};

nlohmann::json hf_config(const ModelShape& model);

}  // namespace equipoise::execution

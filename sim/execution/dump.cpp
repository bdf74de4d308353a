#include "sim/execution/dump.h"

#include <array>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/files.h"

namespace equipoise::execution {

using nlohmann::json;

json hf_config(const ModelShape& model) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_act", "silu"},
          {"hidden_size", model.hidden},
          {"intermediate_size", model.ffn},
          {"num_hidden_layers", model.layers},
          {"num_attention_heads", model.heads},
          {"num_key_value_heads", model.kv_heads},
          {"head_dim", model.head_dim},
          {"vocab_size", model.vocab},
          {"tie_word_embeddings", model.tied_embeddings},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"rms_norm_eps", kNormEpsilon},
          {"rope_theta", kRopeBase},
          {"eos_token_id", kEndOfDocument},
          {"torch_dtype", "float32"}};
}

void Dump::write_config(const ModelShape& model) const {
  write_file_atomically(path_of("config.json"), hf_config(model).dump(2) + "\n");
}

void Dump::write_documents(std::span<const DumpedDocument> documents, std::uint64_t seed,
                           std::int64_t vocab) const {
  for (const DumpedDocument& d : documents) {
    std::vector<std::int64_t> tokens;
    std::vector<std::int64_t> targets;
    for (std::int64_t position = 0; position < d.tokens; ++position) {
      tokens.push_back(token_at(seed, d.document, position, vocab));
      targets.push_back(target_at(seed, d.document, position, d.tokens, vocab));
    }
    const std::string name = std::to_string(d.document) + ".npy";
    write_npy(path_of(std::filesystem::path("tokens") / name), std::array{d.tokens}, tokens);
    write_npy(path_of(std::filesystem::path("targets") / name), std::array{d.tokens}, targets);
  }
}

void Dump::write_weights(const std::string& label, const Tensor& tensor,
                         std::span<const float> values) const {
  write_tensor(std::filesystem::path(label) / "weights", tensor, values);
}

void Dump::write_gradients(const std::string& label, const Tensor& tensor,
                           std::span<const float> values) const {
  write_tensor(std::filesystem::path(label) / "gradients", tensor, values);
}

void Dump::write_plan(const std::string& label, const json& plan) const {
  write_file_atomically(path_of(std::filesystem::path(label) / "plan.json"), plan.dump() + "\n");
}

void Dump::write_loss(const std::string& label, double loss, std::int64_t tokens) const {
  const json node = {{"loss", loss}, {"tokens", tokens}};
  write_file_atomically(path_of(std::filesystem::path(label) / "loss.json"), node.dump() + "\n");
}

std::string Dump::path_of(const std::filesystem::path& name) const {
  const std::filesystem::path path = folder_ / name;
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) throw UserError(path.parent_path().string(), ": cannot create the folder: ", error.message());
  return path.string();
}

void Dump::write_tensor(const std::filesystem::path& parent, const Tensor& tensor,
                        std::span<const float> values) const {
  std::vector<std::int64_t> shape{tensor.rows, tensor.columns};
  if (tensor.norm) shape = {tensor.columns};
  write_npy(path_of(parent / (tensor.name + ".npy")), shape, values);
}

}  // namespace equipoise::execution

// What a row of a mixture-of-experts run says beside a dense one's.
#include <optional>

#include "sim/calibration/row_reader.h"

namespace equipoise {

using nlohmann::json;

namespace {

// Mixers and masks that the models' table names in words, and that ModelShape cannot say.
constexpr const char* kNotModelled[] = {"linear attention", "Mamba", "sliding-window attention",
                                        "chunked attention"};

// "q_lora=1536 kv_lora=512 qk_nope=128 qk_rope=64 v_head=128"
json mla_of(const std::string& id, std::string_view said) {
  json mla = json::object();
  for (const auto& [word, key] :
       {std::pair{"q_lora=", "q_lora"}, std::pair{"kv_lora=", "kv_lora"}, std::pair{"qk_nope=", "nope_dim"},
        std::pair{"qk_rope=", "rope_dim"}, std::pair{"v_head=", "v_dim"}}) {
    // A word begins the text or follows a blank: q_lora is not the end of another.
    std::size_t at = said.find(word);
    while (at != std::string_view::npos && at > 0 && said[at - 1] != ' ') at = said.find(word, at + 1);
    if (at == std::string_view::npos) {
      if (std::string_view(key) == "q_lora") continue;
      throw NotThisRow{"model " + id + ": mla without " + key};
    }
    const std::string_view word_text(word);
    const std::string number(said.substr(at + word_text.size(), said.find(' ', at) - at - word_text.size()));
    mla[key] = std::strtoll(number.c_str(), nullptr, 10);
  }
  return mla;
}

// The number before which `word` stands in a text: "at most 4 nodes a token".
std::int64_t number_after(std::string_view said, std::string_view word) {
  const std::size_t at = said.find(word);
  return at == std::string_view::npos
             ? 0
             : std::strtoll(std::string(said.substr(at + word.size())).c_str(), nullptr, 10);
}

}  // namespace

bool RowReader::has_experts() const {
  if (models_ == nullptr) return !text("ep").empty() && size("ep") > 1;
  for (std::size_t at = 0; at < models_->rows(); ++at)
    if (models_->text(at, "model_id") == text("model_id"))
      return models_->number(at, "n_experts").value_or(0) > 0;
  return false;
}

void RowReader::add_experts(std::size_t at, json& model) const {
  const std::string id = text("model_id");
  const auto number = [&](const char* column) {
    return static_cast<std::int64_t>(models_->number(at, column).value_or(0));
  };
  for (const char* kind : kNotModelled)
    if (models_->text(at, "source").find(kind) != std::string_view::npos)
      throw NotThisRow{"model " + id + ": " + kind + " is not modelled"};
  if (number("n_experts") == 0) return;
  model["experts"] = {{"count", number("n_experts")},
                      {"active", number("experts_per_token")},
                      {"ffn", number("moe_ffn_hidden")}};
  if (number("shared_ffn") > 0) model["experts"]["shared_ffn"] = number("shared_ffn");
  if (number("dense_layers") > 0) model["experts"]["dense_layers"] = number("dense_layers");
  model["ffn"] = number("moe_ffn_hidden");  // of no layer, if the table has no other
  const std::string_view mla = models_->text(at, "mla");
  if (!mla.empty()) model["mla"] = mla_of(id, mla);
}

// Megatron-LM's default is tp. A row that leaves it open while its group has rows that tp does not fit (ep x
// etp must divide tp x cp x dp) ran as those did: with 1.
std::int64_t RowReader::expert_tensor() const {
  if (!text("etp").empty()) return size("etp");
  const std::string group = text("group");
  for (std::size_t i = 0; i < rows_.rows(); ++i) {
    if (i != row_ && (group.empty() || rows_.text(i, "group") != group || !rows_.text(i, "etp").empty()))
      continue;
    const RowReader other(rows_, models_, tables_, i);
    const std::int64_t ranks = other.size("tp") * other.size("cp") * other.size("dp");
    if (ranks % (other.size("ep") * other.size("tp")) != 0) return 1;
  }
  return size("tp");
}

void RowReader::add_expert_framework(json& framework) const {
  const std::string dispatcher = text("dispatcher");
  if (dispatcher.starts_with("custom all-to-all")) {  // DeepSeek-V3's own, published as DeepEP
    framework["expert_dispatcher"] = "deepep";
    framework["exchange_sm_margin"] = true;
    if (const std::int64_t nodes = number_after(dispatcher, "at most "); nodes > 0)
      framework["expert_nodes"] = nodes;
  } else if (word("dispatcher", {"", "alltoall", "deepep", "hybridep"}) == "alltoall") {
    framework["expert_dispatcher"] = "alltoall";
  } else if (!dispatcher.empty()) {
    framework["expert_dispatcher"] = "deepep";
  }
  const std::string overlap = word("overlap", {"", "none", "1f1b", "dualpipe", "shared-expert"});
  if (!overlap.empty()) framework["expert_overlap"] = overlap == "1f1b" ? "dualpipe" : overlap;
  // A forced balance is one; so is a capacity of 1 that is filled up with padding.
  const std::string routing = text("routing");
  if (routing.find("forced balance") != std::string::npos || routing.starts_with("tokendrop"))
    framework["expert_imbalance"] = 1, framework["expert_skew"] = 0;
}

}  // namespace equipoise

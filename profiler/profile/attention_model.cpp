#include <algorithm>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "policies/base/names.h"
#include "profiler/profile/attention_call.h"
#include "profiler/profile/attention_form.h"
#include "profiler/profile/cost_models.h"
#include "profiler/profile/cpu_forms.h"
#include "profiler/profile/json_fields.h"
#include "profiler/profile/profile.h"
#include "profiler/profile/validity.h"

namespace equipoise {
namespace {

struct Direction {
  AttentionParameters parameters;
  DocumentMask apart = DocumentMask::varlen;
  bool cpu_core = false;  // then `loops` counts, not `parameters`
  BlockedAttentionParameters loops;
  Validity keys;
  Validity queries;
  std::string op;
};

Direction direction_of(const nlohmann::json& kernel, const std::string& pass, const std::string& where,
                       const std::string& profile, const AttentionHeads& heads) {
  const std::string here = where + "." + pass;
  const nlohmann::json& table = object_field(kernel, pass, where);
  Direction made;
  made.cpu_core = has_form(table, kBlockedLoops);
  if (made.cpu_core) {
    made.loops = blocked_attention_parameters(table, here);
  } else {
    made.parameters = attention_parameters(table, here);
    made.apart = document_mask(table, here);
  }
  made.keys = validity_of(table, "keys", here);
  made.queries = validity_of(table, "queries", here);
  made.op = "attention " + pass;
  const Validity dims = validity_of(table, "head_dim", here);
  if (!dims.allowed.holds(heads.head_dim))
    refuse_out_of_range(profile, made.op, "head_dim", heads.head_dim, dims.allowed);
  const Validity counts = validity_of(table, "query_heads", here);
  if (!counts.allowed.holds(heads.query_heads))
    refuse_out_of_range(profile, made.op, "query_heads", heads.query_heads, counts.allowed);
  return made;
}

// A piece under a window as causal pieces of a CPU core's tiles: what of it sees all its keys, then tiles
// that each see the window before them.
template <class Add>
void for_each_band(const QueryKeys& piece, std::int64_t window, const Add& add) {
  constexpr std::int64_t kTile = 64;
  const std::int64_t before = piece.keys - piece.queries;
  std::int64_t done =
      window == 0 ? piece.queries : std::clamp<std::int64_t>(window - before, 0, piece.queries);
  if (done > 0) add(QueryKeys{done, before + done});
  for (; done < piece.queries; done += kTile) {
    const std::int64_t rows = std::min(kTile, piece.queries - done);
    add(QueryKeys{rows, std::min(before + done + rows, window + rows - 1)});
  }
}

}  // namespace

const nlohmann::json& attention_kernel(const Profile& profile, const std::string& name) {
  const std::string where = profile.origin() + ": tables.attention";
  const nlohmann::json& kernels = object_field(profile.table("attention"), "kernels", where);
  if (!kernels.contains(name)) {
    std::vector<std::string> known;
    for (const auto& item : kernels.items()) known.push_back(item.key());
    throw UserError(
        where + ".kernels." + name +
        ": no such kernel (framework.attention_kernel, --kernel, or the table's default); there are " +
        joined(known));
  }
  return object_field(kernels, name, where + ".kernels");
}

struct AttentionModel::Fit {
  std::string profile;
  AttentionHeads heads;
  double sms = 1;
  Direction forward;
  Direction backward;

  [[nodiscard]] double blocked_seconds(const Direction& direction, std::span<const QueryKeys> pieces,
                                       std::int64_t window) const {
    BlockedAttentionWork work;
    for (const QueryKeys& piece : pieces)
      if (piece.queries > 0)
        for_each_band(piece, window, [&](QueryKeys p) { work.add_causal(p.queries, p.keys); });
    return attention_seconds(direction.loops, heads, work);
  }

  // Notes the call; throws where it is outside what the direction's table is valid for.
  void note(const Direction& direction, const AttentionCall& call, RangeUse& use) const {
    const auto longest = static_cast<double>(call.most_keys);
    if (longest > direction.keys.allowed.high)
      refuse_out_of_range(profile, direction.op, "keys", longest, direction.keys.allowed);
    use.calls += 1;
    if (longest > direction.keys.samples.high ||
        static_cast<double>(call.fewest_queries) < direction.queries.samples.low)
      use.beyond_samples += 1;
    use.derived += direction.keys.derived ? 1 : 0;
  }

  [[nodiscard]] double seconds(const Direction& direction, const AttentionCall& call, RangeUse& use) const {
    if (call.work.tiles == 0) return 0;
    note(direction, call, use);
    return attention_seconds(direction.parameters, heads, sms, call.work);
  }

  [[nodiscard]] double seconds(const Direction& direction, std::span<const QueryKeys> pieces, RangeUse& use,
                               std::int64_t window) const {
    AttentionCall call = count_call(pieces, window);
    if (call.work.tiles == 0) return 0;
    note(direction, call, use);
    if (direction.cpu_core) return blocked_seconds(direction, pieces, window);
    if (window == 0 && direction.apart != DocumentMask::varlen)
      call.work = attention_work({}, direction.apart, pieces);
    return attention_seconds(direction.parameters, heads, sms, call.work);
  }

  [[nodiscard]] Least least(const Direction& direction) const {
    if (direction.cpu_core) return {};
    const LeastAttention least = least_attention_seconds(direction.parameters, heads, sms);
    // Only packed calls are sure to have a masked tile for each 128 queries of a document.
    return {direction.apart == DocumentMask::varlen ? least.per_query : 0, least.per_pair};
  }
};

AttentionModel::AttentionModel(const Profile& profile, AttentionHeads heads, std::string_view kernel_choice)
    : fit_(std::make_unique<Fit>()) {
  const std::string where = profile.origin() + ": tables.attention";
  if (heads.query_heads < 1 || heads.kv_heads < 1)
    throw UserError("attention: expected at least one query head and one KV head on a GPU, found " +
                    std::to_string(heads.query_heads) + " and " + std::to_string(heads.kv_heads));
  const nlohmann::json& table = profile.table("attention");
  const std::string kernel_name =
      kernel_choice.empty() ? text_field(table, "default", where) : std::string(kernel_choice);
  const nlohmann::json& kernel = attention_kernel(profile, kernel_name);
  const std::string here = where + ".kernels." + kernel_name;
  fit_->profile = profile.name();
  fit_->heads = heads;
  fit_->sms = profile.device().sms;
  fit_->forward = direction_of(kernel, "forward", here, profile.name(), heads);
  fit_->backward = direction_of(kernel, "backward", here, profile.name(), heads);
}

AttentionModel::~AttentionModel() = default;
AttentionModel::AttentionModel(AttentionModel&&) noexcept = default;
AttentionModel& AttentionModel::operator=(AttentionModel&&) noexcept = default;

double AttentionModel::forward_seconds(std::span<const QueryKeys> pieces, RangeUse& use,
                                       std::int64_t window) const {
  return fit_->seconds(fit_->forward, pieces, use, window);
}

double AttentionModel::backward_seconds(std::span<const QueryKeys> pieces, RangeUse& use,
                                        std::int64_t window) const {
  return fit_->seconds(fit_->backward, pieces, use, window);
}

bool AttentionModel::prices_counts() const {
  const auto packs = [](const Direction& d) { return !d.cpu_core && d.apart == DocumentMask::varlen; };
  return packs(fit_->forward) && packs(fit_->backward);
}

double AttentionModel::forward_seconds(const AttentionCall& call, RangeUse& use) const {
  return fit_->seconds(fit_->forward, call, use);
}

double AttentionModel::backward_seconds(const AttentionCall& call, RangeUse& use) const {
  return fit_->seconds(fit_->backward, call, use);
}

AttentionModel::Least AttentionModel::least_forward() const {
  return fit_->least(fit_->forward);
}

AttentionModel::Least AttentionModel::least_backward() const {
  return fit_->least(fit_->backward);
}

}  // namespace equipoise

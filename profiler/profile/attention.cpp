#include "profiler/profile/attention.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "profiler/profile/cpu_forms.h"
#include "profiler/profile/form_parameters.h"
#include "profiler/profile/profile.h"
#include "traces/json_object.h"

namespace equipoise {
namespace {

std::int64_t query_tiles(std::int64_t tokens) {
  return (tokens + kAttentionTile - 1) / kAttentionTile;
}
std::int64_t key_blocks(std::int64_t keys) {
  return (keys + kAttentionBlock - 1) / kAttentionBlock;
}

// Counts one sequence under a map of 128 x 128 blocks, document by document and row of blocks by row of
// blocks.
class BlockMap {
 public:
  void add(const QueryKeys& document) {
    if (document.row) begin_row();
    const std::int64_t prefix = document.keys - document.queries;
    const std::int64_t end = first_query_ + document.queries;
    for (std::int64_t row = first_query_; row < end;) {
      const std::int64_t tile = row / kAttentionTile;
      const std::int64_t next = std::min((tile + 1) * kAttentionTile, end);
      const bool shared = next - row < kAttentionTile;  // the block also holds another document, or none
      visit(tile, prefix + row - first_query_, prefix + next - first_query_, shared);
      row = next;
    }
    first_query_ = end;
    first_key_ += document.keys;
    work_.query_tokens += document.queries;
    work_.key_tokens += document.keys;
  }

  AttentionWork work() {
    close_tile();
    return work_;
  }

 private:
  // Every row has a map of its own, which begins with a block.
  void begin_row() {
    close_tile();
    tile_ = -1;
    first_query_ = query_tiles(first_query_) * kAttentionTile;
    first_key_ = query_tiles(first_key_) * kAttentionTile;
  }

  // Adds the rows of one document in one tile. The first of them sees the document's keys up to `least` and
  // itself, the last one those up to `most`.
  void visit(std::int64_t tile, std::int64_t least, std::int64_t most, bool shared) {
    if (tile != tile_) {
      close_tile();
      tile_ = tile;
      work_.tiles += 1;
    }
    const std::int64_t begin = std::max(next_column_, first_key_ / kAttentionTile);
    const std::int64_t end = query_tiles(first_key_ + most);
    if (end <= begin) return;
    const std::int64_t seen_by_all = (first_key_ + least + 1) / kAttentionTile;
    const std::int64_t border =
        first_key_ % kAttentionTile != 0 && begin == first_key_ / kAttentionTile ? 1 : 0;
    const std::int64_t cut = end - std::max(begin, seen_by_all) + border;
    work_.masked_tiles += shared ? end - begin : std::min(end - begin, cut);
    columns_ += end - begin;
    next_column_ = end;
  }

  void close_tile() {
    const std::int64_t blocks = columns_ * (kAttentionTile / kAttentionBlock);
    work_.blocks += blocks;
    work_.longest = std::max(work_.longest, blocks);
    columns_ = 0;
    next_column_ = 0;
  }

  AttentionWork work_;
  std::int64_t first_query_ = 0;
  std::int64_t first_key_ = 0;
  std::int64_t tile_ = -1;
  std::int64_t columns_ = 0;      // blocks of this row of blocks so far
  std::int64_t next_column_ = 0;  // the first block that no document of this tile has reached
};

constexpr double kBytesPerElement = 2;  // bf16

// (a^p + b^p)^(1/p), with the larger factored out so that neither power overflows.
double norm_of(double a, double b, double p) {
  const double high = std::max(a, b);
  return high > 0 ? high * std::pow(1 + std::pow(std::min(a, b) / high, p), 1 / p) : 0;
}

constexpr FormParameter<AttentionParameters> kAttentionParameters[] = {
    {"launch_us", &AttentionParameters::launch_us},
    {"tile_us", &AttentionParameters::tile_us},
    {"tile_us_per_128", &AttentionParameters::tile_us_per_128},
    {"block_us", &AttentionParameters::block_us},
    {"block_us_per_128", &AttentionParameters::block_us_per_128, kPositive},
    {"block_us_per_128_above", &AttentionParameters::block_us_per_128_above},
    {"diagonal_blocks", &AttentionParameters::diagonal_blocks},
    {"imbalance_power", &AttentionParameters::imbalance_power, kPositive},
    {"memory_GBps", &AttentionParameters::memory_GBps, kPositive},
    {"key_share", &AttentionParameters::key_share},
    {"host_us", &AttentionParameters::host_us},
    {"pass_rows", &AttentionParameters::pass_rows, kOptional},
    {"empty_tile_us", &AttentionParameters::empty_tile_us, kOptional},
    {"second_call_us", &AttentionParameters::second_call_us, kOptional},
};

struct Direction {
  AttentionPass pass = AttentionPass::forward;
  AttentionParameters parameters;
  DocumentMask apart = DocumentMask::varlen;
  bool cpu_core = false;  // true: `loops` holds the fit instead of `parameters`
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
  if (pass == "backward") made.pass = AttentionPass::backward;
  const Validity dims = validity_of(table, "head_dim", here);
  if (!dims.allowed.holds(heads.head_dim))
    refuse_out_of_range(profile, made.op, "head_dim", heads.head_dim, dims.allowed);
  const Validity counts = validity_of(table, "query_heads", here);
  if (!counts.allowed.holds(heads.query_heads))
    refuse_out_of_range(profile, made.op, "query_heads", heads.query_heads, counts.allowed);
  return made;
}

// Splits a piece under a window into causal pieces for a CPU core: first the queries that see all their keys,
// then tiles that each see the window before them.
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

// A lower bound on the time of calls: every call takes the work spread over all SMs, and every visible pair
// lies in a block. So a query takes at least its share of a masked tile, and a visible pair its share of a
// block.
AttentionModel::Least least_attention_seconds(const AttentionParameters& fit, const AttentionHeads& heads,
                                              double sms) {
  const double dims = heads.head_dim / 128.0;
  const double tile = fit.tile_us + fit.tile_us_per_128 * dims;
  const double block =
      fit.block_us + fit.block_us_per_128 * dims + fit.block_us_per_128_above * std::max(0.0, dims - 1);
  const double of_sms = 1e-6 * heads.query_heads / sms / kAttentionTile;
  return {of_sms * (tile + fit.diagonal_blocks * block), of_sms * block / kAttentionTile};
}

}  // namespace

void AttentionWork::add_full(std::int64_t queries, std::int64_t keys, AttentionPass pass) {
  const bool forward = pass == AttentionPass::forward;
  const std::int64_t row = key_blocks(forward ? keys : queries);
  const std::int64_t count = query_tiles(forward ? queries : keys);
  add_piece(queries, keys, count, 0, count * row, row);
}

void AttentionWork::add_window(std::int64_t queries, std::int64_t keys, std::int64_t window) {
  const std::int64_t prefix = keys - queries;
  std::int64_t all = 0, most = 0;
  for (std::int64_t begin = 0; begin < queries; begin += kAttentionTile) {
    const std::int64_t end = std::min(begin + kAttentionTile, queries);
    const std::int64_t first_key = std::max<std::int64_t>(0, prefix + begin - window + 1);
    const std::int64_t row = key_blocks(prefix + end) - first_key / kAttentionBlock;
    all += row;
    most = std::max(most, row);
  }
  add_piece(queries, keys, query_tiles(queries), query_tiles(queries), all, most);
}

void AttentionWork::add_window_backward(std::int64_t queries, std::int64_t keys, std::int64_t window) {
  const std::int64_t prefix = keys - queries;
  std::int64_t all = 0, most = 0;
  for (std::int64_t begin = 0; begin < keys; begin += kAttentionTile) {
    const std::int64_t first =
        std::max<std::int64_t>(0, begin - prefix);  // the first query that sees some of it
    const std::int64_t end = std::min(queries, std::min(begin + kAttentionTile, keys) - prefix + window - 1);
    const std::int64_t row = std::max<std::int64_t>(0, key_blocks(end) - first / kAttentionBlock);
    all += row;
    most = std::max(most, row);
  }
  add_piece(queries, keys, query_tiles(keys), query_tiles(keys), all, most);
}

AttentionWork attention_work(AttentionMask mask, DocumentMask apart, std::span<const QueryKeys> documents,
                             AttentionPass pass) {
  const bool forward = pass == AttentionPass::forward;
  AttentionWork work;
  BlockMap map;
  QueryKeys all;
  const bool plain = mask.causal && mask.window == 0;
  const bool whole =
      plain && apart == DocumentMask::square_causal &&
      std::ranges::any_of(documents, [](const QueryKeys& d) { return d.queries > 0 && d.queries != d.keys; });
  for (const QueryKeys& document : documents) {
    const auto [queries, keys, row] = document;
    if (queries <= 0) continue;
    if (!mask.causal || whole || (plain && apart == DocumentMask::rectangles)) {
      work.add_full(queries, keys, pass);
    } else if (!plain) {
      forward ? work.add_window(queries, keys, mask.window)
              : work.add_window_backward(queries, keys, mask.window);
    } else if (apart == DocumentMask::varlen || apart == DocumentMask::square_causal) {
      forward ? work.add_causal(queries, keys) : work.add_causal_backward(queries, keys);
    } else if (apart == DocumentMask::block_mask) {
      map.add(document);
    } else if (row) {
      work.add_full(queries, keys, pass);
    } else {
      all.queries += queries;
      all.keys += keys;
    }
  }
  if (plain && apart == DocumentMask::block_mask) work = map.work();
  if (all.queries > 0) work.add_full(all.queries, all.keys);
  work.second_call = whole && work.pieces > 1;
  return work;
}

double attention_seconds(const AttentionParameters& fit, const AttentionHeads& heads, double sms,
                         const AttentionWork& work) {
  const double dims = heads.head_dim / 128.0;
  const double tile = fit.tile_us + fit.tile_us_per_128 * dims;
  const double block =
      fit.block_us + fit.block_us_per_128 * dims + fit.block_us_per_128_above * std::max(0.0, dims - 1);
  const double query_heads = heads.query_heads;
  constexpr double kBlockShare = static_cast<double>(kAttentionBlock) / kAttentionTile;
  const double masked = static_cast<double>(work.masked_tiles) * fit.diagonal_blocks;
  const double total = query_heads * (static_cast<double>(work.tiles) * tile +
                                      static_cast<double>(work.empty_tiles()) * fit.empty_tile_us +
                                      (static_cast<double>(work.blocks) * kBlockShare + masked) * block);
  const double diagonal = work.masked_tiles > 0 ? fit.diagonal_blocks : 0;
  const double spread = total / sms;
  const double longest =
      (tile + (static_cast<double>(work.longest) * kBlockShare + diagonal) * block) * (1 - 1 / sms);
  const double compute_us = norm_of(spread, longest, fit.imbalance_power);
  // Bytes are counted in pairs of rows: queries read and output written, keys and values read. The backward
  // pass of FlashAttention 2 writes gradients of keys and values for each query head. The passes around its
  // main kernel overlap with nothing: they read O and dO for their product; zero, read and write dQ, which is
  // summed in fp32; and read and sum the gradients of a group. Where `pass_rows` is 0 (unknown), the main
  // kernel's bytes include all of this.
  const auto queries = static_cast<double>(work.query_tokens);
  const auto keys = static_cast<double>(work.key_tokens);
  const double key_heads = fit.pass_rows > 0 ? query_heads : heads.kv_heads;
  const double us_of_pair = 2 * kBytesPerElement * heads.head_dim * 1e-3 / fit.memory_GBps;
  const double memory_us = us_of_pair * (queries * query_heads + keys * key_heads * fit.key_share);
  const bool sums = fit.pass_rows > 0 && heads.kv_heads < heads.query_heads;
  const double passes_us = us_of_pair * (fit.pass_rows * queries * query_heads +
                                         (sums ? keys * (query_heads + heads.kv_heads) : 0));
  const double again_us = work.second_call ? fit.second_call_us : 0;
  return 1e-6 *
         (fit.launch_us + again_us + passes_us + std::sqrt(compute_us * compute_us + memory_us * memory_us));
}

double observed_attention_seconds(const AttentionParameters& fit, const AttentionHeads& heads, double sms,
                                  const AttentionWork& work) {
  const double kernel = attention_seconds(fit, heads, sms, work);
  const double host = 1e-6 * fit.host_us;
  if (host <= 0 || kernel <= 0) return kernel;
  // The spread of the host's time rounds the corner between host and kernel.
  constexpr double kSharpness = 8;
  return norm_of(kernel, host, kSharpness);
}

AttentionParameters attention_parameters(const nlohmann::json& table, const std::string& where) {
  return parameters_of(kAttentionParameters, table, where);
}

DocumentMask document_mask(const nlohmann::json& table, const std::string& where) {
  if (!table.contains("document_mask")) return DocumentMask::varlen;
  return static_cast<DocumentMask>(
      name_field(table, "document_mask", kDocumentMaskNames, where, joined(kDocumentMaskNames)));
}

nlohmann::json to_json(const AttentionParameters& fit) {
  return parameters_json(kAttentionParameters, fit);
}

const nlohmann::json& attention_kernel(const Profile& profile, const std::string& name) {
  const std::string where = profile.origin() + ": tables.attention";
  const nlohmann::json& kernels = object_field(profile.table("attention"), "kernels", where);
  if (!kernels.contains(name)) {
    throw UserError(
        where, ".kernels.", name,
        ": no such kernel (framework.attention_kernel, --kernel, or the table's default); there are ",
        joined(keys_of(kernels)));
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

  // Counts the call in `use` and returns its seconds. Throws UserError where it lies outside the validity of
  // the direction's table.
  double note(const Direction& direction, const AttentionCall& call, double call_seconds,
              RangeUse& use) const {
    const auto longest = static_cast<double>(call.most_keys);
    if (longest > direction.keys.allowed.high)
      refuse_out_of_range(profile, direction.op, "keys", longest, direction.keys.allowed);
    return use.note(longest > direction.keys.samples.high ||
                        static_cast<double>(call.fewest_queries) < direction.queries.samples.low,
                    direction.keys.derived, call_seconds);
  }

  [[nodiscard]] double seconds(const Direction& direction, const AttentionCall& call, RangeUse& use) const {
    if (call.work.tiles == 0) return 0;
    const AttentionWork work = direction.pass == AttentionPass::forward ? call.work
                               : direction.apart == DocumentMask::square_causal
                                   ? call.square_causal_backward()
                                   : call.backward;
    return note(direction, call, attention_seconds(direction.parameters, heads, sms, work), use);
  }

  [[nodiscard]] double seconds(const Direction& direction, std::span<const QueryKeys> pieces, RangeUse& use,
                               std::int64_t window) const {
    AttentionCall call = count_call(pieces, window);
    if (direction.cpu_core && call.work.tiles > 0)
      return note(direction, call, blocked_seconds(direction, pieces, window), use);
    if (window == 0 && direction.apart != DocumentMask::varlen)
      call.work = call.backward = attention_work({}, direction.apart, pieces, direction.pass);
    return seconds(direction, call, use);
  }

  [[nodiscard]] Least least(const Direction& direction) const {
    if (direction.cpu_core) return {};
    const Least least = least_attention_seconds(direction.parameters, heads, sms);
    // Only the packed kernel is certain to compute a masked tile for each 128 queries of a document.
    return {direction.apart == DocumentMask::varlen ? least.per_query : 0, least.per_pair};
  }
};

AttentionModel::AttentionModel(const Profile& profile, AttentionHeads heads, std::string_view kernel_choice) {
  const auto read = [&] {
    auto fit = std::make_shared<Fit>();
    const std::string where = profile.origin() + ": tables.attention";
    if (heads.query_heads < 1 || heads.kv_heads < 1)
      throw UserError("attention: expected at least one query head and one KV head on a GPU, found ",
                      heads.query_heads, " and ", heads.kv_heads);
    const nlohmann::json& table = profile.table("attention");
    const std::string kernel_name =
        kernel_choice.empty() ? text_field(table, "default", where) : std::string(kernel_choice);
    const nlohmann::json& kernel = attention_kernel(profile, kernel_name);
    const std::string here = where + ".kernels." + kernel_name;
    fit->profile = profile.name();
    fit->heads = heads;
    fit->sms = profile.device().sms;
    fit->forward = direction_of(kernel, "forward", here, profile.name(), heads);
    fit->backward = direction_of(kernel, "backward", here, profile.name(), heads);
    return fit;
  };
  fit_ = std::static_pointer_cast<const Fit>(
      profile.kept(concatenated("attention ", heads.head_dim, " ", heads.query_heads, " ", heads.kv_heads,
                                " ", kernel_choice),
                   read));
}

double AttentionModel::forward_seconds(std::span<const QueryKeys> pieces, RangeUse& use,
                                       std::int64_t window) const {
  return fit_->seconds(fit_->forward, pieces, use, window);
}

double AttentionModel::backward_seconds(std::span<const QueryKeys> pieces, RangeUse& use,
                                        std::int64_t window) const {
  return fit_->seconds(fit_->backward, pieces, use, window);
}

bool AttentionModel::prices_counts() const {
  const auto counts = [](const Direction& d) {
    const bool squares = d.apart == DocumentMask::square_causal && d.pass == AttentionPass::backward;
    return !d.cpu_core && (d.apart == DocumentMask::varlen || squares);
  };
  return counts(fit_->forward) && counts(fit_->backward);
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

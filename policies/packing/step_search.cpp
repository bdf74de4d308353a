// StepPacker::pack: the moves that shorten a step (step_packer.h).
#include <limits>
#include <numeric>
#include <tuple>

#include "policies/base/random.h"
#include "policies/least_loaded.h"
#include "policies/packing/step_packer.h"

namespace equipoise {
namespace {

// Weights in the objective, relative to the slowest group of lanes.
constexpr double kOfMean = 0.02, kOfWork = 0.01;
// The loss that a move may have at the start of each round, in shares of a lane's work that mean documents
// have.
constexpr double kLosses[] = {0, 0.5, 0.1};
// The moves per micro-batch for which a round pays, since every micro-batch that changed in it is priced.
constexpr std::int64_t kMovesOfPrice = 64;
// Limits the moves per document, since a small step gains nothing from more.
constexpr std::int64_t kMovesOfDocument = 200, kMovesOfStep = 3000;

// Lets pieces of one document that share a micro-batch run in their order: they exchange places.
void order_pieces(MicroBatch& micro_batch) {
  std::vector<std::size_t> by_token(micro_batch.slices.size());
  std::iota(by_token.begin(), by_token.end(), std::size_t{0});
  std::ranges::sort(by_token, {}, [&](std::size_t i) {
    return std::pair(micro_batch.slices[i].document, micro_batch.slices[i].begin);
  });
  const auto document_of = [&](std::size_t i) { return micro_batch.slices[i].document; };
  if (std::ranges::adjacent_find(by_token, {}, document_of) == by_token.end()) return;
  const MicroBatch packed = micro_batch;
  std::vector<std::size_t> places = by_token;  // the same documents, their places rising
  std::ranges::sort(places, {}, [&](std::size_t i) { return std::pair(packed.slices[i].document, i); });
  for (std::size_t k = 0; k < places.size(); ++k) {
    micro_batch.slices[places[k]] = packed.slices[by_token[k]];
    if (!packed.placement.empty()) micro_batch.placement[places[k]] = packed.placement[by_token[k]];
  }
}

}  // namespace

// A step while it is packed. Micro-batch b has `ranks_` places in `whole_`. Its slot (lane, place in the
// lane) is its position in the order.
class StepPacker::Search {
 public:
  Search(StepPacker& packer, std::span<const Slice> slices, std::size_t per_lane, const Behind& behind)
      : packer_(packer),
        slices_(slices),
        ranks_(static_cast<std::size_t>(std::max(1, packer.options_.context))),
        lanes_(static_cast<std::size_t>(std::max(1, packer.options_.lanes))),
        per_lane_(per_lane),
        waiting_(waiting_lanes(packer.options_)),
        groups_((lanes_ + waiting_ - 1) / waiting_),
        places_behind_(behind.places),
        shared_(packer.shared_per_token()),
        places_(packer.shape_.place && ranks_ > 1),
        clock_(packer.lane_shapes_.clock(per_lane)),
        behind_(behind.work),
        least_loaded_(ranks_) {
    weigh();
    behind_.resize(groups_);
    bins_.resize(lanes_ * per_lane);
    loads_.resize(bins_.size() * ranks_);
    slot_of_ = bin_at_ = std::vector<std::uint32_t>(bins_.size());
    effective_.resize(groups_ * per_lane);
    group_sum_ = group_time_ = std::vector<double>(groups_);
    paths_.resize(groups_);
    passes_.resize(per_lane);
  }

  std::optional<std::vector<Lane>> run() {
    if (fill(0))
      anchor();
    else if (!fill_best())  // a tapered one may find room
      return std::nullopt;
    keep_if_best();
    // Packs once more with the weights that follow from the prices, then makes rounds of moves with new
    // prices in between.
    learn_weights();
    if (fill_best()) keep_if_best();
    restore_best();
    const std::int64_t moves = std::min(
        packer_.shape_.moves, kMovesOfStep + kMovesOfDocument * static_cast<std::int64_t>(tokens_.size()));
    const double document = static_cast<double>(lanes_) / static_cast<double>(tokens_.size() + 1);
    const auto bins = static_cast<std::int64_t>(bins_.size());
    const std::int64_t rounds =
        std::clamp<std::int64_t>(moves / (kMovesOfPrice * bins), 1, std::ssize(kLosses));
    for (const double loss : std::span(kLosses).first(static_cast<std::size_t>(rounds))) {
      improve(moves / rounds, loss * document);
      anchor();
      keep_if_best();
      restore_best();
    }
    return lanes();
  }

 private:
  struct Bin {
    double spread = 0;
    std::int64_t spread_tokens = 0, tokens = 0;
    double scale = 1, forward = 1.0 / 3;  // ratio of the price to the sums; the forward's part of the price
    PassTimes time;
    bool priced = false;  // whether its present state is priced
  };
  struct Load {
    double whole = 0;
    std::int64_t tokens = 0;
  };

  void weigh() {
    const std::vector<std::int64_t> lengths = lengths_of(slices_);
    std::vector<double> spread(lengths.size()), whole(lengths.size());
    packer_.workload_.spread(lengths, static_cast<int>(ranks_), spread);
    packer_.workload_.on_group(lengths, 1, whole);
    order_ = heaviest_first(spread);
    for (const std::uint32_t i : order_) {
      tokens_.push_back(lengths[i]);
      spread_.push_back(spread[i]);
      whole_.push_back(whole[i]);
    }
    bin_of_.resize(lengths.size());
    rank_of_.resize(lengths.size());
    correction_.assign(lengths.size(), 1);
    std::tie(fixed_, forward_) = packer_.fixed_time();
  }

  // The work that a document adds to its micro-batch, whose work should be `target`.
  [[nodiscard]] double weight(std::size_t i, double target) const {
    const double even = whole_[i] / static_cast<double>(ranks_);
    return correction_[i] * (places_ && whole_[i] <= target ? std::min(even, spread_[i]) : spread_[i]);
  }

  // Chooses by sums the best targets between equal and tapered ones, then prices the result. Outliers may
  // exceed the targets.
  bool fill_best() {
    double least = std::numeric_limits<double>::infinity();
    double best = -1, filled = -1;
    for (const double taper : {0.0, 0.5, 1.0}) {
      if (taper > 0 && (!packer_.shape_.taper || packer_.lane_shapes_.stages() < 2)) break;
      filled = taper;
      if (!fill(taper) || objective_ >= least) continue;
      least = objective_;
      best = taper;
    }
    if (best < 0) return false;
    if (filled != best) fill(best);
    anchor();
    return true;
  }

  bool fill(double taper) {
    const std::size_t count = bins_.size();
    double total = 0;
    for (const double spread : spread_) total += spread;
    const std::int64_t tokens = std::accumulate(tokens_.begin(), tokens_.end(), std::int64_t{0});
    std::vector<double> weights(tokens_.size());
    for (int pass = 0; pass < 2; ++pass) {  // the second pass's target includes documents that stay whole
      const double target = total / static_cast<double>(count);
      total = 0;
      for (std::size_t i = 0; i < weights.size(); ++i) total += weights[i] = weight(i, target);
    }
    for (const double work : behind_) total += work * static_cast<double>(waiting_);
    if (total <= 0) total = 1;
    const double of_lane = total / static_cast<double>(lanes_);
    const double most = static_cast<double>(packer_.shape_.max_tokens) * static_cast<double>(lanes_) /
                        static_cast<double>(std::max<std::int64_t>(1, tokens));
    std::vector<double> shares;
    if (taper > 0)
      shares = packer_.lane_shapes_.shares(per_lane_ + places_behind_, fixed_ / of_lane, forward_, most);
    double whole = 1;
    if (taper > 0 && places_behind_ > 0) whole = std::accumulate(&shares[0], &shares[per_lane_], 0.0);
    for (std::size_t b = 0; b < count; ++b) {
      bins_[b] = {};
      bins_[b].forward = forward_;
      slot_of_[b] = bin_at_[b] = static_cast<std::uint32_t>(b);
    }
    std::fill(loads_.begin(), loads_.end(), Load{});
    // Gives lanes that wait for each other documents of similar size at the same place, one per lane.
    LeastLoaded<double> lacking(groups_ * per_lane_);
    const double even = 1 / static_cast<double>(per_lane_);
    for (std::size_t p = 0; p < groups_ * per_lane_; ++p)
      lacking.add_unplayed(p, -(taper > 0 ? even + taper * (shares[p % per_lane_] / whole - even) : even) *
                                  std::max(0.0, of_lane - behind_[p / per_lane_]));
    lacking.replay();
    std::vector<double> filled(count, 0);
    for (std::size_t i = 0; i < tokens_.size();) {
      const std::size_t place = lacking.least(), group = place / per_lane_;
      const std::size_t lanes = std::min(lanes_, (group + 1) * waiting_) - group * waiting_;
      for (const std::size_t end = std::min(tokens_.size(), i + lanes); i < end; ++i) {
        std::size_t bin = group * waiting_ * per_lane_ + place % per_lane_;
        for (std::size_t other = bin, l = 1; l < lanes; ++l)
          if (filled[other += per_lane_] < filled[bin]) bin = other;
        if (bins_[bin].tokens + tokens_[i] > packer_.shape_.max_tokens) {
          bin = static_cast<std::size_t>(std::ranges::min_element(bins_, {}, &Bin::tokens) - bins_.begin());
          if (bins_[bin].tokens + tokens_[i] > packer_.shape_.max_tokens) return false;
        }
        bin_of_[i] = static_cast<std::uint32_t>(bin);
        bins_[bin].tokens += tokens_[i];
        filled[bin] += weights[i] - shared_.total() * static_cast<double>(tokens_[i]);
        lacking.add(group_of(bin) * per_lane_ + bin % per_lane_, weights[i] / static_cast<double>(lanes));
      }
    }
    const auto documents = documents_of_bins();
    for (std::size_t b = 0; b < count; ++b) {
      arrange(b, documents[b]);
      time(b);
    }
    time_all();
    return true;
  }

  [[nodiscard]] std::vector<std::vector<std::uint32_t>> documents_of_bins() const {
    std::vector<std::vector<std::uint32_t>> documents(bins_.size());
    for (std::size_t i = 0; i < bin_of_.size(); ++i)
      documents[bin_of_[i]].push_back(static_cast<std::uint32_t>(i));
    return documents;
  }

  // Decides which of a micro-batch's documents, largest first, are distributed, and which rank holds each of
  // the others.
  void arrange(std::size_t b, std::span<const std::uint32_t> documents) {
    std::size_t spread = documents.size();
    if (places_) spread = spread_documents(documents, spread_, whole_, static_cast<double>(ranks_));
    for (; !deal(b, documents, spread); ++spread) continue;
  }

  // Distributes the first documents. Returns false where the others then find no room on a rank.
  bool deal(std::size_t b, std::span<const std::uint32_t> documents, std::size_t spread) {
    Bin& bin = bins_[b];
    Load* const loads = &loads_[b * ranks_];
    std::fill(loads, loads + ranks_, Load{});
    least_loaded_.reset();
    bin.spread = 0;
    bin.spread_tokens = 0;
    bin.tokens = 0;
    for (std::size_t k = 0; k < documents.size(); ++k) {
      const std::uint32_t i = documents[k];
      rank_of_[i] = k < spread ? kDistributed : static_cast<int>(least_loaded_.least());
      add(i, b, 1);
      if (k >= spread) least_loaded_.add(least_loaded_.least(), whole_[i]);
    }
    return spread == documents.size() || has_room(b);
  }

  [[nodiscard]] std::size_t least_rank(std::size_t b) const {
    const std::span loads = std::span(loads_).subspan(b * ranks_, ranks_);
    return static_cast<std::size_t>(std::ranges::min_element(loads, {}, &Load::whole) - loads.begin());
  }

  // Whether its tokens fit, and those of its fullest rank fit into a rank's share.
  [[nodiscard]] bool has_room(std::size_t b) const {
    const std::int64_t most = packer_.shape_.max_tokens;
    if (bins_[b].tokens > most) return false;
    const auto ranks = static_cast<std::int64_t>(ranks_);
    std::int64_t fullest = 0;
    for (std::size_t r = 0; r < ranks_; ++r) fullest = std::max(fullest, loads_[b * ranks_ + r].tokens);
    return fullest == 0 || ranks * fullest + bins_[b].spread_tokens <= most;
  }

  // Adds document i to micro-batch b (sign 1) or removes it (-1), at its rank_of_.
  void add(std::size_t i, std::size_t b, int sign) {
    Bin& bin = bins_[b];
    bin.priced = false;
    bin.tokens += sign * tokens_[i];
    if (rank_of_[i] == kDistributed) {
      bin.spread += sign * spread_[i];
      bin.spread_tokens += sign * tokens_[i];
    } else {
      Load& load = loads_[b * ranks_ + static_cast<std::size_t>(rank_of_[i])];
      load.whole += sign * whole_[i];
      load.tokens += sign * tokens_[i];
    }
  }

  [[nodiscard]] double sum_of(std::size_t b) const {
    if (bins_[b].tokens == 0) return 0;
    double most = 0;
    for (std::size_t r = 0; r < ranks_; ++r) most = std::max(most, loads_[b * ranks_ + r].whole);
    return fixed_ + bins_[b].spread + most;
  }
  void time(std::size_t b) {
    const double all = bins_[b].scale * sum_of(b);
    bins_[b].time = {bins_[b].forward * all, (1 - bins_[b].forward) * all};
  }

  // Prices every micro-batch that changed since its last price.
  void anchor() {
    const auto documents = documents_of_bins();
    MicroBatch priced;
    for (std::size_t b = 0; b < bins_.size(); ++b) {
      if (bins_[b].priced) continue;
      bins_[b].priced = true;
      if (documents[b].empty()) {
        time(b);
        continue;
      }
      fill_micro_batch(documents[b], priced);
      const PassTimes price = packer_.workload_.of_micro_batch(priced, static_cast<int>(ranks_));
      const double sum = sum_of(b);
      if (sum > 0 && price.total() > 0) {
        bins_[b].scale = price.total() / sum;
        bins_[b].forward = price.forward / price.total();
      }
      time(b);
    }
    forward_ = bins_.front().forward;
    time_all();
  }

  void fill_micro_batch(std::span<const std::uint32_t> documents, MicroBatch& out) const {
    out.slices.clear();
    out.placement.clear();
    bool placed = false;
    for (const std::uint32_t i : documents) {
      out.slices.push_back(slices_[order_[i]]);
      out.placement.push_back(rank_of_[i]);
      placed = placed || rank_of_[i] != kDistributed;
    }
    if (!placed) out.placement.clear();
    out.recompute_layers = least_recompute(out, static_cast<int>(ranks_), packer_.recompute_);
  }

  void learn_weights() {
    double mean = 0;
    for (const Bin& bin : bins_) mean += bin.scale / static_cast<double>(bins_.size());
    for (std::size_t i = 0; i < correction_.size(); ++i) correction_[i] = bins_[bin_of_[i]].scale / mean;
  }

  // ---- The clock of all lanes ----

  [[nodiscard]] std::size_t group_of(std::size_t slot) const { return slot / per_lane_ / waiting_; }

  // The time of the slowest of the group's lanes at this place.
  void wait(std::size_t slot) {
    const std::size_t group = group_of(slot), place = slot % per_lane_;
    const std::size_t first = group * waiting_, end = std::min(lanes_, first + waiting_);
    SharedPlace lanes(shared_, end - first);
    for (std::size_t l = first; l < end; ++l) {
      const Bin& bin = bins_[bin_at_[l * per_lane_ + place]];
      lanes.add(bin.time, bin.tokens);
    }
    PassTimes& here = effective_[group * per_lane_ + place];
    group_sum_[group] += lanes.times().total() - here.total();
    here = lanes.times();
  }
  [[nodiscard]] std::span<const PassTimes> times_of(std::size_t group) const {
    return std::span(effective_).subspan(group * per_lane_, per_lane_);
  }

  void time_all() {
    std::fill(effective_.begin(), effective_.end(), PassTimes{});
    std::fill(group_sum_.begin(), group_sum_.end(), 0.0);
    work_ = 0;
    for (std::size_t slot = 0; slot < bins_.size(); ++slot) wait(slot), work_ += bins_[slot].time.total();
    for (std::size_t g = 0; g < groups_; ++g) {
      group_time_[g] = makespan(g);
      paths_[g].reset(per_lane_);
      keep_path({g, {}});
    }
    objective_ = objective();
  }

  [[nodiscard]] double makespan(std::size_t group) {
    return clock_.makespan(times_of(group)) + time_behind(group);
  }
  [[nodiscard]] double time_behind(std::size_t group) const {
    return behind_[group] / std::max(1, packer_.lane_shapes_.stages());
  }

  [[nodiscard]] double objective() const {
    double most = 0, sum = 0;
    for (const double t : group_time_) most = std::max(most, t), sum += t;
    return most + kOfMean * sum / static_cast<double>(groups_) +
           kOfWork * work_ / static_cast<double>(lanes_) / std::max(1, packer_.lane_shapes_.stages());
  }

  struct Change {
    std::size_t document;
    std::uint32_t bin;
    int rank;
  };

  // Threshold accepting (Dueck and Scheuer 1990): a move may increase the objective a little at first, and
  // not at all in the last third.
  void improve(std::int64_t moves, double loss) {
    if (tokens_.empty() || bins_.size() * ranks_ < 2) return;
    for (std::int64_t m = 0; m < moves; ++m) {
      const double left = 1 - 1.5 * static_cast<double>(m) / static_cast<double>(moves);
      may_lose_ = 1 + loss * std::max(0.0, left);
      const std::uint64_t drawn = random_.next();
      const std::size_t i = (drawn >> 8) % tokens_.size();
      const auto b = static_cast<std::uint32_t>(random_.next() % bins_.size());
      const std::uint64_t kind = drawn % 16;
      if (kind < 6) {
        shift(i, b, (drawn >> 40) % 4 == 0);
      } else if (kind < 11) {
        exchange(i, (drawn >> 40) % 16);
      } else if (kind < 14 && places_) {
        const std::uint64_t rank = (drawn >> 40) % (ranks_ + 1);
        change({{i, bin_of_[i], rank == ranks_ ? kDistributed : static_cast<int>(rank)}});
      } else {
        turn(bin_of_[i], b);
      }
    }
  }

  // `other`: a distributed document becomes a whole one, or the reverse.
  void shift(std::size_t i, std::uint32_t b, bool other) {
    if (b == bin_of_[i] || bins_[b].tokens + tokens_[i] > packer_.shape_.max_tokens) return;
    const bool spread = (rank_of_[i] == kDistributed) != (other && places_);
    change({{i, b, spread || !places_ ? kDistributed : static_cast<int>(least_rank(b))}});
  }

  // Exchanges a document with one that is a few places smaller. Each takes the other's rank.
  void exchange(std::size_t i, std::size_t further) {
    const std::size_t k = i + 1 + further;
    if (k >= tokens_.size() || bin_of_[k] == bin_of_[i]) return;
    change({{i, bin_of_[k], rank_of_[k]}, {k, bin_of_[i], rank_of_[i]}});
  }

  template <std::size_t N>
  void change(Change (&&changes)[N]) {
    std::uint32_t touched[2 * N];
    std::size_t touching = 0;
    for (const Change& c : changes) {
      if (c.bin == bin_of_[c.document] && c.rank == rank_of_[c.document]) return;
      for (const std::uint32_t b : {bin_of_[c.document], c.bin})
        if (std::find(touched, touched + touching, b) == touched + touching) touched[touching++] = b;
    }
    save({touched, touching});
    const auto exchange_with = [&](Change& c) {
      std::swap(bin_of_[c.document], c.bin);
      std::swap(rank_of_[c.document], c.rank);
    };
    for (Change& c : changes) {
      add(c.document, bin_of_[c.document], -1);
      exchange_with(c);
      add(c.document, bin_of_[c.document], 1);
    }
    bool stays = true;
    for (std::size_t t = 0; t < touching && stays; ++t) stays = has_room(touched[t]);
    if (stays) {
      for (std::size_t t = 0; t < touching; ++t) {
        work_ -= bins_[touched[t]].time.total();
        time(touched[t]);
        work_ += bins_[touched[t]].time.total();
      }
      stays = is_better({touched, touching});
    }
    if (stays) return;
    for (Change& c : changes) exchange_with(c);
    take_back({touched, touching});
  }

  // Exchanges the places of two micro-batches.
  void turn(std::uint32_t a, std::uint32_t b) {
    if (a == b) return;
    const std::uint32_t touched[] = {a, b};
    save(touched);
    swap_places(a, b);
    if (is_better(touched)) return;
    swap_places(a, b);
    take_back(touched);
  }
  void swap_places(std::uint32_t a, std::uint32_t b) {
    std::swap(slot_of_[a], slot_of_[b]);
    bin_at_[slot_of_[a]] = a;
    bin_at_[slot_of_[b]] = b;
  }

  void save(std::span<const std::uint32_t> touched) {
    saved_bins_.clear();
    saved_loads_.clear();
    saved_effective_.clear();
    saved_work_ = work_;
    for (const std::uint32_t b : touched) {
      saved_bins_.push_back(bins_[b]);
      const auto first = loads_.begin() + static_cast<std::ptrdiff_t>(b * ranks_);
      saved_loads_.insert(saved_loads_.end(), first, first + static_cast<std::ptrdiff_t>(ranks_));
      const std::size_t slot = slot_of_[b], group = group_of(slot);
      const std::size_t place = group * per_lane_ + slot % per_lane_;
      saved_effective_.push_back({place, effective_[place], group, group_sum_[group], group_time_[group]});
    }
  }
  void take_back(std::span<const std::uint32_t> touched) {
    for (std::size_t t = 0; t < touched.size(); ++t) {
      bins_[touched[t]] = saved_bins_[t];
      std::copy_n(saved_loads_.begin() + static_cast<std::ptrdiff_t>(t * ranks_), ranks_,
                  loads_.begin() + static_cast<std::ptrdiff_t>(touched[t] * ranks_));
      const SavedPlace& place = saved_effective_[t];
      effective_[place.at] = place.time;
      group_sum_[place.group] = place.sum;
      group_time_[place.group] = place.makespan;
    }
    work_ = saved_work_;
  }

  // A group of lanes with changed micro-batches, and by how much the times of its places changed.
  struct ChangedGroup {
    std::size_t group;
    std::array<PlaceChange, 4> changes;
    std::size_t count = 0;
    double bound = 0;  // the longest of its known paths
    [[nodiscard]] std::span<const PlaceChange> places() const { return std::span(changes).first(count); }
  };

  // From what save() kept of the places that changed since.
  void note_changes() {
    changed_.clear();
    for (std::size_t t = 0; t < saved_effective_.size(); ++t) {
      const SavedPlace& place = saved_effective_[t];
      const auto kept = saved_effective_.begin() + static_cast<std::ptrdiff_t>(t);
      if (std::any_of(saved_effective_.begin(), kept, [&](const SavedPlace& s) { return s.at == place.at; }))
        continue;
      auto group = std::ranges::find(changed_, place.group, &ChangedGroup::group);
      if (group == changed_.end()) group = changed_.insert(changed_.end(), {place.group, {}});
      group->changes[group->count++] = {place.at % per_lane_, effective_[place.at] - place.time};
    }
  }

  // Computes the times of the lanes with changed micro-batches again, and keeps the objective if it is
  // smaller. Lower bounds on these times refuse most changes before a lane is timed.
  bool is_better(std::span<const std::uint32_t> touched) {
    for (const std::uint32_t b : touched) wait(slot_of_[b]);
    note_changes();
    for (ChangedGroup& changed : changed_) {
      const std::span<const PassTimes> times = times_of(changed.group);
      const double sum = group_sum_[changed.group] + behind_[changed.group];
      if (clock_.least(sum, times.front(), times.back()) >= objective_ * may_lose_) return false;
      changed.bound = paths_[changed.group].longest_after(changed.places());
      group_time_[changed.group] = changed.bound + time_behind(changed.group);
    }
    const double most = objective_ * (may_lose_ - 1e-12);
    const auto refused = [&] { return objective() >= most + objective_ * LongestPaths::kRounding; };
    if (refused()) return false;
    for (const ChangedGroup& changed : changed_) {
      group_time_[changed.group] = makespan(changed.group);
      keep_path(changed);
      if (changed.group != changed_.back().group && refused()) return false;
    }
    const double found = objective();
    if (!(found < most)) return false;
    objective_ = found;
    for (const ChangedGroup& changed : changed_) paths_[changed.group].change(changed.places());
    return true;
  }

  // Keeps the longest path of the group that was timed last, if it is a new one, with its length before the
  // changes.
  void keep_path(const ChangedGroup& changed) {
    double length = group_time_[changed.group] - time_behind(changed.group);
    if (!clock_.has_path() || changed.bound >= length * (1 - LongestPaths::kRounding)) return;
    clock_.longest_path(passes_);
    for (const PlaceChange& change : changed.places())
      length -= passes_[change.place].forward * change.more.forward +
                passes_[change.place].backward * change.more.backward;
    paths_[changed.group].add(passes_, length);
  }

  void keep_if_best() {
    if (!(objective_ < best_.objective)) return;
    best_ = {objective_, bin_of_, rank_of_, slot_of_, bins_, loads_};
  }
  void restore_best() {
    bin_of_ = best_.bin_of;
    rank_of_ = best_.rank_of;
    slot_of_ = best_.slot_of;
    for (std::size_t b = 0; b < bins_.size(); ++b) bin_at_[slot_of_[b]] = static_cast<std::uint32_t>(b);
    bins_ = best_.bins;
    loads_ = best_.loads;
    time_all();
  }

  [[nodiscard]] std::vector<Lane> lanes() const {
    std::vector<Lane> lanes(lanes_);
    const auto documents = documents_of_bins();
    for (std::size_t slot = 0; slot < bins_.size(); ++slot) {
      Lane& lane = lanes[slot / per_lane_];
      lane.context = static_cast<int>(ranks_);
      fill_micro_batch(documents[bin_at_[slot]], lane.micro_batches.emplace_back());
      order_pieces(lane.micro_batches.back());
    }
    return lanes;
  }

  StepPacker& packer_;
  std::span<const Slice> slices_;
  std::size_t ranks_, lanes_, per_lane_, waiting_, groups_, places_behind_;
  PassTimes shared_;  // shared time of a token, for lanes that wait for each other
  bool places_;
  PipelineClock& clock_;
  std::vector<double> behind_;  // work after the packed micro-batches, by group
  double fixed_ = 0,
         forward_ = 1.0 / 3;  // time of a micro-batch besides its documents; the forward's part of times

  // Members by document, heaviest first, follow.
  std::vector<std::uint32_t> order_;  // its slice
  std::vector<std::int64_t> tokens_;
  std::vector<double> spread_, whole_, correction_;
  std::vector<std::uint32_t> bin_of_;
  std::vector<int> rank_of_;  // or kDistributed

  std::vector<Bin> bins_;
  std::vector<Load> loads_;  // loads by micro-batch and rank
  LeastLoaded<double> least_loaded_;  // scratch: the ranks of one micro-batch
  std::vector<std::uint32_t> slot_of_, bin_at_;
  std::vector<PassTimes> effective_;  // times by group of lanes and place
  std::vector<double> group_sum_, group_time_;
  double work_ = 0, objective_ = 0, may_lose_ = 1;
  std::vector<LongestPaths> paths_;  // by group
  std::vector<PassTimes> passes_;
  std::vector<ChangedGroup> changed_;

  SplitMix64 random_;
  struct SavedPlace {
    std::size_t at;
    PassTimes time;
    std::size_t group;
    double sum, makespan;
  };
  std::vector<Bin> saved_bins_;
  std::vector<Load> saved_loads_;
  std::vector<SavedPlace> saved_effective_;
  double saved_work_ = 0;
  struct Best {
    double objective = std::numeric_limits<double>::infinity();
    std::vector<std::uint32_t> bin_of;
    std::vector<int> rank_of;
    std::vector<std::uint32_t> slot_of;
    std::vector<Bin> bins;
    std::vector<Load> loads;
  } best_;
};

std::optional<std::vector<Lane>> StepPacker::pack(std::span<const Slice> slices, std::size_t per_lane,
                                                  const Behind& behind) {
  return Search(*this, slices, per_lane, behind).run();
}

}  // namespace equipoise

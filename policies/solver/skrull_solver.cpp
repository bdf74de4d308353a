// Skrull's joint program (arXiv 2505.19609, Eq. 8-11), which GDS and DACP solve by two separate heuristics.
// It decides together a document's lane and micro-batch (GDS), and whether it stays whole on one CP rank or
// is distributed (DACP). For lane i, its micro-batch j, CP rank r and document k:
//
//   min z  such that  sum_j (m_ij + sum_k shared_k y_kij) <= z     the slowest lane
//                     sum_k whole_k x_kijr <= m_ij                 its slowest rank, during which
//                     sum_k exchange_k y_kij <= m_ij               the distributed ones are exchanged
//                     sum_ij (y_kij + sum_r x_kijr) = 1            every document once
//                     N sum_k s_k x_kijr + sum_k s_k y_kij <= N C  the bucket of a rank, in 1/N token
//                     sum_k s_k (y_kij + sum_r x_kijr) < N C       and of a micro-batch, as in GDS
//
// so a micro-batch takes max(exchange, local) + distributed / N. `whole` is the cost of a document on a group
// of one rank, `shared` an N-th of it, `exchange` the additional time of a group of N. A cost without
// communication (flops, quadratic) has no exchange, and then it is best to distribute everything.
//
// Departures: a lane has as many micro-batches as GDS with DACP gives the fullest one, since the equations
// price an additional micro-batch at zero and a machine does not. A micro-batch's exchange is the sum of its
// documents' exchanges, each with its own latency. The paper gives no solver. This one starts from the better
// of GDS with DACP under the same cost and GDS with every document distributed, both improved by moves and
// swaps, and is never worse than either.
//
// Lanes, micro-batches and ranks are interchangeable. Of the many copies of a solution the program keeps
// those where the k-th heaviest document (from 0) uses lane i, micro-batch j and rank r only if i + j + r <=
// k (r = 0 where it is distributed). Any solution can be renamed to satisfy that by numbering lanes,
// micro-batches and ranks by their first document. Cost: limited by SolverWork, else exponential; a dozen
// documents on two lanes of four ranks take seconds.
#include "policies/solver/skrull_solver.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "policies/least_loaded.h"
#include "policies/packing/skrull.h"
#include "policies/solver/mixed_program.h"
#include "policies/solver/solvers.h"
#include "policies/steps.h"

namespace equipoise {
namespace {

constexpr int kMostColumns = 200'000;   // a larger program is not made, whatever its limits
constexpr double kMostMoved = 4e8;      // documents that moves and swaps of a step examine
constexpr double kWorthIt = 1 - 1e-12;  // a smaller gain is rounding
constexpr double kOptimalGap = 1e-9;
constexpr double kBound =
    1000;  // the bound in the program's scale, so that absolute tolerances mean the same for any cost

struct Place {
  int lane = 0;
  int micro_batch = 0;
  int rank = kDistributed;
  friend bool operator==(const Place&, const Place&) = default;
};
using Places = std::vector<Place>;  // place of each document

// One batch, with documents sorted heaviest first.
struct Joint {
  std::vector<std::uint32_t> order;  // their positions in the batch
  std::vector<std::int64_t> tokens;
  std::vector<double> whole, shared, exchange;  // in the cost's unit
  int lanes = 1, micro_batches = 1, ranks = 1;
  std::int64_t bucket = 0;  // tokens that a rank holds at most

  [[nodiscard]] std::size_t documents() const { return tokens.size(); }
  [[nodiscard]] int bins() const { return lanes * micro_batches; }
  [[nodiscard]] int bin(const Place& place) const { return place.lane * micro_batches + place.micro_batch; }
};

Joint joint_of(const GlobalBatch& batch, const PackOptions& options, const Workload& workload) {
  Joint joint;
  joint.lanes = options.lanes;
  joint.ranks = options.context;
  joint.bucket = options.bucket_size;
  const std::vector<std::int64_t> lengths = lengths_of(batch.slices);
  std::vector<double> alone(lengths.size());
  workload.on_group(lengths, 1, alone);
  joint.order = heaviest_first(alone);
  for (const std::uint32_t i : joint.order) joint.tokens.push_back(lengths[i]);
  joint.whole.resize(lengths.size());
  workload.on_group(joint.tokens, 1, joint.whole);
  std::vector<double> on_all(lengths.size());
  workload.on_group(joint.tokens, joint.ranks, on_all);
  for (std::size_t k = 0; k < lengths.size(); ++k) {
    joint.shared.push_back(joint.whole[k] / joint.ranks);
    joint.exchange.push_back(std::max(0.0, on_all[k] - joint.shared[k]));
  }
  return joint;
}

// The tokens and times of an assignment's bins.
class Loads {
 public:
  Loads(const Joint& joint, const Places& places)
      : joint_(joint),
        whole_(at(joint.bins() * joint.ranks), 0),
        local_tokens_(at(joint.bins() * joint.ranks), 0),
        shared_(at(joint.bins()), 0),
        exchange_(at(joint.bins()), 0),
        distributed_tokens_(at(joint.bins()), 0) {
    for (std::size_t k = 0; k < places.size(); ++k) {
      const int bin = joint.bin(places[k]);
      if (places[k].rank == kDistributed) {
        shared_[at(bin)] += joint.shared[k];
        exchange_[at(bin)] += joint.exchange[k];
        distributed_tokens_[at(bin)] += joint.tokens[k];
      } else {
        whole_[at(bin * joint.ranks + places[k].rank)] += joint.whole[k];
        local_tokens_[at(bin * joint.ranks + places[k].rank)] += joint.tokens[k];
      }
    }
  }

  // m_ij, the part of a micro-batch's time that is not distributed work.
  [[nodiscard]] double before_distributed(int bin) const {
    const auto first = whole_.begin() + bin * joint_.ranks;
    return std::max(exchange_[at(bin)], *std::max_element(first, first + joint_.ranks));
  }

  [[nodiscard]] double slowest_lane() const {
    double slowest = 0;
    for (int lane = 0; lane < joint_.lanes; ++lane) {
      double seconds = 0;
      for (int j = 0; j < joint_.micro_batches; ++j) {
        const int bin = lane * joint_.micro_batches + j;
        seconds += before_distributed(bin) + shared_[at(bin)];
      }
      slowest = std::max(slowest, seconds);
    }
    return slowest;
  }

  [[nodiscard]] bool fit() const {
    for (int bin = 0; bin < joint_.bins(); ++bin) {
      const auto first = local_tokens_.begin() + bin * joint_.ranks;
      const std::int64_t distributed = distributed_tokens_[at(bin)];
      if (joint_.ranks * *std::max_element(first, first + joint_.ranks) + distributed >
          joint_.ranks * joint_.bucket)
        return false;
      if (std::accumulate(first, first + joint_.ranks, distributed) >= joint_.ranks * joint_.bucket)
        return false;
    }
    return true;
  }

 private:
  const Joint& joint_;
  std::vector<double> whole_;
  std::vector<std::int64_t> local_tokens_;
  std::vector<double> shared_, exchange_;
  std::vector<std::int64_t> distributed_tokens_;
};

// Infinite where a bucket overflows.
double objective_of(const Joint& joint, const Places& places) {
  const Loads loads(joint, places);
  return loads.fit() ? loads.slowest_lane() : std::numeric_limits<double>::infinity();
}

// A lower bound on the time of any assignment: all work spread evenly, or one document at its best.
double bound_of(const Joint& joint) {
  double bound = 0;
  for (std::size_t k = 0; k < joint.documents(); ++k) bound += joint.shared[k] / joint.lanes;
  for (std::size_t k = 0; k < joint.documents(); ++k) {
    const double distributed = joint.exchange[k] + joint.shared[k];
    bound = std::max(bound,
                     joint.tokens[k] <= joint.bucket ? std::min(joint.whole[k], distributed) : distributed);
  }
  return bound;
}

// Moves one document or swaps two, the best change first, until none helps or so many tries are made.
void improve(const Joint& joint, std::int64_t tries, Places& places) {
  double best = objective_of(joint, places);
  for (bool better = true; better && tries > 0;) {
    better = false;
    Places best_places;
    const auto consider = [&](const Places& tried) {
      --tries;
      const double objective = objective_of(joint, tried);
      if (!(objective < best * kWorthIt)) return;
      best = objective;
      best_places = tried;
      better = true;
    };
    Places tried = places;
    for (std::size_t k = 0; k < places.size() && tries > 0; ++k) {
      for (Place to; to.lane < joint.lanes; ++to.lane)
        for (to.micro_batch = 0; to.micro_batch < joint.micro_batches; ++to.micro_batch)
          for (to.rank = kDistributed; to.rank < joint.ranks; ++to.rank) {
            tried[k] = to;
            consider(tried);
          }
      tried[k] = places[k];
      for (std::size_t other = k + 1; other < places.size(); ++other) {
        std::swap(tried[k], tried[other]);
        consider(tried);
        std::swap(tried[k], tried[other]);
      }
    }
    if (better) places = std::move(best_places);
  }
}

// Renames bins by their first document, as the program's symmetry breaking requires.
Places renamed(const Joint& joint, const Places& places) {
  constexpr int kUnnamed = -1;
  std::vector<int> lane(at(joint.lanes), kUnnamed), micro_batch(at(joint.bins()), kUnnamed),
      rank(at(joint.bins() * joint.ranks), kUnnamed);
  std::vector<int> named_in_lane(at(joint.lanes), 0), named_in_bin(at(joint.bins()), 0);
  int named = 0;
  Places result = places;
  for (Place& place : result) {
    const int bin = joint.bin(place);
    if (int& name = lane[at(place.lane)]; name == kUnnamed) name = named++;
    if (int& name = micro_batch[at(bin)]; name == kUnnamed) name = named_in_lane[at(place.lane)]++;
    if (place.rank != kDistributed) {
      int& name = rank[at(bin * joint.ranks + place.rank)];
      if (name == kUnnamed) name = named_in_bin[at(bin)]++;
      place.rank = name;
    }
    place = {lane[at(place.lane)], micro_batch[at(bin)], place.rank};
  }
  return result;
}

// The columns are z, m_ij, then the allowed x and y of each document.
class JointProgram : public MixedProgram {
 public:
  explicit JointProgram(const Joint& joint) : joint_(joint), scale_(kBound / bound_of(joint)) {
    continuous = 1 + joint.bins();
    add_columns();
    add_rows();
  }

  [[nodiscard]] double scale() const { return scale_; }

  [[nodiscard]] std::vector<double> columns_of(const Places& places) const {
    std::vector<double> values(at(columns()), 0);
    const Places named = renamed(joint_, places);
    const Loads loads(joint_, named);
    values[0] = loads.slowest_lane() * scale_;
    for (int bin = 0; bin < joint_.bins(); ++bin)
      values[at(1 + bin)] = loads.before_distributed(bin) * scale_;
    for (std::size_t k = 0; k < named.size(); ++k)
      for (int c = first_[k]; c < first_[k + 1]; ++c)
        if (place_of(c) == named[k]) values[at(c)] = 1;
    return values;
  }

  [[nodiscard]] Places places_of(const std::vector<double>& values) const {
    Places places;
    for (std::size_t k = 0; k < joint_.documents(); ++k) {
      const auto first = values.begin() + first_[k];
      places.push_back(place_of(
          first_[k] + static_cast<int>(std::max_element(first, values.begin() + first_[k + 1]) - first)));
    }
    return places;
  }

 private:
  [[nodiscard]] const Place& place_of(int its_column) const { return places_[at(its_column - continuous)]; }

  void add_columns() {
    first_.assign(1, continuous);
    for (std::size_t k = 0; k < joint_.documents(); ++k) {
      for (Place p; p.lane < joint_.lanes; ++p.lane)
        for (p.micro_batch = 0; p.micro_batch < joint_.micro_batches; ++p.micro_batch)
          for (p.rank = kDistributed; p.rank < joint_.ranks; ++p.rank) {
            const bool fits = p.rank == kDistributed || joint_.tokens[k] <= joint_.bucket;
            if (fits && at(p.lane + p.micro_batch + std::max(0, p.rank)) <= k) places_.push_back(p);
          }
      first_.push_back(continuous + static_cast<int>(places_.size()));
    }
    const auto count = at(first_.back());
    column_lower.assign(count, 0);
    column_upper.assign(count, 1);
    column_cost.assign(count, 0);
    std::fill_n(column_upper.begin(), continuous, kInfinity);
    column_cost[0] = 1;
    column_lower[0] = bound_of(joint_) * scale_;
  }

  // Applies `value` to the columns whose place is in the bin; 0 means none.
  template <class ValueOf>
  void add_documents(int bin, const ValueOf& value_of) {
    for (std::size_t k = 0; k < joint_.documents(); ++k)
      for (int c = first_[k]; c < first_[k + 1]; ++c)
        if (joint_.bin(place_of(c)) == bin)
          if (const double its_value = value_of(k, place_of(c).rank); its_value != 0) add(c, its_value);
  }

  void add_rows() {
    for (std::size_t k = 0; k < joint_.documents(); ++k) {
      for (int c = first_[k]; c < first_[k + 1]; ++c) add(c, 1);
      close_row(1, 1);
    }
    for (int bin = 0; bin < joint_.bins(); ++bin) add_bin(bin);
    for (int lane = 0; lane < joint_.lanes; ++lane) {
      add(0, -1);
      for (int bin = lane * joint_.micro_batches; bin < (lane + 1) * joint_.micro_batches; ++bin) {
        add(1 + bin, 1);
        add_documents(bin, [&](std::size_t k, int rank) {
          return rank == kDistributed ? joint_.shared[k] * scale_ : 0;
        });
      }
      close_row(-kInfinity, 0);
    }
  }

  void add_bin(int bin) {
    const double room = static_cast<double>(joint_.bucket) * joint_.ranks;
    const auto tokens = [&](std::size_t k) { return static_cast<double>(joint_.tokens[k]); };
    for (int rank = 0; rank < joint_.ranks; ++rank) {
      add(1 + bin, -1);
      add_documents(bin, [&](std::size_t k, int its) { return its == rank ? joint_.whole[k] * scale_ : 0; });
      close_row(-kInfinity, 0);
      add_documents(bin, [&](std::size_t k, int its) {
        return its == kDistributed ? tokens(k) : its == rank ? joint_.ranks * tokens(k) : 0;
      });
      close_row(-kInfinity, room);
    }
    add(1 + bin, -1);
    add_documents(
        bin, [&](std::size_t k, int its) { return its == kDistributed ? joint_.exchange[k] * scale_ : 0; });
    close_row(-kInfinity, 0);
    add_documents(bin, [&](std::size_t k, int) { return tokens(k); });
    close_row(-kInfinity, room - 1);
  }

  const Joint& joint_;
  double scale_;
  std::vector<int> first_;     // column of each document, and the end
  std::vector<Place> places_;  // place of each column from first_[0] on
};

// A step of GDS as an assignment, with the number of micro-batches of its fullest lane.
Places places_of(const Step& step, const GlobalBatch& batch, Joint& joint) {
  std::map<std::pair<std::int64_t, std::int64_t>, Place>
      place_of;  // place of a slice, by document and first token
  for (int lane = 0; lane < joint.lanes; ++lane) {
    const std::vector<MicroBatch>& micro_batches = step.lanes[at(lane)].micro_batches;
    joint.micro_batches = std::max(joint.micro_batches, static_cast<int>(micro_batches.size()));
    for (int j = 0; j < static_cast<int>(micro_batches.size()); ++j)
      for (std::size_t i = 0; i < micro_batches[at(j)].slices.size(); ++i) {
        const Slice& slice = micro_batches[at(j)].slices[i];
        place_of[{slice.document, slice.begin}] = {lane, j, micro_batches[at(j)].placement[i]};
      }
  }
  Places places;
  for (const std::uint32_t i : joint.order)
    places.push_back(place_of.at({batch.slices[i].document, batch.slices[i].begin}));
  return places;
}

// The better start: GDS with DACP or with every document distributed, whichever is faster after moves and
// swaps.
Places start_of(const Joint& joint, const Places& skrull, SolverWork& work) {
  const double looked_at = static_cast<double>(joint.documents()) + joint.bins() * (joint.ranks + 1.0);
  const auto most = static_cast<std::int64_t>(std::min(4e5, kMostMoved / looked_at));
  const std::int64_t tries = work.evaluations(most, 10 * looked_at);
  Places distributed = skrull;
  for (Place& place : distributed) place.rank = kDistributed;
  Places best = skrull;
  for (Places start : {skrull, distributed}) {
    improve(joint, tries / 2, start);
    if (objective_of(joint, start) < objective_of(joint, best)) best = std::move(start);
  }
  return best;
}

Places solve(const Joint& joint, const Places& skrull, const SolverOptions& options, SolverWork& work,
             SolverReport& report) {
  const auto begin = std::chrono::steady_clock::now();
  Places best = start_of(joint, skrull, work);
  report.incumbent = objective_of(joint, best);
  report.bound = std::min(bound_of(joint), report.incumbent);
  const auto closed = [&] { return report.incumbent <= report.bound * (1 + kOptimalGap); };
  const double columns = static_cast<double>(joint.documents()) * joint.bins() * (joint.ranks + 1);
  const double rows = static_cast<double>(joint.documents()) + 2.0 * joint.bins() * (joint.ranks + 1);
  const SolverLimits limits = work.next(rows, 4 * columns, options.time_limit_seconds);
  const bool searches = !solver_available(options.solver) ||
                        (!closed() && columns <= kMostColumns && (limits.nodes > 0 || limits.seconds > 0));
  if (searches) {
    const JointProgram program(joint);
    const SearchEnd end =
        search_program(program, limits, program.columns_of(best), report.incumbent * program.scale());
    bool legal = true;
    if (!end.columns.empty()) {
      Places found = program.places_of(end.columns);
      const double objective = objective_of(joint, found);
      legal = std::isfinite(objective);
      if (objective < report.incumbent) {
        report.incumbent = objective;
        best = std::move(found);
      }
    }
    const double bound = legal && end.proven ? report.incumbent : end.best_possible / program.scale();
    if (std::isfinite(bound)) report.bound = std::max(report.bound, std::min(bound, report.incumbent));
  }
  report.optimal = closed();
  work.ended(searches, report.optimal);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return best;
}

// Orders lanes and micro-batches by their heaviest document, and documents ascending by length, as GDS does.
Step step_of(const Joint& joint, const Places& places, const GlobalBatch& batch, const PackOptions& options) {
  Step step = empty_step(options);
  const Places named = renamed(joint, places);
  for (Lane& lane : step.lanes) lane.micro_batches.clear();
  for (const std::uint32_t k : shortest_first(joint.tokens)) {
    std::vector<MicroBatch>& micro_batches = step.lanes[at(named[k].lane)].micro_batches;
    if (micro_batches.size() <= at(named[k].micro_batch)) micro_batches.resize(at(named[k].micro_batch) + 1);
    MicroBatch& own = micro_batches[at(named[k].micro_batch)];
    own.slices.push_back(batch.slices[joint.order[k]]);
    own.placement.push_back(named[k].rank);
  }
  for (Lane& lane : step.lanes)
    if (lane.micro_batches.empty()) lane.micro_batches.resize(1);
  return step;
}

}  // namespace

std::int64_t skrull_solver_hard_limit(const PackOptions& options) {
  return options.bucket_size * options.context - 1;
}

Plan plan_skrull_solver(const PackingProblem& problem) {
  PackOptions options = problem.options;
  options.rollback = true;  // rollback is no key of this policy
  const Plan skrull = plan_skrull({problem.batches, options, problem.workload});
  Plan plan;
  SolverWork work(options.of<SolverOptions>(), problem.batches.size());
  double heuristic = 0, incumbent = 0;
  for (std::size_t s = 0; s < problem.batches.size(); ++s) {
    const GlobalBatch& batch = problem.batches[s];
    Joint joint = joint_of(batch, options, problem.workload);
    const Places start = places_of(skrull.steps[s], batch, joint);
    if (batch.slices.empty()) {
      plan.steps.push_back(skrull.steps[s]);
      continue;
    }
    SolverReport report;
    report.step = static_cast<int>(s);
    plan.steps.push_back(
        step_of(joint, solve(joint, start, options.of<SolverOptions>(), work, report), batch, options));
    heuristic += objective_of(joint, start);
    incumbent += report.incumbent;
    plan.solver.push_back(report);
  }
  work.note_on(plan);
  if (incumbent > 0) plan.notes.push_back({"heuristic_longer", "", {{"share", heuristic / incumbent - 1}}});
  return plan;
}

}  // namespace equipoise

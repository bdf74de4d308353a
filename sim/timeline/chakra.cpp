#include "sim/timeline/chakra.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <vector>

#include "policies/base/files.h"
#include "policies/base/index.h"
#include "sim/timeline/perfetto.h"

namespace equipoise {
namespace {

using namespace protobuf;

constexpr std::string_view kVersion = "0.0.4";
constexpr double kPicosecondsPerMicrosecond = 1e6;

// Field numbers and values of et_def.proto.
namespace field {
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kId = 1, kName = 2, kType = 3, kDataDependencies = 5, kDuration = 7, kAttribute = 10;
constexpr std::uint32_t kAttributeName = 1, kInt64 = 9, kBool = 27, kString = 29;
}  // namespace field
enum class NodeType : std::uint64_t { compute = 4, send = 5, receive = 6, collective = 7 };
enum class ChakraCollective : std::uint64_t {
  all_reduce = 0,
  all_gather = 2,
  all_to_all = 6,
  reduce_scatter = 7
};

class Groups {
 public:
  // Numbers start at 1, since group 0 means everyone to ASTRA-sim.
  std::size_t number(const std::vector<int>& members) {
    return numbers_.try_emplace(members, numbers_.size() + 1).first->second;
  }
  [[nodiscard]] std::string json() const {
    std::vector<const std::vector<int>*> by_number(numbers_.size());
    for (const auto& [members, number] : numbers_) by_number[number - 1] = &members;
    std::string text = "{";
    for (std::size_t i = 0; i < by_number.size(); ++i) {
      text += (i == 0 ? "\n  \"" : ",\n  \"") + std::to_string(i + 1) + "\": [";
      for (std::size_t m = 0; m < by_number[i]->size(); ++m)
        text += (m == 0 ? "" : ", ") + std::to_string((*by_number[i])[m]);
      text += "]";
    }
    return text + "\n}\n";
  }

 private:
  std::map<std::vector<int>, std::size_t> numbers_;
};

ChakraCollective type_of(OpName name) {
  switch (name) {
    case OpName::tp_all_gather:
    case OpName::cp_all_gather:
    case OpName::dp_all_gather:
      return ChakraCollective::all_gather;
    case OpName::cp_all_to_all:
    case OpName::ep_all_to_all:
      return ChakraCollective::all_to_all;
    case OpName::tp_reduce_scatter:
    case OpName::cp_reduce_scatter:
    case OpName::dp_reduce:
      return ChakraCollective::reduce_scatter;
    default:
      std::abort();  // kernels, and cp_ring_step and pp_send, which are sends and receives
  }
}

// The nodes of one GPU.
class RankTrace {
 public:
  using Ids = std::vector<std::uint64_t>;

  RankTrace() {
    put_text(message_, field::kVersion, kVersion);
    finish();
  }
  std::uint64_t kernel(std::string_view name, Picoseconds duration, double flops, double bytes,
                       const Ids& after) {
    begin(name, NodeType::compute, after);
    // The difference of rounded sums, so that rounding errors do not add up.
    const auto micros = [](Picoseconds t) {
      return static_cast<std::uint64_t>(std::llround(static_cast<double>(t) / kPicosecondsPerMicrosecond));
    };
    put_integer(message_, field::kDuration, micros(busy_ + duration) - micros(busy_));
    busy_ += duration;
    attribute("num_ops", static_cast<std::int64_t>(flops));
    attribute("tensor_size", static_cast<std::int64_t>(bytes));
    return end();
  }
  std::uint64_t collective(std::string_view name, ChakraCollective type, double bytes, std::size_t group,
                           const Ids& after) {
    begin(name, NodeType::collective, after);
    attribute("comm_type", static_cast<std::int64_t>(type));
    attribute("comm_size", static_cast<std::int64_t>(bytes));
    nested_.clear();
    put_text(nested_, field::kAttributeName, "pg_name");
    put_text(nested_, field::kString, std::to_string(group));
    put_message(message_, field::kAttribute, nested_);
    return end();
  }
  std::uint64_t transfer(bool sends, int from, int to, double bytes, std::int64_t tag, const Ids& after) {
    begin(sends ? "pp_send" : "pp_receive", sends ? NodeType::send : NodeType::receive, after);
    attribute("comm_src", from);
    attribute("comm_dst", to);
    attribute("comm_size", static_cast<std::int64_t>(bytes));
    attribute("comm_tag", tag);
    return end();
  }
  [[nodiscard]] const Bytes& bytes() const { return file_; }

 private:
  void begin(std::string_view name, NodeType type, const Ids& after) {
    put_integer(message_, field::kId, next_);
    put_text(message_, field::kName, name);
    put_integer(message_, field::kType, static_cast<std::uint64_t>(type));
    for (const std::uint64_t id : after) put_integer(message_, field::kDataDependencies, id);
    nested_.clear();
    put_text(nested_, field::kAttributeName, "is_cpu_op");
    put_integer(nested_, field::kBool, 0);
    put_message(message_, field::kAttribute, nested_);
  }
  void attribute(std::string_view name, std::int64_t value) {
    nested_.clear();
    put_text(nested_, field::kAttributeName, name);
    put_integer(nested_, field::kInt64, static_cast<std::uint64_t>(value));
    put_message(message_, field::kAttribute, nested_);
  }
  std::uint64_t end() {
    finish();
    return next_++;
  }
  void finish() {
    put_varint(file_, message_.size());
    file_.insert(file_.end(), message_.begin(), message_.end());
    message_.clear();
  }

  Bytes file_, message_, nested_;
  std::uint64_t next_ = 0;
  Picoseconds busy_ = 0;
};

// Walks through the scheduled ops of one GPU.
class RankNodes {
 public:
  RankNodes(const OpProgram& program, const RankGrid& grid, const std::vector<std::vector<int>>& gpus,
            bool all_reduced, Groups& groups, int stage, int replica, int t)
      : program_(program),
        grid_(grid),
        gpus_(gpus),
        tensor_(grid.sizes().tensor),
        all_reduced_(all_reduced),
        groups_(groups),
        stage_(stage),
        replica_(replica),
        t_(t) {
    std::vector<int> all;
    for (int r = 0; r < program.replicas; ++r) all.push_back(gpu(stage, r, t));
    everyone_ = numbered(std::move(all));
  }

  void lane(const OpLane& lane) {
    lane_ = &lane;
    c_ = replica_ - lane.first_replica;
    tag_base_ = std::int64_t{lane.barrier_group} << 22;  // only lanes of other barrier groups share GPUs
    ring_steps_ = 0;
    groups_of_.clear();
    receivers_.assign(lane.stages[at(stage_)].size(), {});
    for (int s = 0; s < program_.stages; ++s)
      for (const ScheduledOp& scheduled : lane.stages[at(s)])
        if (s != stage_ && scheduled.input_stage == stage_)
          receivers_[at(scheduled.input_op)] = {s, &scheduled};
    for (std::size_t i = 0; i < lane.stages[at(stage_)].size(); ++i) add(i);
  }
  // Gradient buckets are reduced in the order in which they were filled, and what follows waits for all.
  void finish() {
    if (program_.ends.empty()) return;
    const StageEnd& end = program_.ends[at(stage_)];
    if (last_bucket_ != kNone) tail_.push_back(last_bucket_);
    for (std::size_t i = 0; i < end.steps.size(); ++i) {
      const OpStep& step = end.steps[i];
      // What compute loses to a gather under it moves nothing by itself.
      if (end.durations[i] == 0 || step.name == OpName::taken_sms) continue;
      tail_ = {step.stream == Stream::compute
                   ? trace_.kernel(name_of(step.name), end.durations[i], step.flops, step.bytes, tail_)
                   : collective(step.name, step.bytes, everyone_, tail_)};
    }
  }
  [[nodiscard]] const RankTrace& trace() const { return trace_; }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  using Ids = RankTrace::Ids;

  [[nodiscard]] int gpu(int stage, int replica, int t) const {
    return gpus_[at(stage) * at(tensor_) + at(t)][at(replica)];
  }
  struct Group {
    std::vector<int> gpus;
    std::size_t number = 0;
  };
  // The receiver of a scheduled op's result: a scheduled op of one other stage, or none.
  struct Receiver {
    int stage = 0;
    const ScheduledOp* scheduled = nullptr;
  };
  [[nodiscard]] Group numbered(std::vector<int> list) {
    const std::size_t number = list.size() > 1 ? groups_.number(list) : 0;
    return {std::move(list), number};
  }
  const Group& group_of(SyncGroup sync, OpName name) {
    const bool inside = sync == SyncGroup::context && name == OpName::cp_all_to_all;
    const auto [known, is_new] = groups_of_.try_emplace({sync, inside});
    if (is_new) known->second = numbered(members(sync, inside));
    return known->second;
  }
  // `inside` means the all-to-all of a nested form, or of Ulysses.
  [[nodiscard]] std::vector<int> members(SyncGroup sync, bool inside) const {
    std::vector<int> list;
    if (sync == SyncGroup::tensor)
      for (int t = 0; t < tensor_; ++t) list.push_back(gpu(stage_, replica_, t));
    if (sync == SyncGroup::context)
      for (int c = 0, inner = grid_.inner_ranks(lane_->context); c < lane_->context; ++c)
        if (inner == 1 || (inside ? c / inner == c_ / inner : c % inner == c_ % inner))
          list.push_back(gpu(stage_, lane_->first_replica + c, t_));
    for (const OpLane& other : program_.lanes)
      for (int c = 0; spans_lanes(sync) && other.lockstep == lane_->lockstep && c < other.context; ++c)
        if (sync == SyncGroup::replicas || other.expert_group[at(c)] == lane_->expert_group[at(c_)])
          for (int t = 0; t < tensor_; ++t)
            if (t == t_ || (sync == SyncGroup::expert &&
                            expert_coordinate(*lane_, at(t)) == expert_coordinate(*lane_, at(t_))))
              list.push_back(gpu(stage_, other.first_replica + c, t));
    return list;
  }

  std::uint64_t collective(OpName name, double bytes, const Group& group, const Ids& after) {
    ChakraCollective type = type_of(name);
    if (name == OpName::dp_reduce && all_reduced_) {
      type = ChakraCollective::all_reduce;
      bytes /= 2;  // the count includes one reduction and one gather
    }
    // A rank contributes its share of the result to a gather.
    if (type == ChakraCollective::all_gather) bytes /= static_cast<double>(group.gpus.size());
    return trace_.collective(name_of(name), type, bytes, group.number, after);
  }

  void add(std::size_t index) {
    const ScheduledOp& scheduled = lane_->stages[at(stage_)][index];
    if (!ends_pair(lane_->stages[at(stage_)], index))
      receive(scheduled);  // a pair begins when both have their input
    if (scheduled.op.with_next) receive(lane_->stages[at(stage_)][index + 1]);
    for (std::uint32_t k = 0; k < scheduled.run_count; ++k) {
      const BlockRun& run = lane_->runs[scheduled.first_run + k];
      const OpBlock& block = lane_->blocks[run.block];
      for (std::uint32_t i = 0; i < run.repeat; ++i) {
        steps(block);
        if (run.bucket != kNoBucket) bucket(at(run.bucket) + i);
      }
    }
    if (const Receiver& to = receivers_[index]; to.scheduled != nullptr)
      trace_.transfer(true, gpu(stage_, replica_, t_), gpu(to.stage, replica_, t_), bytes_of(*to.scheduled),
                      tag(stage_, static_cast<int>(index)), tail_);
  }

  void receive(const ScheduledOp& scheduled) {
    if (scheduled.input_stage == kNoInput || scheduled.input_stage == stage_) return;
    tail_ = {trace_.transfer(false, gpu(scheduled.input_stage, replica_, t_), gpu(stage_, replica_, t_),
                             bytes_of(scheduled), tag(scheduled.input_stage, scheduled.input_op), tail_)};
  }

  void steps(const OpBlock& block) {
    Ids exchange;  // an exchange of experts, with the ops under it up to `under_end`
    std::size_t under_end = 0;
    for (std::size_t s = 0; s < block.steps.size(); ++s) {
      const OpStep& first = block.steps[s];
      Ids next = step(block, s, tail_);
      if (first.over > 0) {
        exchange = next;
        under_end = s + 1 + first.over;
        continue;
      }
      if (first.with_next) {
        const Ids alongside = step(block, ++s, tail_);
        next.insert(next.end(), alongside.begin(), alongside.end());
      }
      if (!next.empty()) tail_ = next;
      if (s + 1 != under_end) continue;
      tail_.insert(tail_.end(), exchange.begin(), exchange.end());
      under_end = 0;
    }
  }

  // The nodes of one op; none if it takes no time here and waits for nobody.
  Ids step(const OpBlock& block, std::size_t s, const Ids& after) {
    const OpStep& step = block.steps[s];
    const Picoseconds duration = block.durations[s * at(lane_->context) + at(c_)];
    if (step.waits) {
      Ids both = after;
      if (background_ != kNone) both.push_back(background_);
      return both;
    }
    if (step.sync == SyncGroup::none) {
      if (duration == 0) return {};
      const RankWork load = block.work(step, at(c_));
      return {trace_.kernel(name_of(step.name), duration, load.flops, load.bytes, after)};
    }
    const Group& group = group_of(step.sync, step.name);
    if (group.gpus.size() < 2) return {};
    // CP ranks in one collective must state the same bytes.
    const double bytes = step.sync == SyncGroup::tensor ? block.work(step, at(c_)).bytes : step.bytes;
    if (step.name == OpName::cp_ring_step) return ring(step, group.gpus, after);
    if (!step.background) return {collective(step.name, bytes, group, after)};
    Ids both = after;
    if (background_ != kNone) both.push_back(background_);
    background_ = collective(step.name, bytes, group, both);
    return {};
  }

  Ids ring(const OpStep& step, const std::vector<int>& group, const Ids& after) {
    const auto n = static_cast<int>(group.size());
    const int r = c_ / grid_.inner_ranks(lane_->context);
    const int self = group[at(r)], to = group[at((r + 1) % n)], from = group[at((r + n - 1) % n)];
    const std::int64_t tag = tag_base_ + (std::int64_t{1} << 21) + ring_steps_++;
    return {trace_.transfer(true, self, to, step.bytes, tag, after),
            trace_.transfer(false, from, self, step.bytes, tag, after)};
  }

  void bucket(std::size_t k) {
    const StageEnd& end = program_.ends[at(stage_)];
    if (everyone_.gpus.size() < 2 || end.buckets[k] == 0) return;
    Ids after = tail_;
    if (last_bucket_ != kNone) after.push_back(last_bucket_);
    last_bucket_ =
        collective(OpName::dp_reduce, end.bucket_bytes.empty() ? 0 : end.bucket_bytes[k], everyone_, after);
  }

  [[nodiscard]] double bytes_of(const ScheduledOp& scheduled) const {
    return lane_->transfer_bytes.empty() ? 0 : lane_->transfer_bytes[at(scheduled.transfer) + at(c_)];
  }
  // A scheduled op's result goes to one other stage, so its place identifies the transfer.
  [[nodiscard]] std::int64_t tag(int stage, int index) const {
    return tag_base_ + (static_cast<std::int64_t>(stage) << 12) + index;
  }

  const OpProgram& program_;
  const RankGrid& grid_;
  const std::vector<std::vector<int>>& gpus_;
  int tensor_;
  bool all_reduced_;
  Groups& groups_;
  int stage_, replica_, t_;
  Group everyone_;
  std::map<std::pair<SyncGroup, bool>, Group> groups_of_;  // for the current lane
  std::vector<Receiver> receivers_;                        // for its scheduled ops on this stage
  const OpLane* lane_ = nullptr;
  int c_ = 0;
  std::int64_t tag_base_ = 0;
  std::int64_t ring_steps_ = 0;
  Ids tail_;
  std::uint64_t background_ = kNone, last_bucket_ = kNone;
  RankTrace trace_;
};

}  // namespace

void write_chakra(const std::string& folder, const OpProgram& program, const RankGrid& grid,
                  bool gradients_all_reduced) {
  const int tensor = grid.sizes().tensor;
  std::vector<std::vector<int>> gpus;  // [stage * tensor + t][replica]
  for (int s = 0; s < program.stages; ++s)
    for (int t = 0; t < tensor; ++t) gpus.push_back(grid.data_context_group(grid.gpu({t, 0, 0, s})));
  std::vector<std::size_t> order(program.lanes.size());  // lanes of later barrier groups reuse the GPUs
  for (std::size_t l = 0; l < order.size(); ++l) order[l] = l;
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return program.lanes[i].barrier_group; });
  Groups groups;
  for (int s = 0; s < program.stages; ++s)
    for (int t = 0; t < tensor; ++t)
      for (int r = 0; r < program.replicas; ++r) {
        RankNodes nodes(program, grid, gpus, gradients_all_reduced, groups, s, r, t);
        for (const std::size_t l : order) {
          const OpLane& lane = program.lanes[l];
          if (r >= lane.first_replica && r < lane.first_replica + lane.context) nodes.lane(lane);
        }
        nodes.finish();
        const Bytes& bytes = nodes.trace().bytes();
        write_file_atomically(
            folder + "/step." + std::to_string(gpus[at(s) * at(tensor) + at(t)][at(r)]) + ".et",
            {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
      }
  write_file_atomically(folder + "/comm_groups.json", groups.json());
}

}  // namespace equipoise

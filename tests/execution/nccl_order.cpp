#include "tests/execution/nccl_order.h"

#include <algorithm>
#include <array>
#include <utility>

namespace equipoise::testing {

using kernels::Communicator;
using kernels::Pending;

NcclRecord::NcclRecord(int ranks) : calls(static_cast<std::size_t>(ranks)), members(1) {
  for (int rank = 0; rank < ranks; ++rank) members[0].push_back(rank);
  numbers["world"] = 0;
}

namespace {

// --- Recording

class RecordedSend final : public Pending {
 public:
  RecordedSend(std::unique_ptr<Pending> inner, std::vector<NcclCall>& calls, std::size_t started)
      : inner_(std::move(inner)), calls_(calls), started_(started) {}
  ~RecordedSend() override { note(); }
  void wait() override {
    note();
    inner_->wait();
  }

 private:
  void note() {
    if (std::exchange(noted_, true)) return;
    NcclCall call = calls_[started_];
    call.kind = NcclCall::wait;
    call.started = started_;
    calls_.push_back(call);
  }

  std::unique_ptr<Pending> inner_;
  std::vector<NcclCall>& calls_;
  std::size_t started_;
  bool noted_ = false;
};

class Recorded final : public Communicator {
 public:
  Recorded(Communicator& inner, NcclRecord& record, int number, std::string name, int world_rank,
           std::unique_ptr<Communicator> owned = nullptr)
      : owned_(std::move(owned)),
        inner_(inner),
        record_(record),
        number_(number),
        name_(std::move(name)),
        world_rank_(world_rank),
        calls_(record.calls[static_cast<std::size_t>(world_rank)]) {}

  [[nodiscard]] std::string_view name() const override { return inner_.name(); }
  [[nodiscard]] int rank() const override { return inner_.rank(); }
  [[nodiscard]] int size() const override { return inner_.size(); }
  void barrier() override {
    note("barrier", 1);
    inner_.barrier();
  }
  void all_gather(const void* send, void* receive, std::int64_t count) override {
    note("all_gather", count);
    inner_.all_gather(send, receive, count);
  }
  void reduce_scatter(const void* send, void* receive, std::int64_t count) override {
    note("reduce_scatter", count);
    inner_.reduce_scatter(send, receive, count);
  }
  void all_reduce(const void* send, void* receive, std::int64_t count) override {
    note("all_reduce", count);
    inner_.all_reduce(send, receive, count);
  }
  void all_to_all(const void* send, void* receive, std::int64_t count) override {
    note("all_to_all", count);
    inner_.all_to_all(send, receive, count);
  }
  void send(const void* data, std::int64_t count, int to, int tag) override {
    calls_.push_back({NcclCall::send, "", number_, count, to, -1, tag});
    inner_.send(data, count, to, tag);
  }
  [[nodiscard]] std::unique_ptr<Pending> start_send(const void* data, std::int64_t count, int to,
                                                    int tag) override {
    const std::size_t started = calls_.size();
    calls_.push_back({NcclCall::started_send, "", number_, count, to, -1, tag});
    return std::make_unique<RecordedSend>(inner_.start_send(data, count, to, tag), calls_, started);
  }
  void receive(void* data, std::int64_t count, int from, int tag) override {
    calls_.push_back({NcclCall::receive, "", number_, count, -1, from, tag});
    inner_.receive(data, count, from, tag);
  }
  void send_receive(const void* data, int to, void* incoming, int from, std::int64_t count) override {
    calls_.push_back({NcclCall::exchange, "", number_, count, to, from});
    inner_.send_receive(data, to, incoming, from, count);
  }
  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override {
    note("split", 0);
    auto part = inner_.split(color, key);
    Communicator& inner = *part;
    std::string made = name_ + "/" + std::to_string(splits_++) + ":" + std::to_string(color);
    const int number = join(made, inner);
    return std::make_unique<Recorded>(inner, record_, number, std::move(made), world_rank_, std::move(part));
  }
  void abort(const std::string& reason) override { inner_.abort(reason); }

 private:
  void note(const char* what, std::int64_t count) {
    calls_.push_back({NcclCall::collective, what, number_, count});
  }
  int join(const std::string& made, const Communicator& part) {
    const std::lock_guard lock(record_.mutex);
    const auto [found, fresh] = record_.numbers.try_emplace(made, static_cast<int>(record_.members.size()));
    if (fresh) record_.members.emplace_back(static_cast<std::size_t>(part.size()), -1);
    record_.members[static_cast<std::size_t>(found->second)][static_cast<std::size_t>(part.rank())] =
        world_rank_;
    return found->second;
  }

  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  NcclRecord& record_;
  int number_;
  std::string name_;  // the same on all members
  int world_rank_;
  std::vector<NcclCall>& calls_;
  int splits_ = 0;
};

// --- The model

enum class Lane { collectives, upward, downward };  // NCCL's communicators behind one of ours

struct Op {
  const NcclCall* call = nullptr;
  int rank = 0;  // of the communicator
  Lane lane = Lane::collectives;
  std::vector<std::size_t> after;  // ops of this rank that end first
  bool begun = false, sent = false, received = false, ended = false;
};

class Model {
 public:
  explicit Model(const NcclRecord& record)
      : record_(record), ops_(record.calls.size()), first_open_(record.calls.size()) {
    for (std::size_t rank = 0; rank < ops_.size(); ++rank) add_ops(rank);
  }

  std::string run() {
    for (bool moved = true; moved && fault_.empty();) {
      moved = false;
      for (std::size_t rank = 0; rank < ops_.size(); ++rank) moved = begin_ops(rank) || moved;
      for (std::size_t rank = 0; rank < ops_.size(); ++rank)
        for (std::size_t i = first_open_[rank]; i < ops_[rank].size() && fault_.empty(); ++i)
          if (ops_[rank][i].begun && !ops_[rank][i].ended) moved = advance(rank, ops_[rank][i]) || moved;
    }
    return fault_.empty() ? hang() : fault_;
  }

 private:
  using LaneKey = std::pair<int, Lane>;

  void add_ops(std::size_t rank) {
    constexpr std::size_t kNone = static_cast<std::size_t>(-1);
    std::size_t default_tail = kNone;
    std::map<LaneKey, std::size_t> send_tails;  // of started ones
    std::map<LaneKey, std::size_t> lane_tails;
    for (const NcclCall& call : record_.calls[rank]) {
      const std::vector<int>& members = record_.members[static_cast<std::size_t>(call.communicator)];
      Op op;
      op.call = &call;
      op.rank = static_cast<int>(std::find(members.begin(), members.end(), static_cast<int>(rank)) -
                                 members.begin());
      if (call.kind == NcclCall::send || call.kind == NcclCall::started_send)
        op.lane = op.rank < call.to ? Lane::upward : Lane::downward;
      if (call.kind == NcclCall::receive) op.lane = call.from < op.rank ? Lane::upward : Lane::downward;
      const std::size_t here = ops_[rank].size();
      if (default_tail != kNone) op.after.push_back(default_tail);
      if (call.kind == NcclCall::started_send) {
        const auto [tail, fresh] = send_tails.try_emplace(LaneKey{call.communicator, op.lane}, here);
        if (!fresh) op.after.push_back(std::exchange(tail->second, here));
      } else {
        default_tail = here;
      }
      if (call.kind == NcclCall::wait) {
        op.after.push_back(call.started);
        op.sent = op.received = true;
      } else {
        const auto [tail, fresh] = lane_tails.try_emplace(LaneKey{call.communicator, op.lane}, here);
        if (!fresh) op.after.push_back(std::exchange(tail->second, here));
        heads_[{rank, call.communicator, op.lane}];
      }
      if (call.kind == NcclCall::receive) op.sent = true;
      if (call.kind == NcclCall::send || call.kind == NcclCall::started_send) op.received = true;
      ops_[rank].push_back(op);
    }
  }

  bool begin_ops(std::size_t rank) {
    bool any = false;
    std::vector<Op>& ops = ops_[rank];
    std::size_t& open = first_open_[rank];
    while (open < ops.size() && ops[open].ended) ++open;
    for (std::size_t i = open; i < ops.size(); ++i) {
      Op& op = ops[i];
      if (op.begun || !std::ranges::all_of(op.after, [&](std::size_t before) { return ops[before].ended; })) {
        if (!op.begun && op.call->kind != NcclCall::started_send)
          break;  // nothing later on the default stream can begin
        continue;
      }
      op.begun = any = true;
      if (op.call->kind == NcclCall::wait)
        op.ended = true;
      else
        heads_[{rank, op.call->communicator, op.lane}] = &op;
    }
    return any;
  }

  Op* head(const Op& op, int member) {
    const int world =
        record_.members[static_cast<std::size_t>(op.call->communicator)][static_cast<std::size_t>(member)];
    const auto found = heads_.find({static_cast<std::size_t>(world), op.call->communicator, op.lane});
    return found == heads_.end() || found->second == nullptr || found->second->ended ? nullptr
                                                                                     : found->second;
  }

  bool advance(std::size_t rank, Op& op) {
    if (op.call->kind == NcclCall::collective) return advance_collective(op);
    bool moved = false;
    if (!op.sent)
      if (Op* to = head(op, op.call->to); to != nullptr && !to->received && to->call->from == op.rank) {
        if (to->call->count != op.call->count || to->call->tag != op.call->tag)
          fault_ = "rank " + std::to_string(rank) + ": " + text_of(op) + " arrives as " + text_of(*to);
        op.sent = to->received = moved = true;
        to->ended = to->sent;
      }
    op.ended = op.sent && op.received;
    return moved;
  }

  bool advance_collective(Op& op) {
    const auto size =
        static_cast<int>(record_.members[static_cast<std::size_t>(op.call->communicator)].size());
    for (int member = 0; member < size; ++member) {
      const Op* const other = head(op, member);
      if (other == nullptr) return false;
      if (other->call->kind != NcclCall::collective || other->call->what != op.call->what ||
          other->call->count != op.call->count) {
        fault_ = text_of(op) + " meets " + text_of(*other);
        return false;
      }
    }
    for (int member = 0; member < size; ++member) head(op, member)->ended = true;
    return true;
  }

  static std::string text_of(const Op& op) {
    const NcclCall& call = *op.call;
    constexpr std::array kNames = {"", "send", "start_send", "wait", "receive", "send_receive"};
    std::string text = call.kind == NcclCall::collective ? call.what : kNames[call.kind];
    text += " of " + std::to_string(call.count) + " on communicator " + std::to_string(call.communicator) +
            " by its rank " + std::to_string(op.rank);
    if (call.to >= 0) text += " to " + std::to_string(call.to);
    if (call.from >= 0) text += " from " + std::to_string(call.from);
    if (call.tag != 0) text += ", tag " + std::to_string(call.tag);
    return text;
  }

  std::string hang() {
    std::string text;
    for (std::size_t rank = 0; rank < ops_.size(); ++rank)
      for (const Op& op : ops_[rank])
        if (op.begun && !op.ended)
          text += (text.empty() ? "" : "; ") + ("rank " + std::to_string(rank) + ": " + text_of(op));
    return text.empty() ? "" : "for ever: " + text;
  }

  const NcclRecord& record_;
  std::vector<std::vector<Op>> ops_;
  std::vector<std::size_t> first_open_;                      // by rank: the ops before it have ended
  std::map<std::tuple<std::size_t, int, Lane>, Op*> heads_;  // begun last, by rank, communicator and lane
  std::string fault_;
};

}  // namespace

std::unique_ptr<Communicator> recorded(Communicator& inner, NcclRecord& record) {
  return std::make_unique<Recorded>(inner, record, 0, "world", inner.rank());
}

std::string nccl_fault(const NcclRecord& record) {
  return Model(record).run();
}

}  // namespace equipoise::testing

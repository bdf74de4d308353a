#include "sim/execution/rank_table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "policies/base/error.h"

namespace equipoise::execution {
namespace {

// Zeroed memory is a table: every member is an atomic that works between processes.
static_assert(std::atomic<std::int32_t>::is_always_lock_free &&
              std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<char>::is_always_lock_free);

void* map(int file, std::size_t bytes) {
  const int kind = file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind, file, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

std::size_t bytes_of(int slots) {
  return sizeof(RankFault) + static_cast<std::size_t>(slots) * sizeof(RankSlot);
}

}  // namespace

RankTable::RankTable(int slots)
    : file_(memfd_create("equipoise-ranks", MFD_CLOEXEC)), bytes_(bytes_of(slots)) {
  if (file_ >= 0 && ftruncate(file_, static_cast<off_t>(bytes_)) == 0) memory_ = map(file_, bytes_);
  if (memory_ != nullptr) return;
  const std::string why = std::strerror(errno);
  if (file_ >= 0) close(file_);
  throw UserError("execute: no shared memory for " + std::to_string(slots) + " ranks: " + why);
}

RankTable RankTable::open(const std::string& path) {
  RankTable table;
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return table;
  struct stat status {};
  if (fstat(file, &status) == 0 && static_cast<std::size_t>(status.st_size) >= bytes_of(1)) {
    table.bytes_ = static_cast<std::size_t>(status.st_size);
    table.memory_ = map(file, table.bytes_);
  }
  close(file);
  return table;
}

RankTable RankTable::alone() {
  RankTable table;
  table.bytes_ = bytes_of(1);
  table.memory_ = map(-1, table.bytes_);
  if (table.memory_ == nullptr) throw std::bad_alloc();
  return table;
}

RankTable::RankTable(RankTable&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

RankTable::~RankTable() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
  if (file_ >= 0) close(file_);
}

std::string RankTable::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file_);
}

int RankTable::slots() const {
  return static_cast<int>((bytes_ - sizeof(RankFault)) / sizeof(RankSlot));
}

RankFault& RankTable::fault() const {
  return *static_cast<RankFault*>(memory_);
}

RankSlot& RankTable::slot(int index) const {
  auto* slots = static_cast<char*>(memory_) + sizeof(RankFault);
  return reinterpret_cast<RankSlot*>(slots)[index];
}

void join(RankSlot& slot, int rank) {
  slot.rank = rank;
  slot.step = -1;
  slot.progress.name = Progress::kNoOp;
  slot.pid = static_cast<std::int32_t>(getpid());  // last: whoever sees it sees the rest
}

bool claim(RankFault& fault, std::string_view text, int culprit_pid, int teller_pid) {
  std::int32_t nobody = 0;
  if (!fault.claimed.compare_exchange_strong(nobody, 1)) return false;
  fault.culprit = culprit_pid;
  fault.teller = teller_pid;
  fault.text.set(text);
  fault.told = 1;
  return true;
}

std::string name_of(const RankSlot& slot) {
  return "rank " + std::to_string(slot.rank.load()) + " (pid " + std::to_string(slot.pid.load()) + ")";
}

std::string doing_of(const RankSlot& slot) {
  const std::int32_t op = slot.progress.name;
  const std::int32_t step = slot.step;
  if (step < 0) return ", before its first step";
  std::string text = ", in ";
  if (op >= 0 && op < static_cast<std::int32_t>(kOpNames))
    text += std::string(equipoise::name_of(static_cast<OpName>(op))) + " of ";
  text += "step " + std::to_string(step);
  const std::string label = slot.label.get();
  return label.empty() ? text : text + " of " + label;
}

}  // namespace equipoise::execution

// Races between the threads of a kernel. Its code is compiled with the compiler's ThreadSanitizer
// instrumentation, which calls a function before each access to memory; the functions are these and not that
// sanitizer's. Two accesses to a byte, one of them a write, race unless both are atomic, or a barrier of
// their block, or of their warp, lies between them: whether it does is known from counts of barriers, so that
// a race is found in any order of the threads. Blocks of a launch have no order, so what one writes no other
// may touch. Shared memory begins anew with each block, and what a block reads of it, it has to write first.
//
// Bank conflicts of shared memory, too: a warp's lanes that come to one access as often go together, and take
// as many turns as one of the 32 banks holds different words of theirs.
#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/kernels/host_cuda/launch.h"

namespace host_cuda {
namespace {

enum class Access { read, write, atomic };

// What is known of a byte: reads of the last block that came to it since its last barrier with one, its last
// write, and what earlier blocks did.
struct Cell {
  int block = -1;
  bool read_before = false;  // by earlier blocks
  bool written_before = false;
  bool added_to_before = false;
  bool many_warps = false;  // read by more than one
  int read_epoch = -1;
  int read_warp = -1;
  int read_warp_epoch = -1;
  std::uint32_t read_lanes = 0;
  int write_epoch = -1;
  int write_warp_epoch = -1;
  int writer = -1;
  bool atomic = false;  // the last write
};

constexpr std::size_t kPage = 64;  // bytes
using Page = std::array<Cell, kPage>;

std::unordered_map<std::uintptr_t, Page>& pages() {
  static std::unordered_map<std::uintptr_t, Page> all;
  return all;
}

void report(const char* what, const Thread& by, int other, bool shared) {
  set_fault(std::string(what) + (shared ? " shared" : " global") + " memory: block " +
            std::to_string(by.block) + ", thread " + std::to_string(by.thread) +
            (other >= 0 ? " and " + std::to_string(other) : ""));
}

// A block comes to a byte: what is of an earlier one has no order with it.
void enter(Cell& cell, const Thread& by, bool shared) {
  if (cell.block == by.block) return;
  Cell fresh;
  fresh.block = by.block;
  if (!shared) {
    fresh.read_before = cell.read_before || cell.read_epoch >= 0;
    fresh.written_before = cell.written_before || (cell.writer >= 0 && !cell.atomic);
    fresh.added_to_before = cell.added_to_before || (cell.writer >= 0 && cell.atomic);
  }
  cell = fresh;
}

// Whether thread `other` of this block, when its counts were these, is not yet known to be done.
bool unordered(const Thread& by, int other, int epoch, int warp_epoch) {
  if (other == by.thread || epoch != by.block_epoch) return false;
  return other / kWarp != by.thread / kWarp || warp_epoch == by.warp_epoch;
}

bool read_by_others(const Cell& cell, const Thread& by) {
  if (cell.read_epoch != by.block_epoch) return false;
  if (cell.many_warps || cell.read_warp != by.thread / kWarp) return true;
  return cell.read_warp_epoch == by.warp_epoch && (cell.read_lanes & ~(1U << (by.thread % kWarp))) != 0;
}

void note_read(Cell& cell, const Thread& by) {
  const int warp = by.thread / kWarp;
  if (cell.read_epoch != by.block_epoch) {
    cell.read_epoch = by.block_epoch;
    cell.many_warps = false;
    cell.read_warp = warp;
    cell.read_lanes = 0;
  }
  if (cell.read_warp != warp) cell.many_warps = true;
  if (cell.read_warp_epoch != by.warp_epoch) cell.read_lanes = 0;
  cell.read_warp_epoch = by.warp_epoch;
  cell.read_lanes |= 1U << (by.thread % kWarp);
}

void touch(Cell& cell, const Thread& by, Access access, bool shared) {
  enter(cell, by, shared);
  const bool write = access != Access::read;
  const bool both_atomic = access == Access::atomic && cell.atomic;
  if (cell.written_before || (cell.added_to_before && access != Access::atomic) ||
      (write && cell.read_before))
    report("blocks race for", by, -1, shared);
  if (cell.writer >= 0 && !both_atomic && unordered(by, cell.writer, cell.write_epoch, cell.write_warp_epoch))
    report(write ? "two writes race for" : "a read races with a write of", by, cell.writer, shared);
  if (write && read_by_others(cell, by)) report("a write races with a read of", by, -1, shared);
  if (!write && shared && cell.writer < 0) report("a read before any write of", by, -1, shared);
  if (!write) return note_read(cell, by);
  cell.writer = by.thread;
  cell.write_epoch = by.block_epoch;
  cell.write_warp_epoch = by.warp_epoch;
  cell.atomic = access == Access::atomic;
}

struct WarpAccess {
  std::array<std::vector<std::uintptr_t>, 32> words;  // by bank
};
// By block, warp, code and how often a lane was there.
std::map<std::tuple<int, int, const void*, int>, WarpAccess>& warp_accesses() {
  static std::map<std::tuple<int, int, const void*, int>, WarpAccess> all;
  return all;
}
std::map<std::tuple<int, int, const void*>, int>& times_there() {  // by block, thread and code
  static std::map<std::tuple<int, int, const void*>, int> all;
  return all;
}
int most_turns = 0;

void note_banks(const Thread& by, const void* data, const void* code) {
  const int times = times_there()[{by.block, by.thread, code}]++;
  const std::uintptr_t word = reinterpret_cast<std::uintptr_t>(data) / 4;
  auto& words = warp_accesses()[{by.block, by.thread / kWarp, code, times}].words[word % 32];
  if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  most_turns = std::max(most_turns, static_cast<int>(words.size()));
}

void on_access(const void* data, std::size_t bytes, Access access, const void* code) {
  const Thread* by = running();
  if (by == nullptr || on_fiber(data) || (data >= &now && data < &now + 1)) return;
  const bool shared = in_shared(data);
  if (shared) note_banks(*by, data, code);
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  for (std::size_t i = 0; i < bytes; ++i)
    touch(pages()[(begin + i) / kPage][(begin + i) % kPage], *by, access, shared);
}

void on_aligned(const void* data, std::size_t bytes, Access access, const void* code) {
  if (running() != nullptr && reinterpret_cast<std::uintptr_t>(data) % bytes != 0)
    set_fault("an access of " + std::to_string(bytes) + " bytes that is not aligned to them");
  on_access(data, bytes, access, code);
}

}  // namespace

void races_begin_launch() {
  pages().clear();
  warp_accesses().clear();
  times_there().clear();
}
void races_atomic(const void* data, std::size_t bytes) {
  on_aligned(data, bytes, Access::atomic, nullptr);
}
int take_most_turns() {
  return std::exchange(most_turns, 0);
}

}  // namespace host_cuda

// By the names that g++ and clang++ call.
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#define EQUIPOISE_ACCESS(bytes)                                                                \
  void __tsan_read##bytes(void* data) {                                                        \
    host_cuda::on_aligned(data, bytes, host_cuda::Access::read, __builtin_return_address(0));  \
  }                                                                                            \
  void __tsan_write##bytes(void* data) {                                                       \
    host_cuda::on_aligned(data, bytes, host_cuda::Access::write, __builtin_return_address(0)); \
  }                                                                                            \
  void __tsan_unaligned_read##bytes(void* data) {                                              \
    host_cuda::on_access(data, bytes, host_cuda::Access::read, __builtin_return_address(0));   \
  }                                                                                            \
  void __tsan_unaligned_write##bytes(void* data) {                                             \
    host_cuda::on_access(data, bytes, host_cuda::Access::write, __builtin_return_address(0));  \
  }
EQUIPOISE_ACCESS(1)
EQUIPOISE_ACCESS(2)
EQUIPOISE_ACCESS(4)
EQUIPOISE_ACCESS(8)
EQUIPOISE_ACCESS(16)
#undef EQUIPOISE_ACCESS
void __tsan_read_range(void* data, unsigned long bytes) {
  host_cuda::on_access(data, bytes, host_cuda::Access::read, __builtin_return_address(0));
}
void __tsan_write_range(void* data, unsigned long bytes) {
  host_cuda::on_access(data, bytes, host_cuda::Access::write, __builtin_return_address(0));
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}

#include "tests/kernels/host_cuda/launch.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define EQUIPOISE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EQUIPOISE_ASAN 1
#endif
#endif
#ifdef EQUIPOISE_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace host_cuda {

Now now;

namespace {

constexpr std::size_t kStackBytes = 64 * 1024;
constexpr std::size_t kSharedAtOnce = 48 * 1024;
constexpr int kSharedMost = 227 * 1024;
constexpr unsigned int kMostThreads = 1024;

struct Fiber {
  enum State { ready, waiting, done } state = ready;
  ucontext_t context{};
  jmp_buf place{};
  bool entered = false;
  Barrier barrier;
  float offered = 0;  // to a shuffle that not all lanes have reached
  float taken = 0;    // what this lane offered to the last one
  bool vote = false;
};

// What survives a launch.
struct World {
  std::string fault;
  std::map<void (*)(), std::size_t> allowed;
  std::set<Site> sites;
  Site dropped;
  bool descending = false;
};
World& world() {
  static World one;
  return one;
}

bool same(const Barrier& a, const Barrier& b) {
  return a.kind == b.kind && a.line == b.line && std::strcmp(a.file, b.file) == 0;
}

bool of_warp(const Barrier& barrier) {
  return barrier.kind == Barrier::warp || barrier.kind == Barrier::shuffle;
}

std::string text_of(const Fiber& fiber, std::size_t thread) {
  std::string text = "thread " + std::to_string(thread);
  if (fiber.state == Fiber::done) return text + " has ended";
  const std::string file = fiber.barrier.file;
  return text + " waits at " + file.substr(file.rfind('/') + 1) + ":" + std::to_string(fiber.barrier.line);
}

class Grid {
 public:
  Grid(unsigned int threads, std::size_t shared_bytes, const std::function<void()>& body)
      : body_(body), fibers_(threads), stacks_(new std::byte[threads * kStackBytes]) {
    (void)shared({}, shared_bytes);
    for (std::size_t i = 0; i < fibers_.size(); ++i) {
      ucontext_t& context = fibers_[i].context;
      getcontext(&context);
      context.uc_stack.ss_sp = stacks_.get() + i * kStackBytes;
      context.uc_stack.ss_size = kStackBytes;
      makecontext(&context, &Grid::enter, 0);
    }
  }

  static Grid* current;

  void run_block(int block) {
    thread_.block = block;
    now.block.x = static_cast<unsigned int>(block);
    block_epoch_ = 0;
    warp_epochs_.assign(fibers_.size() / kWarp + 1, 0);
    for (auto& [site, array] : shared_) std::ranges::fill(array, std::byte{0xff});
    for (Fiber& fiber : fibers_) fiber.state = Fiber::ready;
    for (;;) {
      for (std::size_t i = 0; i < fibers_.size(); ++i) {
        const std::size_t at = world().descending ? fibers_.size() - 1 - i : i;
        if (fibers_[at].state == Fiber::ready) run(at);
      }
      if (std::ranges::all_of(fibers_, [](const Fiber& fiber) { return fiber.state == Fiber::done; })) return;
      if (!release()) return set_fault(divergence());
    }
  }

  // The running thread gives way until all that the barrier is for have reached it.
  void wait(const Barrier& barrier) {
    Fiber& fiber = fibers_[running_];
    fiber.barrier = barrier;
    fiber.state = Fiber::waiting;
    leave();
  }

  Fiber& fiber(std::size_t thread) { return fibers_[thread]; }
  [[nodiscard]] std::size_t running() const { return running_; }
  [[nodiscard]] bool vote() const { return vote_; }
  [[nodiscard]] const Thread* thread() const { return inside_ ? &thread_ : nullptr; }
  // One array for all blocks, as they run in turn.
  void* shared(const Site& site, std::size_t bytes) {
    return shared_.try_emplace(site, bytes, std::byte{0xff}).first->second.data();
  }
  [[nodiscard]] bool on_fiber(const void* data) const {
    return data >= stacks_.get() && data < stacks_.get() + fibers_.size() * kStackBytes;
  }
  [[nodiscard]] bool in_shared(const void* data) const {
    return std::ranges::any_of(shared_, [&](const auto& array) {
      return data >= array.second.data() && data < array.second.data() + array.second.size();
    });
  }

 private:
  static void enter() {
    Grid& grid = *current;
    grid.arrived();
    for (;;) {
      grid.body_();
      grid.fibers_[grid.running_].state = Fiber::done;
      grid.leave();
    }
  }

  void run(std::size_t thread) {
    running_ = thread;
    now.thread.x = static_cast<unsigned int>(thread);
    thread_.thread = static_cast<int>(thread);
    thread_.block_epoch = block_epoch_;
    thread_.warp_epoch = warp_epochs_[thread / kWarp];
    inside_ = true;
    go(thread);
    inside_ = false;
  }

  // Contexts are changed by jumps, which ask nothing of the kernel; AddressSanitizer has to be told of a
  // stack, and takes a jump for the end of what lies between.
#ifdef EQUIPOISE_ASAN
  void go(std::size_t thread) {
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, stacks_.get() + thread * kStackBytes, kStackBytes);
    swapcontext(&main_, &fibers_[thread].context);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
  }
  void leave() {
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, main_stack_, main_stack_bytes_);
    swapcontext(&fibers_[running_].context, &main_);
    arrived();
  }
#else
  void go(std::size_t thread) {
    if (_setjmp(main_place_) != 0) return;
    Fiber& fiber = fibers_[thread];
    if (std::exchange(fiber.entered, true)) _longjmp(fiber.place, 1);
    setcontext(&fiber.context);
  }
  void leave() {
    if (_setjmp(fibers_[running_].place) == 0) _longjmp(main_place_, 1);
  }
#endif

  void arrived() {
#ifdef EQUIPOISE_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &main_stack_, &main_stack_bytes_);
#endif
  }

  // Lets go whoever waits with all the others that its barrier is for; false: nobody.
  bool release() {
    bool any = release_if(0, fibers_.size(), false);
    if (any) {
      ++block_epoch_;
      vote_ = std::ranges::any_of(fibers_, &Fiber::vote);
      return true;
    }
    for (std::size_t begin = 0; begin < fibers_.size(); begin += kWarp) {
      const std::size_t end = std::min(begin + kWarp, fibers_.size());
      if (!release_if(begin, end, true)) continue;
      any = true;
      if (fibers_[begin].barrier.kind == Barrier::warp) ++warp_epochs_[begin / kWarp];
      for (std::size_t i = begin; i < end; ++i) fibers_[i].taken = fibers_[i].offered;
    }
    return any;
  }

  bool release_if(std::size_t begin, std::size_t end, bool warps) {
    const Barrier& barrier = fibers_[begin].barrier;
    for (std::size_t i = begin; i < end; ++i)
      if (fibers_[i].state != Fiber::waiting || of_warp(fibers_[i].barrier) != warps ||
          !same(fibers_[i].barrier, barrier))
        return false;
    for (std::size_t i = begin; i < end; ++i) fibers_[i].state = Fiber::ready;
    return true;
  }

  [[nodiscard]] std::string divergence() const {
    for (std::size_t i = 1; i < fibers_.size(); ++i)
      if (fibers_[i].state != fibers_[0].state ||
          (fibers_[i].state == Fiber::waiting && !same(fibers_[i].barrier, fibers_[0].barrier)))
        return "threads of block " + std::to_string(thread_.block) +
               " wait for one another: " + text_of(fibers_[0], 0) + ", " + text_of(fibers_[i], i);
    return "threads of a block wait for one another";
  }

  const std::function<void()>& body_;
  std::vector<Fiber> fibers_;
  std::unique_ptr<std::byte[]> stacks_;
  std::map<Site, std::vector<std::byte>> shared_;  // by declaration; {}: of the launch
  [[maybe_unused]] ucontext_t main_{};
  [[maybe_unused]] jmp_buf main_place_{};
  [[maybe_unused]] const void* main_stack_ = nullptr;
  [[maybe_unused]] std::size_t main_stack_bytes_ = 0;
  std::size_t running_ = 0;
  Thread thread_;
  bool inside_ = false;
  bool vote_ = false;
  int block_epoch_ = 0;
  std::vector<int> warp_epochs_;
};

Grid* Grid::current = nullptr;

}  // namespace

void wait(const Barrier& barrier) {
  const Site site{barrier.file, barrier.line};
  world().sites.insert(site);
  if (site != world().dropped) Grid::current->wait(barrier);
}

bool any_of_block(bool mine, const Barrier& barrier) {
  Grid& grid = *Grid::current;
  grid.fiber(grid.running()).vote = mine;
  grid.wait(barrier);
  return grid.vote();
}

float exchange(unsigned int lanes, float value, int step, const Barrier& barrier) {
  if (lanes != 0xffffffffU) set_fault("a shuffle of some lanes, which this layer does not know");
  Grid& grid = *Grid::current;
  const std::size_t thread = grid.running();
  grid.fiber(thread).offered = value;
  grid.wait(barrier);
  return grid.fiber(thread ^ static_cast<std::size_t>(step)).taken;
}

void atomic_add(float* to, float value) {
  races_atomic(to, sizeof *to);
  *to += value;
}

std::uint64_t nanoseconds() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

const std::string& fault() {
  return world().fault;
}
const char* take_fault() {
  static std::string taken;
  taken = std::exchange(world().fault, {});
  return taken.c_str();
}
void set_fault(const std::string& what) {
  if (world().fault.empty()) world().fault = what;
}

bool allow_shared(void (*kernel)(), int bytes) {
  if (bytes > kSharedMost) return false;
  world().allowed[kernel] = static_cast<std::size_t>(bytes);
  return true;
}

void run_grid(void (*kernel)(), unsigned int blocks, unsigned int threads, std::size_t shared_bytes,
              const std::function<void()>& body) {
  if (blocks == 0 || threads == 0 || threads > kMostThreads || threads % kWarp > 1)
    return set_fault(std::to_string(blocks) + " blocks of " + std::to_string(threads) + " threads");
  if (shared_bytes > std::max(kSharedAtOnce, world().allowed[kernel]))
    return set_fault(std::to_string(shared_bytes) + " bytes of shared memory were not allowed");
  races_begin_launch();
  Grid grid(threads, shared_bytes, body);
  Grid::current = &grid;
  now.grid.x = blocks;
  for (unsigned int block = 0; block < blocks && fault().empty(); ++block)
    grid.run_block(static_cast<int>(block));
  Grid::current = nullptr;
}

void* dynamic_shared() {
  return Grid::current->shared({}, 0);
}
void* shared_array(const char* file, int line, std::size_t bytes) {
  return Grid::current->shared({file, line}, bytes);
}

const std::set<Site>& sites() {
  return world().sites;
}
void drop_barrier(const Site& site) {
  world().dropped = site;
}
void drop_no_barrier() {
  world().dropped = {};
}
void run_threads_descending(bool descending) {
  world().descending = descending;
}

const Thread* running() {
  return Grid::current == nullptr ? nullptr : Grid::current->thread();
}
bool on_fiber(const void* data) {
  return Grid::current->on_fiber(data);
}
bool in_shared(const void* data) {
  return Grid::current->in_shared(data);
}

#ifndef EQUIPOISE_HOST_CUDA_RACES
void races_begin_launch() {}
void races_atomic(const void*, std::size_t) {}
#endif

}  // namespace host_cuda

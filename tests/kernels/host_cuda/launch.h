// Kernels of CUDA on the host: the blocks of a grid one after another, the threads of a block as fibers that
// run until the next barrier, in ascending or in descending order. What a GPU would answer with a fault or
// with wrong numbers is a fault here: threads of a block that wait at different barriers, lanes that miss a
// shuffle, more shared memory than was asked for. A block's memory beyond its size is AddressSanitizer's to
// see, and races are race_check.cpp's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>

namespace host_cuda {

inline constexpr int kWarp = 32;

struct Index {
  unsigned int x = 0;
};

// Where the running thread is: threadIdx, blockIdx, gridDim.
struct Now {
  Index thread;
  Index block;
  Index grid;
};
extern Now now;

// All threads of a block, or all lanes of a warp, wait for one another. A shuffle exchanges values and orders
// no memory.
struct Barrier {
  enum Kind { block, block_vote, warp, shuffle } kind = block;
  const char* file = "";
  int line = 0;
};

void wait(const Barrier& barrier);
bool any_of_block(bool mine, const Barrier& barrier);
float exchange(unsigned int lanes, float value, int step, const Barrier& barrier);
void atomic_add(float* to, float value);
std::uint64_t nanoseconds();

// The first fault since take_fault, empty: none. A launch that had one did not finish.
const std::string& fault();
const char* take_fault();
void set_fault(const std::string& what);

// Whether a block may ask for so much at a launch: 48 KiB, or what the device (an H100's 227 KiB) has once it
// is allowed.
bool allow_shared(void (*kernel)(), int bytes);

void run_grid(void (*kernel)(), unsigned int blocks, unsigned int threads, std::size_t shared_bytes,
              const std::function<void()>& body);

// Shared memory of the size of the launch, and of a declaration's: NaNs where a block begins.
void* dynamic_shared();
void* shared_array(const char* file, int line, std::size_t bytes);
template <class Number>
Number* dynamic_shared() {
  return static_cast<Number*>(dynamic_shared());
}
template <class Array>
Array& shared_array(const char* file, int line) {
  return *static_cast<Array*>(shared_array(file, line, sizeof(Array)));
}

template <class... Parameters>
struct Launch {
  void (*kernel)(Parameters...);
  unsigned int blocks;
  unsigned int threads;
  std::size_t shared_bytes;

  void operator()(Parameters... arguments) const {
    run_grid(reinterpret_cast<void (*)()>(kernel), blocks, threads, shared_bytes,
             [&] { kernel(arguments...); });
  }
};

template <class... Parameters>
Launch<Parameters...> configure(void (*kernel)(Parameters...), unsigned int blocks, unsigned int threads,
                                std::size_t shared_bytes = 0) {
  return {kernel, blocks, threads, shared_bytes};
}

// --- What tests change.

// By file and line: the barriers that order memory and carry no value, as launches came across them.
using Site = std::pair<std::string, int>;
const std::set<Site>& sites();
void drop_barrier(const Site& site);  // its threads pass it
void drop_no_barrier();
void run_threads_descending(bool descending);

// --- What race_check.cpp is told, and defines: nothing where it is not built.

struct Thread {
  int block = 0;
  int thread = 0;
  int block_epoch = 0;  // barriers of the block so far
  int warp_epoch = 0;   // of the thread's warp
};
const Thread* running();          // null between kernels
bool on_fiber(const void* data);  // in the stack of a thread
bool in_shared(const void* data);
void races_begin_launch();
void races_atomic(const void* data, std::size_t bytes);
int take_most_turns();  // that any access to shared memory took of a warp since the last call: 1 without
                        // conflicts

}  // namespace host_cuda

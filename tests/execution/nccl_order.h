// Whether the calls that ranks made could have been made over NCCL: a model of what kernels/cuda/nccl.cpp
// does with each.
//
// A communicator has three of NCCL: one for collectives and exchanges, one for messages to higher ranks and
// one for those to lower ranks. Its calls are on the default stream, which all communicators of a rank share,
// but for those of start_send, which has a stream for each of the two directions. A call begins when all
// before it on its stream are done, all before it on its NCCL communicator, and what its stream was told to
// wait for; it ends when all whom it concerns have begun. NCCL may do better (a short message can leave
// before it is received); what the model passes hangs in no such case. It knows nothing of SMs: calls on
// different communicators are taken to run at the same time.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/collectives.h"

namespace equipoise::testing {

struct NcclCall {
  enum Kind { collective, send, started_send, wait, receive, exchange };
  Kind kind = collective;
  std::string what;         // the collective's name
  int communicator = 0;     // of NcclRecord::members
  std::int64_t count = 0;   // elements
  int to = -1, from = -1;   // ranks of the communicator
  int tag = 0;              // NCCL has none: sender and receiver have to mean the same message
  std::size_t started = 0;  // of a wait: the position of its started_send
};

// What all ranks called. The communicators fill it, each from its rank's thread.
struct NcclRecord {
  explicit NcclRecord(int ranks);
  std::vector<std::vector<NcclCall>> calls;  // by rank of the world, in order
  std::vector<std::vector<int>> members;     // by communicator: ranks of the world, by rank in it
  std::map<std::string, int> numbers;        // of communicators, by how they came about
  std::mutex mutex;                          // of the two above
};

// `inner` with every call noted in `record`, which has to live as long; the communicators split off it, too.
std::unique_ptr<kernels::Communicator> recorded(kernels::Communicator& inner, NcclRecord& record);

// In words, the first thing in the record that NCCL would not do: who waits for whom for ever, calls of one
// communicator that do not fit each other, a message taken for another. Empty: there is none.
std::string nccl_fault(const NcclRecord& record);

}  // namespace equipoise::testing

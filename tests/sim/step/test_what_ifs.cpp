// What ifs with an answer that the reader can work out: a pipeline of stages that each take a micro-batch's
// forward f and its backward b, hops between them, and nothing else. The arithmetic is behind each row:
//   equal micro-batches       (m + P - 1)(f + b)          the first waits for P - 1 stages, twice
//   V chunks of each stage    (m + (P - 1) / V)(f + b)    whose stages are V times as short
//   gpipe, unequal ones       sum + (P - 1) x longest     of the forwards, then of the backwards
//   gpipe, hops of h          2 (P - 1) h more            one way and back, under nothing
#include "tests/sim/step/hand_costs.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

struct WhatIf {
  const char* what;
  const char* schedule;
  int stages, chunks;
  std::vector<double> forward;  // by micro-batch
  int backward_ratio;           // b / f
  Picoseconds hop;
  Picoseconds expected;
};

const std::vector<WhatIf>& what_ifs() {
  // clang-format off
  static const std::vector<WhatIf> list = {
    {"one micro-batch, one stage", "gpipe", 1, 1, {5}, 2, 0, 15},                                       // (1 + 1 - 1)(5 + 10)
    {"one micro-batch, one stage", "1f1b", 1, 1, {5}, 2, 0, 15},                                        // (1 + 1 - 1)(5 + 10)
    {"eight times the work", "gpipe", 1, 1, std::vector<double>(8, 5), 2, 0, 120},                      // (8 + 1 - 1)(5 + 10)
    {"eight times the work", "1f1b", 1, 1, std::vector<double>(8, 5), 2, 0, 120},                       // (8 + 1 - 1)(5 + 10)
    {"a second stage", "gpipe", 2, 1, std::vector<double>(8, 5), 2, 0, 135},                            // (8 + 2 - 1)(5 + 10)
    {"a second stage", "1f1b", 2, 1, std::vector<double>(8, 5), 2, 0, 135},                             // (8 + 2 - 1)(5 + 10)
    {"four stages", "gpipe", 4, 1, std::vector<double>(8, 5), 2, 0, 165},                               // (8 + 4 - 1)(5 + 10)
    {"four stages", "1f1b", 4, 1, std::vector<double>(8, 5), 2, 0, 165},                                // (8 + 4 - 1)(5 + 10)
    {"as many stages as micro-batches", "gpipe", 8, 1, std::vector<double>(8, 5), 2, 0, 225},           // (8 + 8 - 1)(5 + 10)
    {"as many stages as micro-batches", "1f1b", 8, 1, std::vector<double>(8, 5), 2, 0, 225},            // (8 + 8 - 1)(5 + 10)
    {"twice the micro-batches", "gpipe", 4, 1, std::vector<double>(16, 5), 2, 0, 285},                  // (16 + 4 - 1)(5 + 10)
    {"twice the micro-batches", "1f1b", 4, 1, std::vector<double>(16, 5), 2, 0, 285},                   // (16 + 4 - 1)(5 + 10)
    {"four times the micro-batches", "gpipe", 4, 1, std::vector<double>(32, 5), 2, 0, 525},             // (32 + 4 - 1)(5 + 10)
    {"four times the micro-batches", "1f1b", 4, 1, std::vector<double>(32, 5), 2, 0, 525},              // (32 + 4 - 1)(5 + 10)
    {"micro-batches twice as long", "gpipe", 4, 1, std::vector<double>(8, 10), 2, 0, 330},              // (8 + 4 - 1)(10 + 20)
    {"micro-batches twice as long", "1f1b", 4, 1, std::vector<double>(8, 10), 2, 0, 330},               // (8 + 4 - 1)(10 + 20)
    {"both", "gpipe", 4, 1, std::vector<double>(16, 10), 2, 0, 570},                                    // (16 + 4 - 1)(10 + 20)
    {"both", "1f1b", 4, 1, std::vector<double>(16, 10), 2, 0, 570},                                     // (16 + 4 - 1)(10 + 20)
    {"far more stages than micro-batches", "gpipe", 16, 1, std::vector<double>(4, 5), 2, 0, 285},       // (4 + 16 - 1)(5 + 10)
    {"far more stages than micro-batches", "1f1b", 16, 1, std::vector<double>(4, 5), 2, 0, 285},        // (4 + 16 - 1)(5 + 10)
    {"no backward", "1f1b", 4, 1, std::vector<double>(8, 5), 0, 0, 55},                                 // (8 + 4 - 1)(5 + 0)
    {"a backward as long as the forward", "1f1b", 4, 1, std::vector<double>(8, 5), 1, 0, 110},          // (8 + 4 - 1)(5 + 5)
    {"a backward that recomputes the forward", "1f1b", 4, 1, std::vector<double>(8, 5), 3, 0, 220},     // (8 + 4 - 1)(5 + 15)
    {"one of four times", "1f1b", 4, 1, std::vector<double>(8, 5), 4, 0, 275},                          // (8 + 4 - 1)(5 + 20)
    {"a long one first", "gpipe", 4, 1, {4, 2, 1, 1}, 2, 0, 60},                                        // 3 (sum 8 + 3 x longest 4)
    {"a long one last", "gpipe", 4, 1, {1, 1, 2, 4}, 2, 0, 60},                                         // 3 (sum 8 + 3 x longest 4)
    {"the same tokens, balanced", "gpipe", 4, 1, std::vector<double>(4, 2), 2, 0, 42},                  // 3 (sum 8 + 3 x longest 2)
    {"all in one", "gpipe", 4, 1, {8, 0, 0, 0}, 2, 0, 96},                                              // 3 (sum 8 + 3 x longest 8)
    {"half the stages", "gpipe", 2, 1, {4, 2, 1, 1}, 2, 0, 36},                                         // 3 (sum 8 + 1 x longest 4)
    {"twice the stages", "gpipe", 8, 1, {4, 2, 1, 1}, 2, 0, 108},                                       // 3 (sum 8 + 7 x longest 4)
    {"three stages", "gpipe", 3, 1, {5, 4, 1, 6}, 2, 0, 84},                                            // 3 (sum 16 + 2 x longest 6)
    {"one of seven among ones", "gpipe", 4, 1, {7, 1, 1, 1, 1, 1}, 2, 0, 99},                           // 3 (sum 12 + 3 x longest 7)
    {"the same tokens, balanced, six of two", "gpipe", 4, 1, std::vector<double>(6, 2), 2, 0, 54},      // 3 (sum 12 + 3 x longest 2)
    {"one longer than the other", "gpipe", 5, 1, {1, 2, 3, 4, 5}, 2, 0, 105},                           // 3 (sum 15 + 4 x longest 5)
    {"two chunks of two stages", "interleaved-1f1b", 2, 2, std::vector<double>(4, 4), 2, 0, 54},        // (4 + 1/2)(4 + 8)
    {"four stages, one chunk", "1f1b", 4, 1, std::vector<double>(8, 8), 2, 0, 264},                     // (8 + 3/1)(8 + 16)
    {"two chunks", "interleaved-1f1b", 4, 2, std::vector<double>(8, 8), 2, 0, 228},                     // (8 + 3/2)(8 + 16)
    {"four chunks", "interleaved-1f1b", 4, 4, std::vector<double>(8, 8), 2, 0, 210},                    // (8 + 3/4)(8 + 16)
    {"eight chunks", "interleaved-1f1b", 4, 8, std::vector<double>(8, 8), 2, 0, 201},                   // (8 + 3/8)(8 + 16)
    {"two chunks, twice the micro-batches", "interleaved-1f1b", 4, 2, std::vector<double>(16, 8), 2, 0, 420},  // (16 + 3/2)(8 + 16)
    {"two chunks of eight stages", "interleaved-1f1b", 8, 2, std::vector<double>(8, 8), 2, 0, 276},     // (8 + 7/2)(8 + 16)
    {"four chunks of eight stages", "interleaved-1f1b", 8, 4, std::vector<double>(8, 8), 2, 0, 234},    // (8 + 7/4)(8 + 16)
    {"as many micro-batches as stages", "interleaved-1f1b", 2, 4, std::vector<double>(2, 8), 2, 0, 54}, // (2 + 1/4)(8 + 16)
    {"and more chunks", "interleaved-1f1b", 2, 8, std::vector<double>(2, 8), 2, 0, 51},                 // (2 + 1/8)(8 + 16)
    {"no hop", "gpipe", 2, 1, {5}, 2, 0, 30},                                                           // 3 x 5 (1 + 2 - 1) + 2 x 1 x 0
    {"a hop of two", "gpipe", 2, 1, {5}, 2, 2, 34},                                                     // 3 x 5 (1 + 2 - 1) + 2 x 1 x 2
    {"a network of half the speed", "gpipe", 2, 1, {5}, 2, 4, 38},                                      // 3 x 5 (1 + 2 - 1) + 2 x 1 x 4
    {"three hops each way", "gpipe", 4, 1, {5}, 2, 2, 72},                                              // 3 x 5 (1 + 4 - 1) + 2 x 3 x 2
    {"hops under other micro-batches", "gpipe", 4, 1, std::vector<double>(8, 5), 2, 2, 177},            // 3 x 5 (8 + 4 - 1) + 2 x 3 x 2
    {"hops longer than a forward", "gpipe", 4, 1, std::vector<double>(8, 5), 2, 20, 285},               // 3 x 5 (8 + 4 - 1) + 2 x 3 x 20
    {"seven hops each way", "gpipe", 8, 1, std::vector<double>(8, 5), 2, 2, 253},                       // 3 x 5 (8 + 8 - 1) + 2 x 7 x 2
    {"twice the micro-batches, the same hops", "gpipe", 4, 1, std::vector<double>(16, 5), 2, 2, 297},   // 3 x 5 (16 + 4 - 1) + 2 x 3 x 2
    {"one micro-batch on two stages", "1f1b", 2, 1, {3}, 2, 2, 22},                                     // 2 x (3 + 6) + 2 x 1 x 2
    {"on four", "1f1b", 4, 1, {3}, 2, 2, 48},                                                           // 4 x (3 + 6) + 2 x 3 x 2
    {"on eight", "1f1b", 8, 1, {3}, 2, 2, 100},                                                         // 8 x (3 + 6) + 2 x 7 x 2
    {"with a network that takes no time", "1f1b", 4, 1, {3}, 2, 0, 36},                                 // 4 x (3 + 6) + 2 x 3 x 0
    {"unequal ones, and hops", "gpipe", 4, 1, {4, 2, 1, 1}, 2, 2, 72},                                  // 3 (sum 8 + 3 x longest 4) + 2 x 3 x 2
    {"a network of half the speed", "gpipe", 4, 1, {4, 2, 1, 1}, 2, 4, 84},                             // 3 (sum 8 + 3 x longest 4) + 2 x 3 x 4
    {"balanced, and hops", "gpipe", 4, 1, std::vector<double>(4, 2), 2, 2, 54},                         // 3 (sum 8 + 3 x longest 2) + 2 x 3 x 2
    {"twice the stages, and hops", "gpipe", 8, 1, {4, 2, 1, 1}, 2, 2, 136},                             // 3 (sum 8 + 7 x longest 4) + 2 x 7 x 2
    {"a single long one", "gpipe", 3, 1, {9}, 2, 2, 89},                                                // 3 (sum 9 + 2 x longest 9) + 2 x 2 x 2
    {"cut into three", "gpipe", 3, 1, std::vector<double>(3, 3), 2, 2, 53},                             // 3 (sum 9 + 2 x longest 3) + 2 x 2 x 2
  };
  // clang-format on
  return list;
}

}  // namespace

TEST_CASE("What ifs take as long as the reader works out") {
  CHECK(what_ifs().size() >= 60);
  for (const WhatIf& row : what_ifs()) {
    CAPTURE(row.what);
    CAPTURE(row.schedule);
    LaneEngine engine(model_of(row.stages * row.chunks), pipeline_of(row.stages, row.chunks));
    const HandLane lane = hand_lane(row.forward, {}, row.backward_ratio, row.hop, row.chunks);
    CHECK(run_lane(engine, row.schedule, lane, row.stages, {}, row.chunks).result.makespan == row.expected);
  }
}

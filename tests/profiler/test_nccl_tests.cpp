// What nccl-tests prints, old and new, as samples; and what is refused, with file and line.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "policies/base/error.h"
#include "profiler/fit/nccl_tests.h"

namespace equipoise {
namespace {

std::string ranks(int nodes, int each) {
  std::string lines = "# Using devices\n";
  for (int rank = 0; rank < nodes * each; ++rank)
    lines += "#  Rank " + std::to_string(rank) + " Group  0 Pid   " + std::to_string(100 + rank) +
             " on    node-" + std::to_string(rank / each) + " device  " + std::to_string(rank % each) +
             " [0000:1" + std::to_string(rank % each) + ":00] NVIDIA H100 80GB HBM3\n";
  return lines;
}

const std::string kHeader =
    "#                                                              out-of-place                       "
    "in-place\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   "
    "busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  "
    "(GB/s)\n";

struct Read {
  ForeignFile file;
  SampleSet samples;
};

Read read(const std::string& text, const std::string& name = "log.txt") {
  Read all;
  all.file = add_nccl_tests(std::string_view(text), name, "fabric", all.samples);
  return all;
}

std::string refusal(const std::string& text, const std::string& name = "log.txt") {
  try {
    (void)read(text, name);
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a run of all_reduce over two nodes: ranks, nodes, GPU, sizes, times out of place") {
  // 16 ranks: busbw / algbw = 2 * 15 / 16 = 1.875, as of no other collective.
  const std::string text = "# nThread 1 nGpus 1 minBytes 0 maxBytes 1G step: 2(factor)\n" + ranks(2, 8) +
                           kHeader +
                           "           0             0     float     sum      -1     8.10    0.00    0.00    "
                           "  0     8.00    0.00    0.00      0\n"
                           "     1048576        262144     float     sum      -1   100.00   10.49   19.66    "
                           "  0   101.00   10.38   19.47      0\n"
                           "  1073741824     268435456     float     sum      -1    12174   88.20  165.37    "
                           "  0    12167   88.25  165.47      3\n"
                           "    16777216       4194304     float     sum      -1   300.00   55.92  104.86    "
                           "  7   301.00   55.74  104.51      0\n"
                           "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 103.965\n";
  const Read all = read(text);
  REQUIRE(all.samples.collective.size() == 2);
  const CollectiveSample& first = all.samples.collective[0];
  CHECK(first.kind == Collective::all_reduce);
  CHECK(first.bytes == 1048576);
  CHECK(first.group.ranks == 16);
  CHECK(first.group.ranks_per_node == 8);
  CHECK(first.seconds == doctest::Approx(100e-6));
  CHECK(first.labels.at("inter_node_network") == "fabric");
  CHECK(all.samples.collective[1].seconds == doctest::Approx(12174e-6));
  CHECK(all.file.gpu == "NVIDIA H100 80GB HBM3");
  CHECK(all.file.skipped.at("rows of no bytes") == 1);
  CHECK(all.file.skipped.at("rows with wrong results") == 1);
  CHECK(shown(all.file) ==
        "nccl-tests: 2 samples of all_reduce over 16 GPUs of 2 nodes, NVIDIA H100 80GB HBM3; skipped: 1 "
        "rows of no bytes, 1 rows with wrong results");
}

TEST_CASE("old headers: no root, an error instead of a count, empty redop; prefixes of mpirun and srun") {
  const std::string old =
      "#   Rank  0 Pid   6354 on    dgx device  0 [0x06] Tesla V100-SXM2-16GB\n"
      "#   Rank  1 Pid   6354 on    dgx device  1 [0x07] Tesla V100-SXM2-16GB\n"
      "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  "
      "error\n"
      "    33554432       4194304   float            520.0   64.53   32.26  0e+00    519.0   64.65   32.33  "
      "0e+00\n";
  // (n - 1) / n of two ranks is a half; no reduction; results in place are checked: an all_gather.
  const Read gathered = read(old);
  REQUIRE(gathered.samples.collective.size() == 1);
  CHECK(gathered.samples.collective[0].kind == Collective::all_gather);
  CHECK(gathered.samples.collective[0].group.ranks_per_node == 2);
  CHECK(gathered.samples.collective[0].labels.at("inter_node_network").empty());
  for (const std::string prefix :
       {"[1,0]<stdout>:", "0: ", "[0] ", " 12: ", "gpu-node-7: ", "[rank0]: ", "[1,0]<stdout>: [0] ",
        "[prterun-node1-7@1,0]<stdout>: ", "2026-01-02T10:00:00.123456789Z "}) {
    CAPTURE(prefix);
    std::string tagged;
    for (std::size_t at = 0; at < old.size();) {
      const std::size_t end = old.find('\n', at) + 1;
      tagged.append(prefix).append(old, at, end - at);
      at = end;
    }
    CHECK(looks_like_nccl_tests(std::string_view(tagged)));
    CHECK(read(tagged).samples.collective.size() == 1);
  }
}

TEST_CASE("which collective ran: its line, the file's name, else the rows; what is between two is refused") {
  const std::string row =
      "    33554432       4194304     float    none      -1    520.0   64.53   56.46    N/A    519.0   64.65 "
      "  56.57    N/A\n";
  const std::string table = ranks(1, 8) + kHeader + row;  // 56.46 / 64.53 = 7 / 8, nothing checked
  CHECK(refusal(table) ==
        "log.txt:11: these rows may be of all_gather_perf, alltoall_perf; give the file the name of the "
        "program that ran, "
        "e.g. all_gather_perf.txt");
  CHECK(read(table, "out/alltoall_8.log").samples.collective[0].kind == Collective::all_to_all);
  CHECK(read("# Collective test starting: all_gather_perf\n" + table).samples.collective[0].kind ==
        Collective::all_gather);
  CHECK(read("$ mpirun -n 8 ./build/alltoall_perf -b 8\n" + table).samples.collective[0].kind ==
        Collective::all_to_all);
  // alltoall checks no results in place.
  const std::string checked =
      "    33554432       4194304     float    none      -1    520.0   64.53   56.46      0    519.0   64.65 "
      "  56.57    N/A\n";
  CHECK(read(ranks(1, 8) + kHeader + checked).samples.collective[0].kind == Collective::all_to_all);
  CHECK(refusal(table, "all_reduce.txt")
            .find("all_reduce.txt:11: expected busbw / algbw of 1.75 from all_reduce_perf over 8 "
                  "ranks, as the file's name says, found 0.87") == 0);
}

TEST_CASE("sendrecv's ring is a pair; programs that are none of ours, groups and single ranks are counted") {
  const std::string row =
      "    33554432       8388608     float     sum      -1    800.0   41.94   41.94      0    801.0   41.89 "
      "  41.89    N/A\n";
  const Read ring = read(ranks(2, 8) + kHeader + row, "sendrecv_perf.txt");
  REQUIRE(ring.samples.collective.size() == 1);
  CHECK(ring.samples.collective[0].group.ranks == 2);
  CHECK(ring.samples.collective[0].group.ranks_per_node == 1);
  const Read other = read("# Collective test starting: broadcast_perf\n" + ranks(1, 8) + kHeader + row);
  CHECK(other.samples.collective.empty());
  CHECK(other.file.skipped.begin()->first.find("rows of broadcast_perf") == 0);
  CHECK(read(ranks(1, 1) + kHeader + row).file.skipped.count("rows of one rank, which sends nothing") == 1);
  // Two runs in one file, each with its own ranks.
  const std::string sum =
      "     1048576        262144     float     sum      -1   100.00   10.49   18.35      0   101.00   10.38 "
      "  18.17      0\n";
  CHECK(read(ranks(1, 8) + kHeader + sum + ranks(1, 8) + kHeader + sum).samples.collective.size() == 2);
}

TEST_CASE("broken lines are named by file and line, with what is expected") {
  const std::string top = ranks(1, 2) + kHeader;  // 6 lines
  CHECK(refusal(top + "  1024  256  float  sum  -1  10.0  0.10  0.10\n") ==
        "log.txt:7: expected 13 cells as in the header (redop and root may be empty), found 8");
  CHECK(refusal(top + "  1024  256  float  sum  -1  fast  0.10  0.10  0  10.0  0.10  0.10  0\n") ==
        "log.txt:7: time: expected a number >= 0 or N/A, found \"fast\"");
  CHECK(refusal(top + "  1024  256  float  sum  -1  10.0  -1  0.10  0  10.0  0.10  0.10  0\n") ==
        "log.txt:7: algbw: expected a number >= 0 or N/A, found \"-1\"");
  CHECK(refusal("# Rank 0 is here\n" + kHeader) ==
        "log.txt:1: expected # Rank N ... on HOST device D [BUS] GPU, found \"# Rank 0 is here\"");
  const std::string row = "  1024  256  float  sum  -1  10.0  0.10  0.10  0  10.0  0.10  0.10  0\n";
  CHECK(refusal(kHeader + row).find("log.txt:2: expected lines \"# Rank 0 ... on HOST") == 0);
  CHECK(refusal("#  Rank 0 on a device 0 [0x1] G\n#  Rank 1 on a device 1 [0x2] G\n#  Rank 2 on b device 0 "
                "[0x1] G\n" +
                kHeader + row) == "log.txt:5: expected as many ranks on every node, found 2 on a and 1 on b");
  CHECK(refusal("nothing of the kind\n") ==
        "log.txt: expected nccl-tests' table (# size count type ... time algbw busbw), found none");
}

TEST_CASE("the JSON of -J is read like the text") {
  nlohmann::json file = {
      {"version", 2}, {"nccl_version", 22706}, {"args", {"./build/all_gather_perf", "-b", "8"}}};
  for (int rank = 0; rank < 2; ++rank)
    file["config"]["devices"].push_back({{"rank", rank},
                                         {"group", 0},
                                         {"hostname", std::string("n").append(std::to_string(rank))},
                                         {"device_info", "NVIDIA H200"}});
  file["results"].push_back(
      {{"size", 1048576},
       {"count", 131072},
       {"type", "float"},
       {"redop", "none"},
       {"root", "-1"},
       {"out_of_place", {{"time", 55.5}, {"alg_bw", 18.9}, {"bus_bw", 9.45}, {"nwrong", 0.0}}},
       {"in_place", nullptr}});
  REQUIRE(looks_like_nccl_tests(file));
  SampleSet samples;
  const ForeignFile read_file = add_nccl_tests(file, "x.json", "", samples);
  REQUIRE(samples.collective.size() == 1);
  CHECK(samples.collective[0].kind == Collective::all_gather);
  CHECK(samples.collective[0].group.ranks_per_node == 1);
  CHECK(samples.collective[0].seconds == doctest::Approx(55.5e-6));
  CHECK(read_file.gpu == "NVIDIA H200");
  file["results"][0]["out_of_place"]["time"] = "fast";
  CHECK_THROWS_WITH_AS(add_nccl_tests(file, "x.json", "", samples),
                       "x.json: results[0].out_of_place.time: expected a number >= 0, found \"fast\"",
                       UserError);
}

}  // namespace equipoise

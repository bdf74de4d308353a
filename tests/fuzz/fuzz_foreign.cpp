// What other tools wrote: the text and JSON of nccl-tests, traces of torch.profiler.
#include <nlohmann/json.hpp>

#include "profiler/fit/nccl_tests.h"
#include "profiler/fit/torch_trace.h"
#include "tests/fuzz/law.h"
#include "traces/json_text.h"

using namespace equipoise;

namespace {

const std::string kNew =
    "# Collective test starting: all_reduce_perf\n# Using devices\n"
    "#  Rank  0 Group  0 Pid  1 on  a device  0 [0000:10:00] NVIDIA H100\n"
    "#  Rank  1 Group  0 Pid  2 on  b device  0 [0000:10:00] NVIDIA H100\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   "
    "busbw #wrong\n"
    "     1048576        262144     float     sum      -1   100.00   10.49   10.49      0   101.00   10.38   "
    "10.38      0\n"
    "     2097152        524288     float     sum      -1   150.00   13.98   13.98      0   151.00   13.89   "
    "13.89      0\n"
    "# Out of bounds values : 0 OK\n";
const std::string kOld =
    "#   Rank  0 Pid   6354 on    dgx device  0 [0x06] Tesla V100\n"
    "#   Rank  1 Pid   6354 on    dgx device  1 [0x07] Tesla V100\n"
    "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  "
    "error\n"
    "    33554432       4194304   float            520.0   64.53   32.26  0e+00    519.0   64.65   32.33    "
    "N/A\n";
const std::string kJson =
    R"({"version": 2, "nccl_version": 22706, "args": ["./sendrecv_perf"], "config": {"devices": [
  {"rank": 0, "group": 0, "hostname": "a", "device_info": "H"}, {"rank": 1, "group": 0, "hostname": "a", "device_info": "H"}]},
  "results": [{"size": 1048576, "redop": "sum", "out_of_place": {"time": 50.5, "alg_bw": 20.8, "bus_bw": 20.8, "nwrong": 0},
  "in_place": null}]})";
const std::string kTrace = R"({"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "traceEvents": [
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "args": {"External id": 1,
   "Input Dims": [[128, 64], [64, 256]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}},
  {"ph": "X", "cat": "kernel", "name": "k", "ts": 3, "dur": 4.5, "args": {"External id": 1}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::_flash_attention_forward", "ts": 1, "dur": 2, "args": {"External id": 2,
   "Input Dims": [[2, 512, 8, 64], [2, 512, 4, 64], [2, 512, 4, 64], [], []], "Input type": ["c10::BFloat16"],
   "Concrete Inputs": ["", "", "", "", "", "512", "512", "0.", "True"]}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 1, "args": {"External id": 2, "correlation": 7}},
  {"ph": "X", "cat": "kernel", "name": "k", "ts": 3, "dur": 40, "args": {"correlation": 7}}]})";

}  // namespace

TEST_CASE("What nccl-tests prints is read or refused") {
  test::check_reader("nccl-text", {kNew, kOld}, [](const std::string& text) {
    SampleSet set;
    (void)shown(add_nccl_tests(std::string_view(text), "log.txt", "", set));
  });
}

TEST_CASE("JSON of nccl-tests is read or refused") {
  test::check_reader("nccl-json", {kJson}, [](const std::string& text) {
    SampleSet set;
    (void)add_nccl_tests(parse_json(text, "n.json"), "n.json", "", set);
  });
}

TEST_CASE("Traces of torch.profiler are read as samples, or refused") {
  test::check_reader("torch-samples", {kTrace}, [](const std::string& text) {
    SampleSet set;
    (void)add_torch_trace(parse_json(text, "t.json"), "t.json", set);
  });
}

#include <doctest/doctest.h>

#include "policies/base/error.h"
#include "sim/validation/measured_log.h"
#include "sim/validation/torch_log.h"
#include "tests/notes.h"
#include "tests/scratch_folder.h"
#include "traces/formats/bytes.h"

using namespace equipoise;

namespace {

MeasuredLog parse(const std::string& text) {
  return parse_measured_log(text, "log");
}

std::string refusal(const std::string& text) {
  try {
    (void)parse(text);
  } catch (const UserError& e) {
    const std::string message = e.what();
    CHECK(message.find('\n') == std::string::npos);
    CHECK(message.starts_with("log"));
    return message;
  }
  return "";
}

bool refuses(const std::string& text, const std::string& part) {
  const std::string message = refusal(text);
  CAPTURE(message);
  return message.find(part) != std::string::npos;
}

std::string megatron(int iteration, double milliseconds) {
  return " [2025-03-01 10:00:00] iteration " + std::to_string(iteration) +
         "/     100 | consumed samples:          320 | elapsed time per iteration (ms): " +
         std::to_string(milliseconds) +
         " | throughput per GPU (TFLOP/s/GPU): 401.5 | learning rate: 3.0E-05 | global batch size:    32 |\n";
}

}  // namespace

TEST_CASE("CSV: steps, repetitions, policies, and ops in long form") {
  const MeasuredLog log = parse(
      "policy,step,tokens,step_seconds,op,seconds,who\n"
      "wlb,0,4096,1.5,,,x\n"
      "wlb,0,4096,1.7,,,x\n"
      "wlb,0,,,attention,0.25,x\n"
      "plain,1,,2,qkv_gemm,0.5,x\n");
  CHECK(log.form == "CSV");
  REQUIRE(log.steps.size() == 3);
  CHECK(log.steps[1].policy == "wlb");
  CHECK(log.steps[1].seconds == 1.7);
  CHECK(log.steps[1].tokens == 4096);
  CHECK(log.steps[2].step == 1);
  CHECK(log.steps[2].count == 1);
  REQUIRE(log.ops.size() == 2);
  CHECK(log.ops[0].kind == "attention");
  CHECK(log.ops[0].seconds == 0.25);
  CHECK(log.notes ==
        Notes{{"columns_not_used",
               "log",
               {{"unused", "who"}, {"used", "policy, step, tokens, step_seconds, op, seconds"}}}});
}

TEST_CASE("CSV: what is none is refused with its line") {
  CHECK(refuses("step_seconds\n1\n", "log:1: expected columns step and step_seconds, found step_seconds"));
  CHECK(refuses("step,step_seconds\n", "log: expected a line with step_seconds, found none"));
  CHECK(refuses("step,step_seconds\n0,1\n1,-3\n", "log:3: step_seconds: expected seconds > 0, found -3"));
  CHECK(refuses("step,step_seconds\n0.5,1\n", "log:2: step: expected a whole number >= 0, found 0.5"));
  CHECK(refuses("step,step_seconds\n,1\n", "log:2: step: expected a whole number >= 0, found nothing"));
  CHECK(refuses("step,step_seconds\n0,\n",
                "log:2: step_seconds: expected seconds > 0, or an op, found nothing"));
  CHECK(refuses("step,step_seconds,op\n0,1,x\n", "columns op and seconds together"));
  CHECK(refuses("step,step_seconds,op,seconds\n0,1,gemm,\n",
                "log:2: seconds: expected seconds > 0, found nothing"));
  CHECK(refuses("step,step_seconds\n0,nan\n", "log:2"));
}

TEST_CASE("Megatron-LM: an entry an iteration, the first 3 are warm-up") {
  std::string text = "setting tensorboard ...\n";
  for (int i = 1; i <= 6; ++i)
    text += megatron(i, 1000.0 + i) + " validation loss at iteration 5 | lm loss 3\n";
  const MeasuredLog log = parse(text);
  CHECK(log.form == "Megatron-LM log");
  REQUIRE(log.steps.size() == 3);
  CHECK(log.steps[0].step == 3);
  CHECK(log.steps[0].seconds == doctest::Approx(1.004));
  CHECK(log.steps[2].step == 5);
  CHECK(log.notes == Notes{{"warm_up_excluded", "log", {{"excluded", 3}, {"entries", 6}, {"warm_up", 3}}}});
  CHECK(log.run.samples_per_step == 32);
}

TEST_CASE("Megatron-LM: entries of several iterations, a job that went on, one entry only") {
  const MeasuredLog log = parse(megatron(10, 2000) + megatron(20, 1000) + megatron(30, 1100));
  REQUIRE(log.steps.size() == 2);
  CHECK(log.steps[0].step == 10);
  CHECK(log.steps[0].count == 10);
  CHECK(log.notes.back() == Note{"mean_of_iterations", "log", {{"iterations", 10}}});
  const MeasuredLog later =
      parse(megatron(5001, 9) + megatron(5002, 8) + megatron(5003, 7) + megatron(5004, 6));
  REQUIRE(later.steps.size() == 1);
  CHECK(later.steps[0].step == 5003);
  const MeasuredLog one = parse(megatron(1, 9000));
  REQUIRE(one.steps.size() == 1);
  CHECK(one.steps[0].step == 0);
  CHECK(one.notes[0] == Note{"only_last_entry", "log", {{"entries", 1}, {"warm_up", 3}}});
}

TEST_CASE("Megatron-LM: lines that are not") {
  CHECK(refuses("elapsed time per iteration (ms): 5\n", "log:1: expected an iteration >= 1"));
  CHECK(refuses("iteration 5/ | elapsed time per iteration (ms): fast\n", "log:1: expected a number > 0"));
  CHECK(refuses("x\niteration 0/ | elapsed time per iteration (ms): 5\n", "log:2: expected"));
  CHECK(refuses("iteration 5/ | elapsed time per iteration (ms): 0\n", "expected a number > 0"));
  CHECK(refuses("iteration 5/ | elapsed time per iteration (ms): 1e300\n", "expected a number > 0"));
}

TEST_CASE("Logs of other frameworks, whatever their lines begin with") {
  const auto lines = [](const char* pattern, int from, int to, int by = 1) {
    std::string text;
    for (int i = from; i <= to; i += by) text += formatted(pattern, i) + "\n";
    return text;
  };
  // torchtitan in colours, under torchrun: tokens/s of a GPU, a mean since the entry before.
  const MeasuredLog titan = parse(
      "[rank0]:[titan] 2025-03-01 10:00:00,1 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with "
      "79.1GiB memory\n"
      "[rank0]:[titan] 2025-03-01 10:00:00,1 - root - INFO - Training starts at step 1, with local batch "
      "size 1, "
      "global batch size 8, sequence length 8192\n" +
      lines("[rank0]:[titan] 2025-03-01 10:00:01,1 - root - INFO - \x1b[31mstep: %2d  \x1b[32mloss:  7.2  "
            "\x1b[33mmemory: 43.5GiB(54%%)  \x1b[34mtps: 4,435  \x1b[36mtflops: 288.4\x1b[39m",
            10, 40, 10) +
      lines("[rank0]:[titan] INFO - validate step: %2d  loss:  7.2  memory: 43.5GiB(54%%)  tps: 9,999", 10,
            40, 10));
  CHECK(titan.form == "torchtitan log");
  REQUIRE(titan.steps.size() == 3);
  CHECK(titan.steps[0].step == 10);
  CHECK(titan.steps[0].count == 10);
  CHECK(titan.steps[0].seconds == 0);
  CHECK(titan.steps[0].tokens_per_second_per_gpu == 4435);
  CHECK(titan.run.gpu == "NVIDIA H100 80GB HBM3");
  CHECK(titan.run.samples_per_step == 8);
  const MeasuredLog deepspeed = parse(
      "[2025-03-01 10:00:00,1] [INFO] [config.py:1:print]   train_batch_size ............. 64\n"
      "[2025-03-01 10:00:00,1] [INFO] [config.py:1:print]   world_size ............. 16\n"
      "[2025-03-01 10:00:00,1] [INFO] [config.py:1:print]   data_parallel_world_size=8\n"
      "TrainingArguments(per_device_train_batch_size=2)\n" +
      lines("[2025-03-01 10:00:01,1] [INFO] [timer.py:2:stop] epoch=0/micro_step=20/global_step=%d, "
            "RunningAvgSamplesPerSec=9.1, CurrSamplesPerSec=8.5, MemAllocated=1GB",
            1, 5));
  CHECK(deepspeed.form == "DeepSpeed log");
  CHECK(deepspeed.steps.at(0).samples_per_second == 8.5);
  CHECK(deepspeed.run.samples_per_step == 64);
  CHECK(deepspeed.run.gpus == 16);
  CHECK(parse(lines("steps: %d loss: 1.2 iter time (s): 7.430 samples/sec: 8.6", 1, 5)).steps.at(1).seconds ==
        doctest::Approx(7.43));
  // NeMo counts from 0.
  const MeasuredLog nemo =
      parse(lines("Training epoch 0, iteration 0/9 | lr: 1e-5 | global_batch_size: 256 | "
                  "global_step: %d | reduced_train_loss: 11 | train_step_timing in s: 7.4",
                  0, 4));
  CHECK(nemo.form == "NeMo log");
  CHECK(nemo.steps.at(0).step == 3);
  CHECK(nemo.run.samples_per_step == 256);
  CHECK(
      parse(
          lines("[rank=0]: iteration: %d / 100 | elapsed_time_per_iteration_ms: 1.23K | tokens_per_sec: 4.1K",
                1, 4))
          .steps.at(0)
          .seconds == doctest::Approx(1.23));
  CHECK(parse(lines("(TaskRunner pid=1) step:%d - actor/loss:0.1 - timing_s/step:12.5", 1, 4)).form ==
        "verl log");
}

TEST_CASE("Hugging Face's Trainer: its progress bar, else the line at its end") {
  std::string text =
      "Map: 100%|##########| 1000/1000 [00:01<00:00, 900 examples/s]\n"
      "  Total train batch size (w. parallel, distributed & accumulation) = 64\n";
  for (int i = 1; i <= 9; ++i)
    text += formatted("{'loss': 1.23, 'epoch': 0.0%d}\n %d%%|#   | %d/100 [01:%02d<12:30,  7.43s/it]\r", i, i,
                      i, 5 * i);
  const MeasuredLog log = parse(text);
  CHECK(log.form == "Hugging Face Trainer log");
  REQUIRE(log.steps.size() == 1);
  CHECK(log.steps[0].step == 3);  // behind the warm-up
  CHECK(log.steps[0].count == 6);
  CHECK(log.steps[0].seconds == doctest::Approx(5));
  CHECK(log.run.samples_per_step == 64);
  const MeasuredLog end = parse(
      "{\"loss\": 1.23, \"epoch\": 0.5}\n{\"loss\": 1.1, \"epoch\": 1}\n"
      "{\"train_runtime\": 100.0, \"train_steps_per_second\": 0.5, \"train_loss\": 1.2}\n");
  CHECK(end.steps.at(0).seconds == 2);
  CHECK(end.steps.at(0).count == 50);
  CHECK(test::has_note(end.notes, "log_whole_run"));
  CHECK(refuses("{'loss': 1.23, 'epoch': 0.5}\n{'loss': 1.2, 'epoch': 1.0}\n", "found losses alone"));
}

TEST_CASE("torch.profiler: steps by their annotations, kernels by name and by where they begin") {
  const std::string trace = R"({"schemaVersion": 1, "traceEvents": [
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 100, "dur": 50},
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "ts": 150, "dur": 70},
    {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#3", "ts": 120, "dur": 50},
    {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#4", "ts": 170, "dur": 60},
    {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#4", "ts": 165, "dur": 70},
    {"ph": "X", "cat": "kernel", "name": "flash_fwd_kernel", "ts": 130, "dur": 10},
    {"ph": "X", "cat": "kernel", "name": "flash_bwd_kernel", "ts": 140, "dur": 20},
    {"ph": "X", "cat": "kernel", "name": "nvjet_tst_128x256", "ts": 164, "dur": 5},
    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllGather_RING_LL", "ts": 171, "dur": 7},
    {"ph": "X", "cat": "kernel", "name": "vectorized_elementwise_kernel", "ts": 99, "dur": 7},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 130, "dur": 10},
    {"ph": "i", "name": "Iteration Start", "ts": 1}]})";
  const auto check = [](const MeasuredLog& log) {
    CHECK(log.form == "torch.profiler trace");
    REQUIRE(log.steps.size() == 2);
    CHECK(log.steps[0].step == 3);
    CHECK(log.steps[0].seconds == doctest::Approx(50e-6));
    CHECK(log.steps[1].seconds == doctest::Approx(70e-6));
    REQUIRE(log.ops.size() == 3);
    CHECK(log.ops[0].kind == "attention");
    CHECK(log.ops[0].seconds == doctest::Approx(30e-6));
    CHECK(log.ops[1].kind == "gemm");
    CHECK(log.ops[1].step == 3);
    CHECK(log.ops[2].kind == "all_gather");
    CHECK(log.ops[2].step == 4);
    CHECK(log.notes == Notes{{"kernels_outside", log.name, {{"kernels", 1}}}});
  };
  check(parse(trace));
  const test::Scratch folder;
  check(read_measured_log(folder.write("trace.json", trace)));
  check(
      read_measured_log(folder.write("trace.json.gz", formats::compress(trace, formats::Compression::gzip))));
}

TEST_CASE("torch.profiler: what is no such trace") {
  CHECK(refuses("{}", "log: traceEvents: expected the list of a torch.profiler trace, found nothing"));
  CHECK(refuses(R"({"traceEvents": 4})", "traceEvents: expected a list, found 4"));
  CHECK(refuses(R"([{"ph": "X", "name": "a", "ts": 1}])", "traceEvents[0]: expected ts and dur as numbers"));
  CHECK(refuses(R"([{"ph": "X", "name": "a", "cat": "kernel", "ts": 1, "dur": 5}])",
                "expected ProfilerStep#N events"));
  const std::string step =
      R"({"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 100, "dur": 50})";
  CHECK(refuses("[" + step + "," + step + "]", "expected the trace of one rank, found ProfilerStep#3 twice"));
  CHECK(refuses(R"([{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 100, "dur": 0}])",
                "expected dur > 0"));
  CHECK(refuses("[{\"ph\": \"X\",", "log:1: not JSON"));
}

TEST_CASE("A trace says on what it was taken, and the kernels whose names say no kind are named") {
  const MeasuredLog log = parse(R"trace({"deviceProperties": [{"name": "AMD Instinct MI300X"}],
    "distributedInfo": {"backend": "nccl", "world_size": 16}, "overhead": Infinity, "traceEvents": [
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "ts": 0, "dur": 100},
    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "ts": 1, "dur": 30,
     "args": {"Collective name": "_allgather_base"}},
    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_Generic", "ts": 1, "dur": 5},
    {"ph": "X", "cat": "kernel", "name": "frobnicate_v2", "ts": 1, "dur": 20},
    {"ph": "X", "cat": "kernel", "name": "Cijk_Ailk_Bljk_BBS_BH_MT256x256x64", "ts": 2, "dur": 45}]})trace");
  CHECK(log.run.gpu == "AMD Instinct MI300X");
  CHECK(log.run.gpus == 16);
  REQUIRE(log.ops.size() == 2);
  CHECK(log.ops[0].kind == "all_gather");
  CHECK(log.ops[1].kind == "gemm");
  const Note* const unknown = test::find_note(log.notes, "trace_unknown");
  REQUIRE(unknown != nullptr);
  CHECK(unknown->number("share") == doctest::Approx(0.25));
  CHECK(unknown->count("names") == 2);
  CHECK(unknown->get<Notes>("longest")[0].text("name") == "frobnicate_v2");
}

TEST_CASE("A file of no known form says what would do") {
  CHECK(refuses("hello world\n",
                "log: expected a CSV with columns step and step_seconds, a torch.profiler trace (JSON), or a "
                "log of Megatron-LM"));
  CHECK(refuses("[0] some words\n{curly}\n", "found \"[0] some words\""));
  CHECK(refuses("", "found nothing"));
  CHECK_THROWS_AS(read_measured_log("/nowhere/log.csv"), UserError);
}

TEST_CASE("Kinds of kernels and of ops") {
  for (const auto& [name, kind] : std::vector<std::pair<const char*, const char*>>{
           {"void cudnn::fmha_fprop_f16", "attention"},
           {"cutlass_80_tensorop_bf16_s16816gemm", "gemm"},
           {"ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "reduce_scatter"},
           {"ncclKernel_AllReduce_TREE_LL_Sum_float", "all_reduce"},
           {"ncclDevKernel_SendRecv", "send_recv"},
           {"void at::native::vectorized_layer_norm_kernel", "elementwise"},
           // AMD's libraries
           {"Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64", "gemm"},
           {"void ck_tile::kentry<2, ck_tile::FmhaFwdKernel<>>", "attention"},
           {"_ZN5aiter24fmoe_bf16_blockscaleFp8E", "gemm"},
           {"wvSplitKQ_hf_sml_", "gemm"},
           {"ncclDevKernel_Generic_4", ""},
           // symmetric memory, custom all-reduces, Transformer Engine's userbuffers, DeepEP
           {"void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>", "all_reduce"},
           {"void multimem_all_gather_kernel<16>", "all_gather"},
           {"two_shot_all_reduce_kernel_inplace", "all_reduce"},
           {"void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>", "all_reduce"},
           {"userbuffers_fp16_sum_inplace_gpu_rr_rs_oop", "reduce_scatter"},
           {"kuserbuffers_pushsendrecv", "send_recv"},
           {"void deep_ep::internode::dispatch<false, 8>", "send_recv"},
           {"void hybrid_ep::combine_kernel<16>", "send_recv"},
           {"mscclKernel_Sum_half_LL", ""},
           {"triton_tem_fused_mm_3", "gemm"},
           {"triton_poi_fused_add_mul_0", "elementwise"},
           {"triton_red_fused__scaled_mm_all_gather_into_tensor_3", "elementwise"},
           {"fused_moe_kernel", "gemm"},
           // linear recurrences of FLA and mamba_ssm, which the simulated log counts as attention, too
           {"chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "attention"},
           {"chunk_local_cumsum_scalar_kernel", "attention"},
           {"recompute_w_u_fwd_kernel", "attention"},
           {"merge_16x16_to_64x64_inverse_kernel", "attention"},
           {"_chunk_scan_fwd_kernel", "attention"},
           {"_bmm_chunk_fwd_kernel", "attention"},
           {"_state_passing_bwd_kernel", "attention"},
           {"causal_conv1d_fwd_kernel", "elementwise"},
           {"l2norm_fwd_kernel", "elementwise"},
           {"void at::native::(anonymous namespace)::chunk_cat_cuda_kernel<float, c10::BFloat16>",
            "elementwise"},
           {"frobnicate_v2", ""}}) {
    CAPTURE(name);
    CHECK(kind_of_kernel(name) == kind);
  }
  CHECK(kind_of_kernel("ncclDevKernel_Generic_4", "reduce_scatter_tensor_coalesced") == "reduce_scatter");
  CHECK(kind_of_op(OpName::dp_reduce, true) == "all_reduce");
  CHECK(kind_of_op(OpName::dp_reduce, false) == "reduce_scatter");
  for (int op = 0; op <= static_cast<int>(OpName::optimizer); ++op) {
    const auto name = static_cast<OpName>(op);
    const bool is_kernel =
        name != OpName::host_stall && name != OpName::nano_batch && name != OpName::taken_sms;
    CHECK(kind_of_op(name, false).empty() == !is_kernel);
  }
}

// Traces of torch.profiler: kernels reach their op by External id or by correlation; what cannot be used is
// counted.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "policies/base/error.h"
#include "profiler/fit/torch_trace.h"

namespace equipoise {
namespace {

using nlohmann::json;

class Trace {
 public:
  // An op and its kernels, in microseconds.
  void op(const std::string& name, json dims, const std::string& type, std::initializer_list<double> kernels,
          json concrete = json::array()) {
    const int id = ++id_;
    json arguments = {{"External id", id}, {"Input Dims", dims}, {"Concrete Inputs", std::move(concrete)}};
    for (std::size_t i = 0; i < dims.size(); ++i) arguments["Input type"].push_back(type);
    events.push_back(
        {{"ph", "X"}, {"cat", "cpu_op"}, {"name", name}, {"ts", 1}, {"dur", 2}, {"args", arguments}});
    for (const double us : kernels)
      events.push_back({{"ph", "X"},
                        {"cat", "kernel"},
                        {"name", "k"},
                        {"ts", 3},
                        {"dur", us},
                        {"args", {{"External id", id}}}});
  }
  [[nodiscard]] json file() const {
    return {{"deviceProperties", {{{"id", 0}, {"name", "NVIDIA H100 80GB HBM3"}}}}, {"traceEvents", events}};
  }
  json events = json::array();

 private:
  int id_ = 0;
};

json attention_inputs(int places, int causal, const std::string& value) {
  json concrete = json::array();
  for (int i = 0; i < places; ++i) concrete.push_back(i == causal ? value : "");
  return concrete;
}

}  // namespace

TEST_CASE("products are read with their shapes; calls of one shape are one sample, their median") {
  Trace trace;
  for (const double us : {10.0, 30.0, 20.0})
    trace.op("aten::mm", {{128, 64}, {64, 256}}, "c10::BFloat16", {us});
  trace.op("aten::addmm", {{256}, {128, 64}, {64, 512}}, "c10::Half",
           {40.0, 2.0});  // split over k: two kernels
  trace.op("aten::bmm", {{8, 128, 64}, {8, 64, 32}}, "c10::BFloat16", {5.0});
  trace.op("aten::mm", {{128, 64}, {64, 256}}, "float", {99.0});
  trace.op("aten::mm", {{128, 64}, {65, 256}}, "c10::BFloat16", {99.0});
  trace.op("aten::mm", {{128, 64}, {64, 256}}, "c10::BFloat16", {});
  trace.op("aten::copy_", {{128}}, "c10::BFloat16", {7.0});
  SampleSet samples;
  const ForeignFile file = add_torch_trace(trace.file(), "t.json", samples);
  REQUIRE(samples.gemm.size() == 3);
  CHECK(file.gpu == "NVIDIA H100 80GB HBM3");
  double found = 0;
  for (const GemmSample& sample : samples.gemm) {
    if (sample.n == 256) {
      CHECK(sample.seconds == doctest::Approx(20e-6));
      CHECK(sample.m == 128);
      CHECK(sample.k == 64);
      CHECK(sample.labels.at("dtype") == "bf16");
      ++found;
    } else if (sample.n == 512) {
      CHECK(sample.seconds == doctest::Approx(42e-6));
      CHECK(sample.labels.at("dtype") == "fp16");
      ++found;
    } else {
      CHECK(sample.groups == 8);
      CHECK(sample.n == 32);
      ++found;
    }
  }
  CHECK(found == 3);
  CHECK(file.skipped.at("calls of aten::mm in float") == 1);
  CHECK(file.skipped.at("calls of aten::mm whose shapes are no product") == 1);
  CHECK(file.skipped.at("calls of aten::mm without a kernel of their own") == 1);
}

TEST_CASE("ops that the reader does not know are named with their share of the kernel time") {
  Trace trace;
  trace.op("_Linear", {{12288, 4096}, {8192, 4096}}, "c10::BFloat16", {1150.0});
  trace.op("FusedAttnFunc", {{8192, 1, 32, 128}}, "c10::BFloat16", {900.0});
  SampleSet none;
  const ForeignFile alone = add_torch_trace(trace.file(), "t.json", none);
  CHECK(alone.used == 0);
  CHECK(alone.unread ==
        "100.0 % of the kernel time (2,050 us) is of ops whose shapes are not read: _Linear (Transformer "
        "Engine) 1,150 us, FusedAttnFunc (Transformer Engine) 900 us");
  trace.op("aten::mm", {{128, 64}, {64, 256}}, "c10::BFloat16", {2050.0});
  SampleSet some;
  CHECK(add_torch_trace(trace.file(), "t.json", some).unread.starts_with("50.0 % of the kernel time"));
}

TEST_CASE("a kernel without an External id follows the correlation of its launch") {
  Trace trace;
  trace.op("aten::mm", {{16, 32}, {32, 64}}, "c10::BFloat16", {});
  trace.events.push_back({{"ph", "X"},
                          {"cat", "cuda_runtime"},
                          {"name", "cudaLaunchKernel"},
                          {"ts", 1},
                          {"dur", 1},
                          {"args", {{"External id", 1}, {"correlation", 77}}}});
  trace.events.push_back({{"ph", "X"},
                          {"cat", "kernel"},
                          {"name", "k"},
                          {"ts", 1},
                          {"dur", 3.5},
                          {"args", {{"correlation", 77}}}});
  SampleSet samples;
  add_torch_trace(trace.file(), "t.json", samples);
  REQUIRE(samples.gemm.size() == 1);
  CHECK(samples.gemm[0].seconds == doctest::Approx(3.5e-6));
}

TEST_CASE("dense attention by both layouts of its ops; packed and masked calls are counted") {
  Trace trace;
  const json heads_third = {{2, 4096, 32, 128}, {2, 4096, 8, 128}, {2, 4096, 8, 128}};
  trace.op("aten::_flash_attention_forward", heads_third, "c10::BFloat16", {500.0},
           attention_inputs(10, 8, "True"));
  const json heads_second = {{1, 16, 1024, 64}, {1, 16, 1024, 64}, {1, 16, 1024, 64}};
  trace.op("aten::_scaled_dot_product_cudnn_attention", heads_second, "c10::BFloat16", {80.0},
           attention_inputs(8, 6, "False"));
  json packed = heads_third;
  packed.push_back({3});  // cu_seqlens of two documents
  trace.op("aten::_flash_attention_forward", packed, "c10::BFloat16", {500.0},
           attention_inputs(10, 8, "True"));
  trace.op("flash_attn::_flash_attn_varlen_forward", {{8192, 32, 128}}, "c10::BFloat16", {500.0});
  trace.op("aten::_flash_attention_forward", heads_third, "c10::BFloat16", {500.0});
  SampleSet samples;
  const ForeignFile file = add_torch_trace(trace.file(), "t.json", samples);
  REQUIRE(samples.attention.size() == 2);
  for (const AttentionSample& sample : samples.attention) {
    const bool flash = sample.labels.at("kernel") == "flash-attention-2";
    CHECK(sample.mask.causal == flash);
    CHECK(sample.heads.kv_heads == (flash ? 8 : 16));
    CHECK(sample.packings[0].size() == (flash ? 2 : 1));
    CHECK(sample.most_keys == (flash ? 4096 : 1024));
    CHECK(sample.seconds[0] == doctest::Approx(flash ? 500e-6 : 80e-6));
  }
  CHECK(file.skipped.at("attention calls over packed documents, whose lengths a trace does not record") == 2);
  CHECK(file.skipped.at("attention calls that do not say whether they are causal (Concrete Inputs)") == 1);
}

TEST_CASE("a trace that has no kernels or no shapes is refused with what it lacks") {
  Trace trace;
  trace.op("aten::mm", {{16, 32}, {32, 64}}, "c10::BFloat16", {});
  SampleSet samples;
  CHECK_THROWS_WITH_AS(add_torch_trace(trace.file(), "t.json", samples),
                       "t.json: expected GPU kernels (profile with ProfilerActivity.CUDA), found none",
                       UserError);
  json file = trace.file();
  file["traceEvents"][0]["args"].erase("Input Dims");
  file["traceEvents"].push_back(
      {{"ph", "X"}, {"cat", "kernel"}, {"name", "k"}, {"ts", 1}, {"dur", 1}, {"args", {{"External id", 1}}}});
  CHECK_THROWS_WITH_AS(
      add_torch_trace(file, "t.json", samples),
      "t.json: expected shapes of the ops (\"Input Dims\": profile with record_shapes=True), found none",
      UserError);
  file["traceEvents"][1]["dur"] = "long";
  CHECK_THROWS_WITH_AS(add_torch_trace(file, "t.json", samples),
                       "t.json: traceEvents[1].dur: expected microseconds >= 0, found \"long\"", UserError);
}

}  // namespace equipoise

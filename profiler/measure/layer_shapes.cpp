#include "profiler/measure/layer_shapes.h"

#include <array>
#include <string>

namespace equipoise::measure {
namespace {

// From the models' published config.json files. DeepSeek-V2 stands for its routed experts (two of them are
// one token's width of 3072) and its attention output; its low-rank projections are near Qwen2.5's shapes.
constexpr std::array<LayerShape, 10> kGpu{{{"llama2-7b", 4096, 32, 32, 128, 11008, 32000},
                                           {"llama3.1-8b", 4096, 32, 8, 128, 14336, 128256},
                                           {"llama3.1-70b", 8192, 64, 8, 128, 28672, 128256},
                                           {"llama3.1-405b", 16384, 128, 8, 128, 53248, 128256},
                                           {"qwen2.5-0.5b", 896, 14, 2, 64, 4864, 151936},
                                           {"qwen2.5-7b", 3584, 28, 4, 128, 18944, 152064},
                                           {"qwen2.5-14b", 5120, 40, 8, 128, 13824, 152064},
                                           {"qwen2.5-32b", 5120, 40, 8, 128, 27648, 152064},
                                           {"qwen2.5-72b", 8192, 64, 8, 128, 29568, 152064},
                                           {"deepseek-v2", 5120, 128, 128, 128, 1536, 102400}}};

constexpr std::array<LayerShape, 5> kCpu{{{"narrow-128", 128, 4, 2, 32, 352, 1024},
                                          {"narrow-256", 256, 4, 2, 64, 704, 2048},
                                          {"narrow-512", 512, 8, 4, 64, 1408, 4096},
                                          {"narrow-768", 768, 6, 2, 128, 2048, 8192},
                                          {"qwen2.5-0.5b", 896, 14, 2, 64, 4864, 16384}}};

struct Linear {
  const char* name;
  std::int64_t outputs;
  std::int64_t inputs;
};

}  // namespace

std::span<const LayerShape> gpu_layers() {
  return kGpu;
}
std::span<const LayerShape> cpu_layers() {
  return kCpu;
}

std::vector<GemmPoint> gemms_of(const LayerShape& layer, int tensor, std::int64_t tokens) {
  std::vector<GemmPoint> points;
  if (layer.query_heads % tensor != 0 || layer.kv_heads % tensor != 0 || layer.ffn % tensor != 0 ||
      layer.vocabulary % tensor != 0) {
    return points;
  }
  const std::int64_t attention = layer.query_heads * layer.head_dim / tensor;
  const std::int64_t qkv = attention + 2 * layer.kv_heads * layer.head_dim / tensor;
  const Linear linears[] = {{"qkv", qkv, layer.hidden},
                            {"attention output", layer.hidden, attention},
                            {"gate and up", 2 * layer.ffn / tensor, layer.hidden},
                            {"down", layer.hidden, layer.ffn / tensor},
                            {"logits", layer.vocabulary / tensor, layer.hidden}};
  for (const Linear& linear : linears) {
    const std::string what = std::string(layer.model) + " tp " + std::to_string(tensor) + " " + linear.name;
    points.push_back({{tokens, linear.outputs, linear.inputs, false, true, false}, what + " forward"});
    points.push_back(
        {{tokens, linear.inputs, linear.outputs, false, false, false}, what + " input gradient"});
    points.push_back(
        {{linear.outputs, linear.inputs, tokens, true, false, false}, what + " weight gradient"});
  }
  return points;
}

}  // namespace equipoise::measure

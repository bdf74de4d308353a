// A samples file as a GPU would give it, without a GPU: the points that the profiler would measure first,
// timed by the forms of a profile, with a noise of +-2 %.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "policies/base/random.h"
#include "profiler/measure/points.h"
#include "profiler/measure/sample_file.h"
#include "profiler/profile/cost_models.h"
#include "profiler/profile/profile.h"

namespace equipoise::measure {

class FakeDevice {
 public:
  explicit FakeDevice(const Profile& profile)
      : profile_(profile), gemm_(profile, Precision::bf16), elementwise_(profile) {}

  [[nodiscard]] double seconds(const Point& point) {
    const double noise = 1 + 0.02 * (2 * static_cast<double>(random_.next() >> 11U) * 0x1p-53 - 1);
    return noise * std::visit([this](const auto& what) { return this->exact(what); }, point.what);
  }

 private:
  static double exact(const LaunchPoint&) { return 2e-6; }
  double exact(const CopyPoint& point) {
    return elementwise_.seconds(Elementwise::copy, 2 * static_cast<double>(point.bytes), use_);
  }
  double exact(const AttentionPoint& point) {
    const AttentionModel model(
        profile_, {point.shape.head_dim, point.shape.query_heads, point.shape.kv_heads}, "cudnn");
    std::vector<QueryKeys> pieces;
    for (const kernels::Piece& piece : point.pieces) pieces.push_back({piece.queries, piece.keys});
    return point.pass == kernels::Pass::forward ? model.forward_seconds(pieces, use_)
                                                : model.backward_seconds(pieces, use_);
  }
  double exact(const GemmPoint& point) {
    return gemm_.seconds(point.shape.m, point.shape.n, point.shape.k, use_);
  }
  double exact(const RowPoint& point) {
    // An op that the profile need not know takes as long as a copy of its bytes.
    const Elementwise kind = kernels::kRowOps[point.op].kind;
    const bool known = kernels::kElementwise[static_cast<std::size_t>(kind)].in_every_profile;
    return elementwise_.seconds(known ? kind : Elementwise::copy,
                                row_op_bytes(point, kernels::ElementType::bf16), use_);
  }
  static double exact(const CollectivePoint&) { return 0; }

  const Profile& profile_;
  GemmModel gemm_;
  ElementwiseModel elementwise_;
  RangeUse use_;
  SplitMix64 random_{5};
};

// The first `attention` and `others` points of each family.
inline nlohmann::json fake_samples(const Profile& profile, std::size_t attention, std::size_t others) {
  ListOptions options;
  options.scale = scale_of("cuda");
  options.type = kernels::ElementType::bf16;
  options.lengths = {700, 90, 12000, 350, 4100, 33, 25000, 1800};
  const SampleContext context{"cudnn", "bf16", kernels::ElementType::bf16, 1};
  FakeDevice device(profile);
  nlohmann::json lists = {{"attention", nlohmann::json::array()},
                          {"gemm", nlohmann::json::array()},
                          {"elementwise", nlohmann::json::array()},
                          {"collective", nlohmann::json::array()}};
  const auto add = [&](const std::vector<Point>& points, std::size_t most) {
    for (std::size_t i = 0; i < std::min(most, points.size()); ++i) {
      Measurement measured;
      measured.seconds = measured.wall_seconds = device.seconds(points[i]);
      const nlohmann::json line = sample_line(points[i], measured, context, key_of(points[i]));
      const auto family = line.at("family").get<std::string>();
      lists[family == "copy" ? "elementwise" : family].push_back(line.at("sample"));
    }
  };
  add(attention_points(options), attention);
  add(gemm_points(options), others);
  add(row_points(options), others);
  add(copy_points(options), others);
  return {
      {"schema", "equipoise.samples/1"},
      {"device",
       {{"name", "a GPU that was made up"}, {"memory_GBps", 4100.0}, {"launch_seconds", 2e-6}, {"sms", 132}}},
      {"software", {{"cuDNN", "0.0.0"}}},
      {"checks", {{"summary", {{"gemm c", {{"worst_error", 1e-3}, {"limit", 4e-3}, {"shape", "-"}}}}}}},
      {"samples", std::move(lists)}};
}

}  // namespace equipoise::measure

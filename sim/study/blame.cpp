#include "sim/study/blame.h"

#include <algorithm>

#include "policies/base/index.h"
#include "policies/base/number_text.h"

namespace equipoise {
namespace {

constexpr double kWorthNaming = 0.001;
constexpr std::size_t kNamed = 3;

}  // namespace

std::vector<Loss> losses_of(const Metrics& m, int stages) {
  std::vector<Loss> losses;
  const auto add = [&losses](const Metric& share, const char* name) {
    if (share && *share > kWorthNaming) losses.push_back({*share, name});
  };
  const auto exposed = [&m](Stream axis) { return m.exposed_comm_ratio[at(axis)]; };
  add(m.losses.waiting, stages > 1 ? "waiting for other stages" : "waiting for others");
  add(m.losses.lanes_wait, "waiting for the slowest replica");
  add(exposed(Stream::tp), "TP communication");
  add(exposed(Stream::cp), "CP communication");
  add(exposed(Stream::ep), "EP communication");
  add(exposed(Stream::pp), "transfers between stages");
  add(exposed(Stream::dp), "gradient and parameter exchange");
  add(m.losses.recompute, "recompute");
  std::stable_sort(losses.begin(), losses.end(),
                   [](const Loss& a, const Loss& b) { return a.share > b.share; });
  return losses;
}

std::string blame_text(const Metrics& metrics, int stages) {
  const std::vector<Loss> losses = losses_of(metrics, stages);
  std::string text;
  for (std::size_t i = 0; i < std::min(kNamed, losses.size()); ++i)
    text += (i == 0 ? "" : ", ") + std::string(losses[i].name) + " " + fixed(100 * losses[i].share, 1) + " %";
  return text.empty() ? "computation" : text + " of a step";
}

}  // namespace equipoise

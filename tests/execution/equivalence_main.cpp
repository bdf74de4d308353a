// Development driver.
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "tests/execution/equivalence_case.h"

int main(int argc, char** argv) {
  using nlohmann::json;
  const json parallel = json::parse(argc > 1 ? argv[1] : "{}");
  const json policy = json::parse(argc > 2 ? argv[2] : R"({"name":"plain"})");
  const json more = json::parse(argc > 3 ? argv[3] : "{}");
  json study = equipoise::testing::tiny_study(parallel, policy);
  study.merge_patch(more);
  const auto result = equipoise::testing::run_equivalence(study, 0, {});
  if (!result.refused.empty()) {
    std::cout << "refused: " << result.refused << "\n";
    return 2;
  }
  const auto& e = result.equivalence;
  std::printf("%d ranks, %ld tokens: loss %.7f, reference %.7f (%.1e); worst %.2e %s: %s\n", result.ranks,
              static_cast<long>(e.tokens), e.loss, e.reference_loss, e.loss_error, e.worst_error,
              e.worst_tensor.c_str(), e.holds() ? "equal" : "DIFFERENT");
  return e.holds() ? 0 : 1;
}

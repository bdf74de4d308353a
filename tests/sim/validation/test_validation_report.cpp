#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/validation/figures.h"
#include "tests/sim/validation/hand_pairs.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

Validation with_ops() {
  Validation v = two_policies();
  v.ops = {op("gemm", 0, 2, {1}), op("attention", 1, 9, {9})};
  v.notes = {"3 runs dropped"};
  return v;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Tags that are opened and not closed in their order; empty: well formed, as far as tags go.
std::string unclosed(const std::string& svg) {
  std::vector<std::string> open;
  for (std::size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const std::size_t end = svg.find('>', at);
    if (end == std::string::npos) return "<";
    const std::string tag = svg.substr(at + 1, end - at - 1);
    const std::string name =
        tag.substr(tag[0] == '/' ? 1 : 0, tag.find_first_of(" /", 1) - (tag[0] == '/' ? 1 : 0));
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return tag;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : open.back();
}

}  // namespace

TEST_CASE("JSON has the keys of equipoise.validation/1") {
  const Validation v = with_ops();
  const json out = json::parse(validation_json(v, figures_of(v)).dump());
  CHECK(out["schema"] == "equipoise.validation/1");
  CHECK(out["passed"] == false);
  const json& b = out["policies"][1];
  CHECK(b["label"] == "b");
  CHECK(b["predicted_seconds"] == 0.9);
  CHECK(b["measured_seconds"] == 1.0);
  CHECK(b["error"].get<double>() == doctest::Approx(-0.1));
  CHECK(b["noise_seconds"].is_null());
  CHECK(out["policies"][0]["dropped_runs"] == 1);
  CHECK(out["policies"][0]["steps"].size() == 2);
  const json& gemm = out["ops"][1];
  CHECK(gemm["op"] == "gemm");
  CHECK(gemm["count"] == 1);
  CHECK(gemm["mean_abs_error"] == 1.0);
  CHECK(gemm["mean_error"] == 1.0);
  CHECK(gemm["worst"] == 1.0);
  CHECK(gemm["worst_at"]["rank"] == 2);
  // Per step, b (1 s) is faster than a (1.5 s), simulated and measured.
  CHECK(out["ranking"]["predicted"] == json{"b", "a"});
  CHECK(out["ranking"]["measured"] == json{"b", "a"});
  CHECK(out["ranking"]["same"] == true);
  CHECK(out["limits"]["step"] == 0.05);
  CHECK(out["limits"]["op"] == 0.08);
  CHECK(out["micro_batches"]["count"] == 2);
  CHECK(out["broken"].size() == 2);
  CHECK(out["notes"] == json{"3 runs dropped"});
}

TEST_CASE("Numbers that are none become null") {
  Validation v = two_policies();
  v.policies[0].steps[0].predicted_seconds = std::nan("");
  const json out = json::parse(validation_json(v, figures_of(v)).dump());
  CHECK(out["policies"][0]["error"].is_null());
  CHECK(out["passed"] == false);
}

TEST_CASE("The text names what broke, and what passed") {
  Validation v = with_ops();
  const std::string text = validation_text(v, figures_of(v));
  CHECK(text.find("BROKEN: step of b: -10.0 %, beyond 5.0 %\n") != std::string::npos);
  CHECK(text.find("BROKEN: op gemm: +100.0 %, beyond 8.0 %\n") != std::string::npos);
  CHECK(text.find("1 of 4") != std::string::npos);  // dropped
  CHECK(text.find("a, step 0, lane 0, stage 1, micro-batch 0, rank 2") != std::string::npos);
  CHECK(text.find("Note: 3 runs dropped\n") != std::string::npos);
  CHECK(text.substr(text.size() - 8) == "\nfailed\n");
  v.other_load = 3.14;  // nobody's fault but the machine's
  const std::string busy = validation_text(v, figures_of(v));
  CHECK(busy.find("BROKEN: step of b") != std::string::npos);
  CHECK(busy.ends_with("\nnot judged: measured beside other work (3.1 CPUs were busy when the run began); run it again "
                       "on a quiet machine\n"));
  CHECK(validation_json(v, figures_of(v))["judged"] == false);
  v.limits = {0.2, 2};
  const std::string good = validation_text(v, figures_of(v));
  CHECK(good.find("BROKEN") == std::string::npos);
  CHECK(good.substr(good.size() - 8) == "\npassed\n");
}

TEST_CASE("The plot is one image by itself, for light and dark, and escapes what users named") {
  Validation v = with_ops();
  v.policies[0].label = "<script>alert(1)</script> & \"more\"";
  v.policies[1].label = "a label that is much too long to stand beside its row";
  v.policies[0].steps[0].measured_seconds = {0.9, 1.0, 1.1};
  v.study = "\x1b[31mred";
  const std::string svg = validation_plot(v, figures_of(v));
  CHECK(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  CHECK(unclosed(svg) == "");
  CHECK(svg.find("prefers-color-scheme:dark") != std::string::npos);
  CHECK(svg.find("<script") == std::string::npos);
  CHECK(svg.find("&lt;script&gt;") != std::string::npos);
  CHECK(svg.find('\x1b') == std::string::npos);
  for (const char* outside : {"href", "url(", "@import", "src="})
    CHECK(svg.find(outside) == std::string::npos);
  CHECK(svg.find("nan") == std::string::npos);
  CHECK(svg.find("inf") == std::string::npos);
  CHECK(count(svg, "<circle") == 2 + 1);  // a point a policy, and the legend's
  CHECK(count(svg, "class=\"predicted\"") == 2 + 1);
  CHECK(svg.find("a label that is much to\u2026<title>") != std::string::npos);
  CHECK(svg.find(">-10.0 %<") != std::string::npos);
  CHECK(svg.find(">+100.0 %<") != std::string::npos);
}

TEST_CASE("A plot of nothing, of one op, of very small and very large times") {
  Validation v;
  CHECK(unclosed(validation_plot(v, figures_of(v))) == "");
  for (const double scale : {1e-9, 1e-4, 1.0, 1e6}) {
    Validation scaled = with_ops();
    for (PolicyPairs& p : scaled.policies)
      for (StepPair& s : p.steps) {
        s.predicted_seconds *= scale;
        for (double& m : s.measured_seconds) m *= scale;
      }
    const std::string svg = validation_plot(scaled, figures_of(scaled));
    CHECK(unclosed(svg) == "");
    CHECK(count(svg, "<line") < 60);
    CHECK(count(svg, "<line") > 8);
  }
}

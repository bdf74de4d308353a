// A paper's figures next to ours.
#include <nlohmann/json.hpp>

#include "policies/base/text.h"
#include "sim/report/study_table.h"
#include "sim/report/summary_json.h"
#include "sim/study/run_study.h"
#include "tests/sim/study/study_case.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

PublishedRow row(const char* metric, double simulated, double published) {
  PublishedRow r;
  r.label = "wlb";
  r.metric = metric;
  r.simulated = simulated;
  r.published = published;
  r.source = "a paper, Table 1";
  return r;
}

}  // namespace

TEST_CASE("The difference is of the published figure, and there is none from 0 or from nothing") {
  CHECK(*row("abr", 1.5, 1.2).difference_percent() == doctest::Approx(25));  // 1.5 / 1.2 = 1.25
  CHECK(*row("abr", 0.9, 1.2).difference_percent() == doctest::Approx(-25));
  CHECK(!row("cr", 0.1, 0).difference_percent());
  PublishedRow missing = row("mfu", 0, 0.4);
  missing.simulated.reset();
  CHECK(!missing.difference_percent());
}

TEST_CASE("The second table shows ratios as they are, memory in GiB and whether a run fits") {
  std::vector<PublishedRow> rows = {row("imbalance_degree", 1.5, 1.2),
                                    row("peak_memory_bytes", 45 * kGiB, 40 * kGiB),
                                    row("bucket_size", 31612, 26624)};
  rows.push_back(row("speedup", 1.2, 1.5));
  rows.back().against = "plain";
  PublishedRow status = row("status", 0, 0);
  status.simulated_status = "oom";
  rows.push_back(status);
  CHECK(published_table(rows) ==
        "Next to the published figures\n"
        "policy  metric              ours (simulated)  published  difference %  source\n"
        "wlb     imbalance_degree               1.500      1.200         +25.0  a paper, Table 1\n"
        "wlb     peak memory GiB                 45.0       40.0         +12.5  a paper, Table 1\n"
        "wlb     bucket_size                   31,612     26,624         +18.7  a paper, Table 1\n"
        "wlb     speedup over plain             1.200      1.500         -20.0  a paper, Table 1\n"
        "wlb     status                           oom         ok             -  a paper, Table 1\n");
  CHECK(published_table({}).empty());
}

TEST_CASE(
    "A study carries its published figures into the table and the summary, speed-ups over the row named") {
  json file = small_study();
  file["policies"][1]["label"] = "greedy";
  file["policies"][2] = {{"name", "wlb-llm"},
                         {"published",
                          {{{"source", "first"}, {"metrics", {{"imbalance_degree", 1.25}, {"speedup", 1.5}}}},
                           {{"source", "second"},
                            {"against", "fixed-greedy"},
                            {"status", "oom"},
                            {"metrics", {{"speedup", 2}}}}}}};
  const Study study = parse(file);
  const StudyResult result = run_study(study, {});
  const json summary = summary_json(study, result);
  CHECK(!summary["policies"][0].contains("published"));
  const json& rows = summary["policies"][2]["published"];
  REQUIRE(rows.size() == 4);
  const Metrics& own = result.policies[2].metrics;
  CHECK(rows[0]["metric"] == "imbalance_degree");
  CHECK(rows[0]["simulated"] == *own.imbalance_degree);
  CHECK(rows[0]["published"] == 1.25);
  CHECK(rows[0]["difference_percent"].get<double>() ==
        doctest::Approx(100 * (*own.imbalance_degree / 1.25 - 1)));
  CHECK(rows[1]["against"] == "plain-4d");  // the study's baseline
  CHECK(rows[1]["simulated"] == *own.speedup);
  CHECK(rows[2]["metric"] == "status");
  CHECK(rows[2]["simulated"] == "ok");
  CHECK(rows[2]["published"] == "oom");
  // Every row runs the same tokens, so a speed-up is the ratio of total seconds.
  CHECK(rows[3]["against"] == "greedy");
  CHECK(rows[3]["simulated"].get<double>() ==
        doctest::Approx(result.policies[1].metrics.seconds / own.seconds));
  CHECK(rows[3]["source"] == "second");
  const std::string table = study_table(study, result);
  CHECK(table.find("Next to the published figures\n") != std::string::npos);
  CHECK(table.find("speedup over greedy") != std::string::npos);
  CHECK(study_table(parse(small_study()), run_study(parse(small_study()), {})).find("Next to") ==
        std::string::npos);
}

TEST_CASE("A run that does not fit has no figure next to the published one") {
  json file = small_study();
  file["model"] = "llama3.1-70b";
  file["policies"] = {
      {{"name", "plain"},
       {"published",
        {{"source", "a paper"}, {"status", "oom"}, {"metrics", {{"speedup", 1}, {"mfu", 0.4}}}}}}};
  file.erase("baseline");
  const std::vector<PublishedRow> rows = next_to_published(run_study(parse(file), {}));
  REQUIRE(rows.size() == 3);
  CHECK(std::string(rows[0].simulated_status) == "oom");
  CHECK(!rows[0].published_fits);
  for (const std::size_t i : {1U, 2U}) {
    CHECK(!rows[i].simulated);
    CHECK(!rows[i].difference_percent());
  }
}

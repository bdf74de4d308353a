// Rates of the hardware are the profile's or the study's, and refused where neither states them.
#include <algorithm>

#include "sim/study/models.h"
#include "sim/study/run_study.h"
#include "tests/scratch_folder.h"
#include "tests/sim/study/study_case.h"
#include "traces/json_text.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

json h100() {
  return read_json_file(std::string(EQUIPOISE_SOURCE_DIR) + "/profiler/profiles/h100-sxm.json");
}

// A study of `gpus` replicas on a changed profile.
struct Case {
  explicit Case(const json& profile, int gpus = 1) {
    file = small_study();
    file["cluster"] = {{"profile", folder.write("mine.json", profile.dump())}};
    file["parallel"] = {{"data", gpus}};
    file["batch"] = {{"context_window", "8K"}, {"sequences_per_step", gpus}, {"steps", 2}};
  }
  [[nodiscard]] double seconds() const { return run_study(parse(file), {}).policies.front().metrics.seconds; }
  [[nodiscard]] std::string refused(bool contention = false) const {
    RunStudyOptions options;
    options.steps.fidelity = Fidelity::op;
    options.steps.op.contention = contention;
    try {
      (void)run_study(parse(file), options);
    } catch (const UserError& e) {
      std::string message = e.what();
      CHECK(message.find('\n') == std::string::npos);
      for (std::size_t at; (at = message.find(path())) != std::string::npos;)
        message.replace(at, path().size(), "mine.json");
      return message;
    }
    return "";
  }
  [[nodiscard]] std::string path() const { return file["cluster"]["profile"].get<std::string>(); }

  test::Scratch folder;
  json file;
};

}  // namespace

TEST_CASE("One GPU needs no collectives; two are refused without them, before anything runs") {
  json profile = h100();
  const double with_them = Case(profile).seconds();
  profile["tables"].erase("collective");
  CHECK(with_them > 0);
  CHECK(Case(profile).seconds() == with_them);
  CHECK(Case(profile, 2).refused() ==
        "study.json: parallel: expected one GPU with profile h100-sxm, which has no collectives (mine.json: "
        "tables.collective), found 2");
}

TEST_CASE("How many GPUs a node has is the profile's word, and the study's where it has one") {
  json profile = h100();
  profile["device"]["gpus_per_node"] = 2;
  Case of_profile(profile, 4);
  const double two = of_profile.seconds();
  of_profile.file["cluster"]["gpus_per_node"] = 8;
  const double eight = of_profile.seconds();
  CHECK(two > eight);  // gradients cross nodes
  CHECK(Case(h100(), 4).seconds() == eight);
  of_profile.file["cluster"]["gpus_per_node"] = 2;
  CHECK(of_profile.seconds() == two);
}

TEST_CASE("A profile without a network, or without a NIC's rate, prices the GPUs of one node only") {
  json profile = h100();
  profile["device"]["gpus_per_node"] = 2;
  profile["device"]["nic_GBps"] = 0;
  Case no_nic(profile, 4);
  CHECK(no_nic.refused() ==
        "study.json: cluster.network.nic_GBps: expected a rate, since 4 GPUs lie over nodes of 2 and profile "
        "h100-sxm states none (device.nic_GBps), found nothing");
  CHECK(Case(profile, 2).refused() == "");
  no_nic.file["cluster"]["network"] = {{"nic_GBps", 25}};
  const double slow = no_nic.seconds();
  no_nic.file["cluster"]["network"] = {{"nic_GBps", 50}};
  CHECK(no_nic.seconds() < slow);
  CHECK(no_nic.refused(true) == "");
  profile["tables"]["collective"].erase("networks");
  CHECK(Case(profile, 4).refused() ==
        "study.json: parallel: expected at most 2 GPUs, a node's (cluster.gpus_per_node), with profile "
        "h100-sxm, "
        "which has no network between nodes (mine.json: tables.collective.networks), found 4");
}

TEST_CASE("A group-cast once a node needs as many ranks of a CP group in every node") {
  Case six(h100(), 6);
  six.file["parallel"] = {{"context", 6}, {"context_comm", "group-cast"}, {"cast_once_per_node", true}};
  six.file["batch"]["sequences_per_step"] = 1;
  CHECK(six.refused() == "");
  six.file["cluster"]["gpus_per_node"] = 4;  // four and two
  CHECK(six.refused() ==
        "study.json: parallel.cast_once_per_node: expected false, or as many CP ranks in each node, found 6 "
        "that lie "
        "unevenly over nodes of 4 GPUs (parallel.context, cluster.gpus_per_node)");
  six.file["cluster"]["gpus_per_node"] = 3;
  CHECK(six.refused() == "");
  const double once = six.seconds();
  six.file["parallel"]["cast_once_per_node"] = false;
  CHECK(once < six.seconds());
  six.file["cluster"]["gpus_per_node"] = 4;
  CHECK(six.refused() == "");
  six.file["parallel"] = {{"context", 6}, {"cast_once_per_node", true}};  // another form
  CHECK(six.refused() == "");
}

TEST_CASE("A study between nodes says that it borrows a network, once, and how far borrowed ones were off") {
  json profile = h100();
  profile["device"]["gpus_per_node"] = 2;
  const auto note = [](const json& on, int gpus) {
    return run_study(parse(Case(on, gpus).file), {}).network_note;
  };
  REQUIRE(note(profile, 4).has_value());
  CHECK(note(profile, 4)->text("network") == "rail-400");
  CHECK_FALSE(note(profile, 2).has_value());  // within a node
  json& network = profile["tables"]["collective"]["networks"]["rail-400"];
  network["unseen_fabrics"] = {{"median", {0.1, 0.5}}};
  CHECK(note(profile, 4)->text("errors").starts_with("10 to 50 % at the median"));
  network.erase("unseen_fabrics");
  CHECK(note(profile, 4)->kind == "network_unknown");
  for (const char* kind : {"measured", "calibrated"}) {
    network["provenance"]["kind"] = kind;
    CHECK_FALSE(note(profile, 4).has_value());
  }
}

TEST_CASE("Contention needs the rate of the links inside a node") {
  json profile = h100();
  profile["device"]["nvlink_GBps"] = 0;
  CHECK(Case(profile, 2).refused() == "");
  CHECK(Case(profile, 2).refused(true) ==
        "study.json: mine.json: device.nvlink_GBps: expected a rate > 0 for --contention between the GPUs of "
        "a node, "
        "found 0");
  CHECK(Case(profile).refused(true) == "");
  CHECK(Case(h100(), 2).refused(true) == "");
}

TEST_CASE("DeepEP is refused with a profile that has no times of it, and only where experts are exchanged") {
  json profile = h100();
  profile["tables"]["collective"]["exchange"].erase("deepep");
  Case experts(profile, 2);
  experts.file["model"] = "deepseek-v2";
  experts.file["parallel"]["expert"] = 2;
  experts.file["framework"] = {{"expert_dispatcher", "deepep"}};
  CHECK(experts.refused() ==
        "study.json: framework.expert_dispatcher: expected alltoall with profile h100-sxm, which has no "
        "times of "
        "DeepEP (mine.json: tables.collective.exchange.deepep), found deepep");
  experts.file["parallel"]["expert"] = 1;
  CHECK(experts.refused() == "");
  experts.file["parallel"]["expert"] = 2;
  experts.file["framework"] = {{"expert_dispatcher", "alltoall"}};
  CHECK(experts.refused() == "");
}

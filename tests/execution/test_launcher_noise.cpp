#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "sim/execution/launcher_noise.h"

namespace {

using equipoise::execution::LauncherNoise;

const std::string kEdge(74, '-');

std::vector<std::string> kept(LauncherNoise& noise, const std::vector<std::string>& lines) {
  std::vector<std::string> out;
  for (const std::string& line : lines)
    if (noise.keeps(line)) out.push_back(line);
  return out;
}

}  // namespace

TEST_CASE("of mpirun's stderr a user sees what ranks say, and neither banners nor mpirun's own log") {
  LauncherNoise noise;
  const std::vector<std::string> lines = {
      "a rank speaks",
      kEdge,
      "mpirun noticed that process rank 12 with PID 0 on node vm exited on signal 11 (Segmentation fault).",
      kEdge,
      "[vm:19287] [[10153,0],0] ORTE_ERROR_LOG: Data unpack would read past end of buffer in file x at line "
      "5",
      "[vm:1] 3 more processes have sent help message help-mpi-api.txt / mpi-abort",
      "mpirun.openmpi: Forwarding signal 18 to job",
      "[vm:19479] Signal: Segmentation fault (11)",
      "--- a table of a rank ---",
      "",
      "ORTE_ERROR_LOG is what a rank may say"};
  CHECK(kept(noise, lines) ==
        std::vector<std::string>{"a rank speaks", "[vm:19479] Signal: Segmentation fault (11)",
                                 "--- a table of a rank ---", "", "ORTE_ERROR_LOG is what a rank may say"});
  REQUIRE(noise.killed());
  CHECK(noise.killed()->rank == 12);
  CHECK(noise.killed()->signal == 11);
  CHECK_FALSE(noise.rank_status());
}

TEST_CASE("the first rank that a signal ended has the word, those that mpirun ended after it have not") {
  LauncherNoise noise;
  kept(noise,
       {kEdge, "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).", kEdge,
        "between", kEdge,
        "mpirun noticed that process rank 0 with PID 0 on node vm exited on signal 15 (Terminated).", kEdge});
  REQUIRE(noise.killed());
  CHECK(noise.killed()->rank == 1);
  CHECK(noise.killed()->signal == 9);
}

TEST_CASE("a rank's own exit status is told from mpirun's failures, whose words are kept for the user") {
  LauncherNoise ended;
  kept(ended, {kEdge, "mpirun detected that one or more processes exited with non-zero status, thus causing",
               "the job to be terminated. The first process to do so was:", kEdge});
  CHECK(ended.rank_status());

  LauncherNoise failed;
  kept(failed, {kEdge, "There are not enough slots available in the system", kEdge});
  CHECK_FALSE(failed.rank_status());
  CHECK_FALSE(failed.killed());
  CHECK(failed.banners() == "There are not enough slots available in the system\n");
}

TEST_CASE("a signal has its name, and the one that the kernel sends when memory is short its suspicion") {
  CHECK(equipoise::execution::text_of_signal(9) == "signal 9 (Killed): out of memory?");
  CHECK(equipoise::execution::text_of_signal(11) == "signal 11 (Segmentation fault)");
}

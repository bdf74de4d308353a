// The sentences of notes, each asserted once, and the table that has them.
#include <doctest/doctest.h>

#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "policies/base/files.h"
#include "sim/report/words/note_json.h"
#include "sim/report/words/words.h"

namespace equipoise {
namespace {

std::set<std::string> words_of(std::string_view text) {
  std::istringstream in{std::string(text)};
  return {std::istream_iterator<std::string>(in), {}};
}

// The sources of the product, one after the other.
std::string code() {
  std::string text;
  for (const char* room : {"policies", "profiler", "sim"})
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(std::filesystem::path(EQUIPOISE_SOURCE_DIR) / room)) {
      const std::string path = entry.path().string();
      if ((path.ends_with(".cpp") || path.ends_with(".h")) &&
          path.find("/sim/report/words/") == std::string::npos)
        text += read_text_file(path);
    }
  return text;
}

}  // namespace

TEST_CASE("Every kind has a name of its own, a cause in the code, and numbers for its sentence") {
  std::set<std::string_view> ids;
  const std::string made = code();
  for (const Kind& kind : kinds()) {
    CAPTURE(kind.id);
    CHECK(ids.insert(kind.id).second);
    CHECK_FALSE(kind.when.empty());
    CHECK(made.find('"' + std::string(kind.id) + '"') != std::string::npos);
    const std::set<std::string> numbers = words_of(kind.numbers);
    std::set<std::string> used;
    for (const std::string_view sentence : {kind.sentence, kind.advice})
      for (const Placeholder& place : placeholders_of(sentence))
        if (place.name != "about") {
          CHECK(numbers.contains(std::string(place.name)));
          used.emplace(place.name);
        }
    CHECK(used == numbers);
  }
}

TEST_CASE("Every kind that the code makes has a row") {
  const std::regex note(
      R"re(\{\s*"([a-z0-9_]+)",\s*("[^"]*"|[a-z_.>-]+),\s*\{[{}])re");  // {kind, about, {numbers}}
  const std::string made = code();
  std::size_t found = 0;
  for (std::sregex_iterator at(made.begin(), made.end(), note), end; at != end; ++at, ++found)
    CHECK_MESSAGE(kind_of((*at)[1].str()) != nullptr, (*at)[1].str());
  CHECK(found > 50);
}

TEST_CASE("A sentence has its numbers in the forms that its row names, and what it is about before it") {
  const Note note{
      "idle_gpus",
      "wlb",
      {{"steps", 3}, {"full", 4}, {"micro_batches", 1.5}, {"lanes", 2.0}, {"idle", 8}, {"gpus", 1024}}};
  CHECK(text_of(note) ==
        "wlb: 3 of 4 full steps have fewer micro-batches than lanes, 1.5 on 2: 8 of 1,024 GPUs have nothing "
        "to do; "
        "more or shorter micro-batches (sequences_per_step, documents_per_step, micro_batch_size, "
        "pack_length), or a "
        "smaller parallel.data");
  CHECK(text_of({"solver_largest",
                 "wlb",
                 {{"step", 0},
                  {"incumbent", 64.0},
                  {"bound", 60.0},
                  {"gap", 0.0625},
                  {"seconds", 0.5},
                  {"proven", Notes{{"optimal", "", {}}}}}}) ==
        "wlb, step 0, largest: incumbent 64, bound 60, gap 6.25 %, optimal, 0.500 s");
  CHECK(text_of({"recompute_auto", "", {{"layers", 1}, {"of", 1}}}) == "recompute auto is 1 of 1 layer");
  CHECK(text_of(no_effect("--keep", "with a group of dependent chunks")) ==
        "--keep has no effect: it acts only with a group of dependent chunks");
}

TEST_CASE("Why a row does not run and what would make it are one line") {
  const Note needs{"needs_memory",
                   "",
                   {{"stage", 1},
                    {"lane", 0},
                    {"rank", 2},
                    {"step", 3},
                    {"micro_batch", 4},
                    {"GiB", 80.04},
                    {"capacity_GiB", 74.5}}};
  const Note fits{"fits_with",
                  "",
                  {{"changes", Notes{change_note("parallel.zero", 2), change_note("parallel.context", 4)}},
                   {"cost", Notes{{"times_enough_memory", "", {{"ratio", 1.084}}}}}}};
  CHECK(reason_text({needs, fits}) ==
        "stage 1 of lane 0, CP rank 2 in step 3, micro-batch 4 needs 80.0 GiB of 74.5; fits with "
        "parallel.zero 2 and parallel.context 4, 1.08x the time that enough memory would take");
  CHECK(reason_text({}).empty());
}

TEST_CASE("How much slower kernels run in training is a sentence with its error") {
  const Note error{"error_on_gpu", "", {{"error", 0.21}, {"mean", 0.2}, {"steps", 4}, {"gpu", "B200"}}};
  const Notes known{{"carried_over", "", {{"families", "H100"}, {"error", Notes{error}}}}};
  CHECK(text_of({"kernels_slowed",
                 "",
                 {{"gemm", 1.5},
                  {"load", Notes{{"of_full_load", "", {}}}},
                  {"attention", 1.25},
                  {"elementwise", 2.5},
                  {"known", known}}}) ==
        "GEMM x1.50 of full load, attention x1.25, elementwise x2.50, carried over from H100, 21.0 % off "
        "(mean +20.0 %) on 4 published steps of B200");
}

TEST_CASE("A kind without a row and a number that is missing are faults") {
  CHECK_THROWS_AS(text_of({"no_such_kind", "", {}}), std::logic_error);
  CHECK_THROWS_AS(text_of({"recompute_auto", "", {{"layers", 1}}}), std::logic_error);
}

TEST_CASE("A note is read back from JSON as it was, and a text of an earlier version keeps its words") {
  const Note note{
      "groups",
      "hbp",
      {{"groups", Notes{{"group", "", {{"length", 8192}, {"context", 1}}},
                        {"group_checkpointed", "", {{"length", 131072}, {"context", 8}, {"layers", 4}}}}}}};
  const nlohmann::json saved = note;
  CHECK(saved["text"] == "hbp: groups (length:degree): 8192:1 131072:8 with 4 layers checkpointed");
  CHECK(note_of(saved) == note);
  CHECK(text_of(note_of("as it was said")) == "as it was said");
  nlohmann::json later = saved;
  later["kind"] = "of_a_later_version";
  CHECK(text_of(note_of(later)) == saved["text"]);
  CHECK_THROWS_AS(note_of(7), nlohmann::json::exception);
}

}  // namespace equipoise

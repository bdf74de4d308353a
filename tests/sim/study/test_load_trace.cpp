// How many documents a study draws: enough for its steps, whatever the loader throws away.
#include "policies/loader.h"
#include "sim/study/study_inputs.h"
#include "tests/sim/study/study_case.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

DocumentSet documents_of(const json& file) {
  const Study study = parse(file);
  LoadOptions load;
  load.steps = study.steps;
  load.tail = study.loader;
  return load_documents(load_trace(study).lengths, study.batch, load);
}

}  // namespace

TEST_CASE("a drawn trace has enough documents for the study's steps with either loader") {
  for (const char* loader : {"carry", "drop"}) {
    CAPTURE(loader);
    json file = small_study();
    file["batch"] = {{"context_window", "8K"}, {"sequences_per_step", 8}, {"steps", 200}, {"loader", loader}};
    const std::int64_t tokens = 8192LL * 8 * 200;
    for (const json& trace : {json{{"distribution", "wlb-128k"}}, json{{"distribution", "chatqa2-long-sft"}},
                              json{{"uniform", 5000}}, json{{"uniform", 8192}}, json{{"uniform", 20000}},
                              json{{"mixture",
                                    {{{"distribution", "wlb-128k"}, {"weight", 1}},
                                     {{"distribution", "lmsys-chat-1m"}, {"weight", 3}}}}}}) {
      CAPTURE(trace.dump());
      file["trace"] = trace;
      const DocumentSet set = documents_of(file);
      CHECK(set.batches.size() == 200);
      CHECK(set.tokens == tokens);
      CHECK((set.dropped_tokens > 0) == (*loader == 'd' && trace.value("uniform", 0) != 8192));
    }
  }
}

TEST_CASE("uniform documents under drop: each window takes as many as reach its end") {
  // Windows of 8 tokens, documents of 5: two a window, the second cut. 3 steps of 2 windows: 12 documents,
  // and 2 tokens of every window's second document are thrown away.
  json file = small_study();
  file["batch"] = {{"context_window", 8}, {"sequences_per_step", 2}, {"steps", 3}, {"loader", "drop"}};
  file["trace"] = {{"uniform", 5}};
  CHECK(load_trace(parse(file)).lengths.size() == 12);
  CHECK(documents_of(file).dropped_tokens == 12);
}

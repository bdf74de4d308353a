// The profiler's journal, and its samples as `fit` takes them.
#include <nlohmann/json.hpp>

#include "profiler/fit/sample_lists.h"
#include "profiler/measure/sample_file.h"
#include "tests/fuzz/law.h"
#include "tests/scratch_folder.h"

using namespace equipoise;

namespace {

const std::string kJournal =
    R"({"device":"cpu","family":"elementwise","key":"a #1","point":"a","sample":{"op":"rms_norm","pass":"forward",)"
    R"("rows":128,"bytes":1e6,"seconds":1e-5,"pace_gflops":40.5,"disturbed":true}})"
    "\n"
    R"({"device":"cpu","family":"elementwise","key":"a #2","point":"a","sample":{"op":"rms_norm","pass":"forward",)"
    R"("rows":128,"bytes":1e6,"seconds":2e-5,"pace_gflops":41.5}})"
    "\n"
    R"({"device":"cpu","family":"gemm","key":"b","point":"b","sample":{"m":128,"n":512,"k":64,"dtype":"fp32","seconds":1e-5}})"
    "\n"
    R"({"device":"cpu","family":"attention","key":"c","point":"c","sample":{"pass":"forward","kernel":"cpu-blocked",)"
    R"("dtype":"fp32","head_dim":64,"query_heads":4,"kv_heads":4,"pieces":[[128,128],[64,256]],"seconds":1e-3}})"
    "\n"
    R"({"device":"cpu","family":"collective","key":"d #1","point":"d","sample":{"kind":"all_gather","bytes":4096,)"
    R"("ranks":2,"ranks_per_node":2,"network":"","nic_GBps":0,"seconds":1e-6,"reach_seconds":5e-7}})"
    "\n"
    R"({"device":"cpu","family":"collective","key":"d #2","point":"d","sample":{"kind":"all_gather","bytes":4096,)"
    R"("ranks":2,"ranks_per_node":2,"network":"","nic_GBps":0,"seconds":1e-6,"reach_seconds":2e-7,"disturbed":true}})"
    "\n";

}  // namespace

TEST_CASE("Journals of the profiler are read or refused, and their samples") {
  const test::Scratch folder;
  test::check_reader("journal", {kJournal}, [&](const std::string& text) {
    const nlohmann::json samples = measure::samples_of_journal(folder.write("samples.journal", text));
    SampleSet set;
    add_json({{"samples", samples}}, "samples.json", set);
  });
}

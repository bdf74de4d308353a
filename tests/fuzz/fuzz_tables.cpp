// Tables: kernel rows (`predict`, `fit`), document histograms, measured steps.
#include "policies/base/csv.h"
#include "profiler/fit/predict.h"
#include "profiler/fit/sample_tables.h"
#include "sim/calibration/step_rows.h"
#include "tests/fuzz/law.h"
#include "tests/scratch_folder.h"

using namespace equipoise;

namespace {

const std::string kAttention =
    "gpu,kernel,dtype,pass,mask,head_dim,n_q_heads,n_kv_heads,batch,seq_q,seq_kv,time_ms,tflops,layout,"
    "notes\n"
    "H100,fa3,bf16,fwd,causal,128,32,8,2,4096,4096,0.5,,,\n"
    "H100,fa3,bf16,bwd,full,64,16,16,1,8192,8192,,350,,sliding_window=512\n";
const std::string kGemm =
    "gpu,M,N,K,dtype,time_ms,tflops\nH100,4096,4096,4096,bf16,0.21,\nH100,128,4096,512,fp8,,600\n";
const std::string kElementwise =
    "gpu,op,pass,backend,rows,cols,time_ms,gbytes_per_s\nH100,RMSNorm,fwd,apex,4096,8192,0.05,2500\n";
const std::string kCollective =
    "op,size_bytes,n_gpus,n_nodes,gpus_per_node,inter_node_network,time_us,busbw_GBps\n"
    "all_gather,1048576,16,2,8,InfiniBand,120,\nalltoall,33554432,8,1,8,,,300\n";
const std::string kSteps =
    "row_id,group,gpu,model_id,seq_len,tp,cp,pp,dp,mbs,gbs_seqs,step_time_s,precision,act_recompute\n"
    "a,bench_bf16_v1,H100 SXM 80GB,tiny,2048,2,1,1,2,1,4,1.5,bf16,none\n";
const std::string kModels =
    "model_id,n_layers,hidden,n_heads,n_kv_heads,ffn_hidden,gated_mlp,vocab\ntiny,4,1024,8,,4096,1,32000\n";

}  // namespace

TEST_CASE("Kernel tables are read or refused") {
  test::check_reader("kernel-table", {kAttention, kGemm, kElementwise, kCollective},
                     [](const std::string& text) {
                       SampleSet set;
                       (void)add_rows(CsvTable::parse(text, "rows.csv"), {}, set);
                     });
}

TEST_CASE("Document histograms are read or refused") {
  const test::Scratch folder;
  test::check_reader("histogram",
                     {"length_min,length_max,n_docs\n1,128,50\n129,4096,20.5\n", "# drawn\n1,2,3\n"},
                     [&](const std::string& text) {
                       (void)draw_documents(read_document_histogram(folder.write("h.csv", text)), 65536, 1);
                     });
}

TEST_CASE("Tables of measured steps are read or refused") {
  const test::Scratch folder;
  StepTables tables;
  tables.preset = "megatron";
  tables.models = folder.write("models.csv", kModels);
  test::check_reader("steps-table", {kSteps}, [&](const std::string& text) {
    tables.rows = folder.write("steps.csv", text);
    (void)read_step_rows(tables, 1);
  });
}

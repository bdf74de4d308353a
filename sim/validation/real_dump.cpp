#include "sim/validation/real_dump.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "sim/execution/dump.h"
#include "sim/report/result_files.h"
#include "sim/study/row/details.h"
#include "sim/workload/stage_layers.h"

namespace equipoise {

void dump_row(const std::string& folder, const Study& study, const RealRow& row,
              const execution::Gathered& gathered, const execution::Equivalence& equivalence,
              std::uint64_t seed) {
  const execution::Dump dump(folder);
  const std::string label = file_name(row.label);
  dump.write_config(study.model);
  const execution::ExecutableStep& step = row.steps.front();
  std::set<std::int64_t> documents;
  for (const Lane& lane : step.step.lanes)
    for (const MicroBatch& micro_batch : lane.micro_batches)
      for (const Slice& slice : micro_batch.slices) documents.insert(slice.document);
  std::vector<execution::DumpedDocument> dumped;
  for (const std::int64_t document : documents) dumped.push_back({document, step.documents.of(document)});
  dump.write_documents(dumped, seed, study.model.vocab);

  const std::vector<execution::Tensor> tensors = execution::inventory(study.model);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::vector<float> weights(static_cast<std::size_t>(tensors[t].elements()));
    execution::fill_initial(seed, tensors[t], 0, weights);
    dump.write_weights(label, tensors[t], weights);
    dump.write_gradients(label, tensors[t], gathered.gradients[t]);
  }
  Plan plan = row.plan;
  plan.steps = {step.step};
  const RecomputedLayers recomputed(study.model, row.ready.models->layout);
  dump.write_plan(label, plan_json(plan, nlohmann::json::object(), &recomputed));
  dump.write_loss(label, equivalence.loss, equivalence.tokens);
}

}  // namespace equipoise

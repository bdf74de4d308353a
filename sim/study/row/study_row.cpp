#include "sim/study/row/study_row.h"

#include <utility>

#include "policies/degrees.h"
#include "policies/steps.h"
#include "sim/cost/context_exchange/context_form.h"
#include "sim/study/read/naming.h"
#include "sim/study/read/plan_file.h"

namespace equipoise {

// A global batch of a whole-set packer has as many tokens as documents_per_step documents have on average.
static PolicyRun with_batch(PolicyRun run, const DocumentSet& documents) {
  if (run.pack.documents_per_step > 0)
    run.pack.global_tokens = mean_global_tokens(documents.batches, run.pack);
  return run;
}

// Tells a policy that chooses CP degrees which of them the model's heads refuse, if any.
static void offer_degrees_of_heads(const RunModels& models, PolicyRun& run) {
  if (!run.policy().chooses_degrees) return;
  std::vector<int> suitable;
  for (int degree = 1; degree <= run.pack.gpus; ++degree)
    if (heads_suit(models.costs.model(), models.layout, degree)) suitable.push_back(degree);
  const bool all = std::ssize(suitable) == run.pack.gpus;
  offer_degrees(all ? std::vector<int>{} : std::move(suitable), run.pack);
}

StudyRow::StudyRow(const Study& study, const StudyInputs& inputs, const PolicyRun& entry)
    : documents(inputs.documents),
      context_window(study.batch.context_window),
      run{with_batch(with_plan(entry, inputs.plans, notes), documents)},
      schedule(schedule_policy_of(study, run)),
      models(naming(study.file, [&] {
        return std::make_shared<const RunModels>(study, layout_of(study, run), inputs.profile);
      })) {
  offer_degrees_of_heads(*models, run);
}

StudyRow::StudyRow(const Study& study, const DocumentSet& d, const Profile* profile, PolicyRun entry)
    : documents(d),
      context_window(study.batch.context_window),
      run{with_batch(std::move(entry), documents)},
      schedule(schedule_policy_of(study, run)) {
  if (profile == nullptr) return;
  models = std::make_shared<const RunModels>(study, layout_of(study, run), *profile);
  offer_degrees_of_heads(*models, run);
}

void StudyRow::recompute_layers(int layers) {
  run.has_recompute = true;
  run.recompute = Recompute::layers;
  run.recompute_layers = layers;
  Layout layout = models->layout;
  layout.recompute = run.recompute;
  layout.recompute_layers = layers;
  layout.recompute_modules = run.recompute_modules;
  models = std::make_shared<const RunModels>(*models, layout);
}

ShardRule StudyRow::rule(std::string_view shard) const {
  ShardRule rule;
  rule.fixed = &sharding_policy(shard);
  rule.choice = rule.fixed->choice;
  rule.options = run.sharding;
  rule.options.bucket_size = run.pack.bucket_size;  // dacp shards by the bucket and roll-back of the packing
  rule.options.rollback = run.pack.rollback;
  rule.options.workload = workload.get();
  return rule;
}

ShardRule StudyRow::trial_rule() const {
  return rule(run.rule().choice == ShardChoice::static_best ? "adaptive" : run.shard);
}

StepOptions StudyRow::step_options() const {
  StepOptions steps;
  steps.schedule = &schedule;
  steps.keep = run.pack.keep;
  steps.strict_keep = run.pack.strict_keep;
  return steps;
}

}  // namespace equipoise

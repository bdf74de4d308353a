#include "sim/study/study_inputs.h"

#include "sim/study/derive.h"
#include "sim/study/load_trace.h"
#include "sim/study/plan_file.h"
#include "sim/study/read/json_object.h"

namespace equipoise {

DocumentSet documents_of(const Study& study, const Trace& trace) {
  LoadOptions load;
  load.steps = study.steps;
  load.tail = study.loader;
  load.repeat = study.trace.repeat;
  return load_documents(trace.lengths, study.batch, load);
}

StudyInputs load_inputs(const Study& study) {
  Profile profile =
      naming(study.file + ": cluster.profile", [&] { return Profile::load(study.cluster.profile); });
  (void)naming(study.file, [&] { return RunModels(study, study.layout, profile).layout; });
  Trace trace = naming(study.file, [&] { return load_trace(study); });
  DocumentSet documents = naming(study.file, [&] { return documents_of(study, trace); });
  return {std::move(profile), std::move(trace), std::move(documents), read_plan_files(study)};
}

}  // namespace equipoise

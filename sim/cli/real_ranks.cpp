#include "sim/cli/real_ranks.h"

#include <ostream>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"
#include "sim/cli/simulation.h"
#include "sim/execution/launch.h"
#include "sim/limits/memory_limit.h"
#include "sim/validation/real_run.h"

namespace equipoise {

Study study_of_ranks(const RankOptions& options, const std::string& command, std::ostream& log) {
  if (options.format == Format::csv) throw UserError(command + ": --format csv; allowed: table, json");
  Study study = possible_study(options.file, options.set);
  for (PolicyRun& row : study.policies) {
    const std::string fault = execution::stage_exchange_fault(study.model, layout_of(study, row));
    if (leaves_out_exchange(row, fault) && !execution::under_launcher())
      log << "note: " << row.label << ": without stage_attention_exchange: ranks expect " << fault << '\n';
  }
  return study;
}

void check_real_run(const Study& study, const RankOptions& options, bool reference) {
  require_folder(options.out, "--out");
  if (study.layout.gpus() > 1 && !options.replay)
    for (const std::string& file : {options.file, study.trace.file})
      require_regular_file(file, "every rank reads it");
  if (options.device != "cpu") return;
  require_memory(options.file + ": parameters of " + study.model.name + " on " +
                     std::to_string(study.layout.gpus()) + " ranks of this machine",
                 least_real_bytes(study, reference), options.memory, "a smaller model");
}

}  // namespace equipoise

#include "sim/cli/command_init.h"

#include <nlohmann/json.hpp>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "sim/cli/commands.h"
#include "sim/report/words/words.h"

namespace equipoise {

int run_init_command(const InitOptions& options, std::ostream& out, std::ostream& log,
                     const std::atomic<bool>& stop) {
  RunStudyOptions run;
  run.jobs = options.jobs;
  run.stop = &stop;
  const JobStudy job = study_of_job(options.job, run);
  if (!job.has_layout) throw UserError(text_of(job.fits));
  const std::string text = job.file.dump(2) + '\n';
  if (options.out.empty())
    out << text;
  else
    write_file_atomically(options.out, text);
  log << text_of(job.fits) << '\n' << text_of(assumed_of(options.job, {}, job.file)) << '\n';
  return 0;
}

}  // namespace equipoise

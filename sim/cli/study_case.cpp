#include "sim/cli/study_case.h"

#include <algorithm>
#include <iomanip>
#include <map>
#include <set>
#include <sstream>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "sim/study/estimate.h"
#include "sim/study/read/naming.h"
#include "sim/study/read/policy_run.h"
#include "sim/study/row/details.h"
#include "traces/json_object.h"

namespace equipoise {

using nlohmann::json;

namespace {

// Loads each profile once, so that a wrong name is found before any case runs.
void check_profiles(const std::vector<StudyCase>& cases) {
  std::set<std::string> known;
  for (const StudyCase& c : cases) {
    if (c.name.empty() || !known.insert(c.study.cluster.profile).second) continue;
    (void)naming(c.name + ": " + c.study.file + ": cluster.profile",
                 [&] { return Profile::load(c.study.cluster.profile); });
  }
}

// Counts the cases before they are made: a few long lists give more than fit in memory.
void check_case_count(const std::vector<std::string>& sweeps, std::int64_t most) {
  double cases = 1;
  for (const std::string& sweep : sweeps)
    cases *= static_cast<double>(std::count(sweep.begin(), sweep.end(), ',') + 1);
  if (cases <= static_cast<double>(most)) return;
  std::ostringstream count;
  count << std::fixed << std::setprecision(0) << cases;
  throw UserError("--sweep: expected at most " + std::to_string(most) + " cases, found " + count.str() +
                  "; fewer values, or --max-cases " + count.str());
}

// What one case holds until it has run.
double case_bytes(const StudyCase& c) {
  std::size_t bytes = sizeof(StudyCase) + c.name.size() + c.study.policies.size() * sizeof(PolicyRun);
  for (const std::string& assignment : c.assignments) bytes += sizeof(std::string) + assignment.size();
  return static_cast<double>(bytes);
}

void check_chakra(const Study& study) {
  for (const PolicyRun& row : study.policies)
    if (layout_of(study, row).evens_out_stages())
      throw UserError(study.file, ": ", row.label,
                      ".stage_attention_exchange: expected false with --chakra, found true");
}

}  // namespace

CaseInputs inputs_of(const StudyCase& c, RunStudyOptions& options, const MemoryLimit& limit,
                     double max_output_GB) {
  if (!c.study.impossible.empty()) return {{}, c.study.impossible};
  try {
    if (options.details.chakra) check_chakra(c.study);
    StudyInputs inputs = load_inputs(c.study);
    check_estimate(c.study, inputs.documents, options, limit, max_output_GB);
    return {std::move(inputs), ""};
  } catch (const UserError& e) {
    if (c.name.empty()) throw;
    return {{}, e.what()};
  }
}

std::vector<StudyCase> read_cases(const AskedStudy& asked, std::int64_t max_cases, const MemoryLimit& limit) {
  const std::vector<std::string>& sweeps = asked.sweep;
  check_case_count(sweeps, max_cases);
  std::vector<StudyCase> cases(1);
  cases.front().assignments = asked.set;
  for (const std::string& sweep : sweeps) {
    const std::size_t equals = sweep.find('=');
    if (equals == std::string::npos || equals + 1 == sweep.size())
      throw UserError("--sweep " + sweep + ": expected key=a,b,c, e.g. batch.context_window=64K,128K");
    const std::string key = sweep.substr(0, equals);
    if (const auto first = std::find_if(sweeps.begin(), sweeps.end(),
                                        [&](const std::string& s) { return s.rfind(key + "=", 0) == 0; });
        &*first != &sweep)
      throw UserError("--sweep " + key + ": expected each key once, found " + *first + " and " + sweep);
    std::vector<StudyCase> product;
    for (const StudyCase& base : cases) {
      std::istringstream values(sweep.substr(equals + 1));
      for (std::string value; std::getline(values, value, ',');) {
        StudyCase next = base;
        const std::string assignment = sweep.substr(0, equals + 1) + value;
        next.assignments.push_back(assignment);
        if (!next.name.empty()) next.name += ' ';
        next.name += printable(assignment);
        product.push_back(std::move(next));
      }
    }
    cases = std::move(product);
  }
  for (StudyCase& c : cases) {
    const auto read = [&] {
      const json content = file_of(asked.file, c.assignments);
      c.study = c.name.empty() ? parse_study(content, asked.path) : parse_case(content, asked.path);
    };
    c.name.empty() ? read() : naming(c.name, read);
    if (&c == &cases.front())
      require_memory("--sweep: " + std::to_string(cases.size()) + " cases",
                     case_bytes(c) * static_cast<double>(cases.size()), limit, "fewer values");
  }
  check_profiles(cases);
  std::vector<Study*> possible;
  for (StudyCase& c : cases)
    if (c.study.impossible.empty()) possible.push_back(&c.study);
  if (cases.size() > 1) use_one_rule(possible);
  if (possible.empty()) throw UserError(cases.front().name + ": " + cases.front().study.impossible);
  return cases;
}

json file_of(json file, const std::vector<std::string>& assignments) {
  set_study_keys(file, assignments);
  return file;
}

void check_folders(const std::vector<StudyCase>& cases) {
  std::map<std::string, std::string> case_of;
  for (const StudyCase& c : cases) {
    const auto [known, is_new] = case_of.emplace(file_name(c.name), c.name);
    if (!is_new && known->second != c.name)
      throw UserError("--sweep: " + known->second + " and " + c.name +
                      ": expected a folder of --out for each, found " + known->first + " for both");
  }
}

}  // namespace equipoise

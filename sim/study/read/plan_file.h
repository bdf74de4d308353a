// Plans made elsewhere: {"name": "plan", "file": "plan.json"} of a study.
//
// A file is one plan (equipoise.plan/1: what `pack --format json` writes, and other tools may), or several
// (equipoise.plans/1: `pack --compare`, and plan.json of `study --out`), of which `policy` of the entry names
// one by its name or its policy. A plan is read whole, every key checked, once for a study; check_plan says
// whether it fits the study: its layout and, by the judge of all plans (policies/validator.h), its documents.
//
// What a file says of recomputing: `recompute_layers` counts layers of a pipeline stage, a MicroBatch those
// of the model. A micro-batch is read as
//   recompute_layers_of_model      that many, if it is there (as our own files have it),
//   the study's layout             else, if the plan says "recompute": "study" or the micro-batch nothing,
//   recompute_layers               else: the fewest of the model that give every stage so many, or all its
//   own.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "policies/loader.h"
#include "policies/plan.h"
#include "sim/study/read/study.h"
#include "sim/workload/stage_layers.h"

namespace equipoise {

// `file` of a row whose plan the caller provides (PolicyRun::plan), as the Python module does.
inline constexpr std::string_view kPlanOfCaller = "(of the caller)";

// Gives rows whose plan the caller will provide an empty one. They are sharded as the baseline unless they
// say otherwise, so that the two differ only in what they pack.
void await_plans(Study& study);

// Gives such a row its plan: the one of that name in a file's contents, or the only one if `name` is empty.
// Errors name the policy. Throws UserError.
void give_plan(PolicyRun& row, const Study& study, const nlohmann::json& file, const std::string& name = "");

// The policy of rows named `plan`: it derives nothing and has no algorithm.
const Policy& plan_policy();

// The plan of that name in a file's contents, or its only one if `name` is empty. Throws UserError with
// `where`.
Plan read_plan(const nlohmann::json& file, const std::string& where, const std::string& name,
               const RecomputedLayers& recomputed);

// By label, the plans of a study's rows that have a file. Throws UserError, which names file and key.
using PlansOfRows = std::map<std::string, std::shared_ptr<const Plan>>;
PlansOfRows read_plan_files(const Study& study);

// The row with the plan of its file, if it has one. It is sharded and scheduled as the policy that made the
// plan would be, if we know that policy and the study says nothing else; a note says so.
PolicyRun with_plan(PolicyRun run, const PlansOfRows& plans, Notes& notes);

// Throws UserError with file, place, what was found and what is allowed. What is unusual and still runs is a
// note without the row's label.
//
// One law is milder than for our own policies: pieces of a document may run out of order if the plan treats
// them as whole pieces, as --oversize split makes them.
void check_plan(const ModelShape& model, const Layout& layout, const DocumentSet& documents,
                const PolicyRun& run, Notes& notes);

}  // namespace equipoise

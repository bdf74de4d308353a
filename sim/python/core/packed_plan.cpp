#include "sim/python/core/packed_plan.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/limits/memory_limit.h"
#include "sim/metrics/metrics.h"
#include "sim/python/core/bindings.h"
#include "sim/python/core/open_study.h"
#include "sim/report/plan_json.h"
#include "sim/report/words/words.h"
#include "sim/study/estimate.h"
#include "sim/study/pack_request.h"
#include "sim/study/read/plan_file.h"
#include "traces/json_object.h"
#include "traces/json_text.h"

namespace equipoise::python {
namespace {

using nlohmann::json;

using SliceTuple = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // document, begin, end

// Options of the command that are no keys of a study.
constexpr std::string_view kOwnNames[] = {"lanes", "context", "seed",          "cost",
                                          "model", "profile", "max_memory_GB", "job"};

bool is_own(std::string_view name) {
  return std::find(std::begin(kOwnNames), std::end(kOwnNames), name) != std::end(kOwnNames);
}

[[noreturn]] void refuse_name(const std::string& name) {
  std::vector<std::string> known(std::begin(kOwnNames), std::end(kOwnNames));
  for (const PackKey& key : pack_keys()) known.push_back(key.key);
  throw UserError("pack: unknown option \"", name, "\"", did_you_mean(name, known),
                  " (known: ", joined(known), ")");
}

struct Options {
  PackRequest request;
  double max_memory_GB = 0;
};

// The value of a flag under its key's name, or under the command's option, which may mean the opposite
// (no_rollback).
json flag_value(const PackKey& key, const std::string& name, const json& value) {
  if (name == key.key || !value.is_boolean()) return value;
  return json(value.get<bool>() == key.value);
}

Options read_options(const std::string& text) {
  const json typed = parse_json(text, "pack");
  Options options;
  PackRequest& request = options.request;
  JsonObject own(typed, "pack");
  request.lanes = static_cast<int>(own.integer("lanes", 1, 1, 1 << 20));
  request.context = static_cast<int>(own.integer("context", 1, 1, 1 << 16));
  request.seed = static_cast<std::uint64_t>(own.integer("seed", 0, 0, INT64_MAX));
  request.cost = own.text("cost", "");
  request.model = own.text("model", "");
  request.profile = own.text("profile", "");
  if (const json* job = own.find("job")) request.job = *job;
  if (!request.job.is_null() && !(request.model + request.profile).empty())
    own.fail("job", "it or model and profile: a study has its own");
  options.max_memory_GB = own.number("max_memory_GB", 0, 0.1, 1e6);
  for (const auto& [name, value] : typed.items()) {
    if (is_own(name)) continue;
    const PackKey* const key = pack_key(name);
    if (key == nullptr) refuse_name(name);
    json& target = key->batch ? request.batch : request.policy;
    if (key->kind == ParameterKind::flag)
      target[key->key] = flag_value(*key, name, value);
    else
      target[key->key] = value.is_string() ? typed_value(*key, value.get_ref<const std::string&>()) : value;
  }
  return options;
}

class PackedPlan {
 public:
  explicit PackedPlan(Packed packed) : packed_(std::move(packed)) {}

  [[nodiscard]] std::size_t steps() const { return packed_.plan.steps.size(); }
  [[nodiscard]] std::size_t lanes(std::size_t step) const { return step_at(step).lanes.size(); }
  [[nodiscard]] bool tail(std::size_t step) const { return step_at(step).tail; }
  [[nodiscard]] std::vector<std::string> notes() const { return texts_of(packed_.notes); }
  // The notes for users who train with the plan. They exclude the steps that a study needs for its delay, and
  // how solvers ended.
  [[nodiscard]] std::vector<std::string> warnings() const {
    const Plan& plan = packed_.plan;
    Notes kept(packed_.notes.begin(), packed_.notes.end() - static_cast<std::ptrdiff_t>(plan.solver.size()));
    if (plan.queue_emptied || !plan.solver.empty())
      std::erase_if(kept, [&](const Note& note) {
        return std::ranges::any_of(plan.notes,
                                   [&](const Note& said) { return note == about(packed_.label, said); });
      });
    return texts_of(kept);
  }
  // The CP degrees of a step's lanes.
  [[nodiscard]] std::vector<int> degrees(std::size_t step) const {
    return each_of(step_at(step).lanes, &Lane::context);
  }

  [[nodiscard]] std::vector<std::vector<SliceTuple>> micro_batches(std::size_t step, std::size_t lane) const {
    std::vector<std::vector<SliceTuple>> all;
    for (const MicroBatch& m : step_at(step).lanes.at(lane).micro_batches) {
      std::vector<SliceTuple>& slices = all.emplace_back();
      slices.reserve(m.slices.size());
      for (const Slice& s : m.slices) slices.emplace_back(s.document, s.begin, s.end);
    }
    return all;
  }

  // How many micro-batches with documents a lane has in each step, by which a resumed run finds its place
  // without slices.
  [[nodiscard]] std::vector<std::int64_t> counts(std::size_t lane) const {
    std::vector<std::int64_t> counts;
    for (const Step& step : packed_.plan.steps) {
      std::int64_t& count = counts.emplace_back(0);
      if (lane >= step.lanes.size()) continue;
      for (const MicroBatch& m : step.lanes[lane].micro_batches) count += m.slices.empty() ? 0 : 1;
    }
    return counts;
  }

  // The first piece, as (document, begin, end), that begins or ends inside its document at no multiple of so
  // many tokens; none if there is no such piece. A policy that pads counts a document as longer than it is.
  [[nodiscard]] std::vector<SliceTuple> first_cut(const Lengths& lengths, std::int64_t multiple) const {
    const std::span<const std::int64_t> tokens = span_of(lengths);
    for (const Step& step : packed_.plan.steps)
      for (const Lane& lane : step.lanes)
        for (const MicroBatch& m : lane.micro_batches)
          for (const Slice& s : m.slices) {
            const auto is_cut = [&](std::int64_t place) {
              return place < tokens[at(s.document)] && place % multiple != 0;
            };
            if (is_cut(s.begin) || is_cut(s.end)) return {{s.document, s.begin, s.end}};
          }
    return {};
  }

  [[nodiscard]] std::string json_text() const {
    const nb::gil_scoped_release released;
    return packed_json(packed_).dump();
  }
  [[nodiscard]] std::string metrics_text() const {
    return metrics_json(packed_.metrics, packed_.imbalance).dump();
  }
  [[nodiscard]] double pack_ms() const { return packed_.pack_ms; }

 private:
  [[nodiscard]] const Step& step_at(std::size_t step) const { return packed_.plan.steps.at(step); }

  Packed packed_;
};

struct Loaded {
  Options options;
  Study study;
  DocumentSet documents;
};

Loaded load_lengths(std::span<const std::int64_t> tokens, const std::string& options_text) {
  Loaded loaded{read_options(options_text), {}, {}};
  Study& study = loaded.study;
  study = study_of_request(loaded.options.request);
  LoadOptions load;
  load.steps = study.steps;
  load.tail = study.loader;
  loaded.documents = load_documents(tokens, study.batch, load);
  return loaded;
}

// The row of a plan that Python makes.
PolicyRun own_row(Loaded& loaded, const std::string& label) {
  PackRequest& request = loaded.options.request;
  request.policy.update(json{{"file", kPlanOfCaller}, {"label", label}});
  return row_of_request(request, loaded.study, std::string(plan_policy().name));
}

// The input of a policy written in Python: the documents by global batches, and the shape of a step.
std::pair<nb::object, std::string> loaded(const Lengths& lengths, const std::string& options_text) {
  Loaded found = load_lengths(span_of(lengths), options_text);
  const PackOptions shape = own_row(found, "own").pack;  // includes micro_batches
  return {rows_of(found.documents),
          shape_of(shape, static_cast<std::int64_t>(found.documents.batches.size()), &found.documents)};
}

// Refuses a wrong policy's name or option before there is anything to plan. `policy` is empty for a function.
void check_request(const std::string& policy, const std::string& options_text) {
  Loaded asked{read_options(options_text), {}, {}};
  asked.study = study_of_request(asked.options.request);
  policy.empty() ? own_row(asked, "own") : row_of_request(asked.options.request, asked.study, policy);
}

PackedPlan pack_lengths(const Lengths& lengths, const std::string& policy, const std::string& options_text,
                        const std::string& plan) {
  const std::span<const std::int64_t> tokens = span_of(lengths);
  return interruptible([&](const std::atomic<bool>&) {
    Loaded loaded = load_lengths(tokens, options_text);
    auto& [options, study, documents] = loaded;
    const PackRequest& request = options.request;
    study.policies.push_back(plan.empty() ? row_of_request(request, study, policy) : own_row(loaded, policy));
    if (!plan.empty()) give_plan(study.policies.front(), study, parse_json(plan, "policy " + policy));
    RunStudyOptions planned;
    planned.jobs = 0;  // nothing is simulated
    check_estimate(study, documents, planned, memory_limit(options.max_memory_GB));
    Packed packed = pack(request, study, documents, study.policies.front());
    Notes idle = idle_request_notes(request, study);
    add(idle, cut_note(documents, study.batch, "max_length"));
    packed.notes.insert(packed.notes.begin(), idle.begin(), idle.end());
    return PackedPlan(std::move(packed));
  });
}

std::vector<std::string> policy_names() {
  return each_of(packing_policies(), [](const Policy& policy) { return std::string(policy.name); });
}

// Options of `pack`: the name in Python's spelling, and its meaning.
std::vector<std::pair<std::string, std::string>> option_helps() {
  std::vector<std::pair<std::string, std::string>> helps;
  for (const PackKey& key : pack_keys()) helps.emplace_back(key.key, key.help);
  return helps;
}

}  // namespace

void bind_plans(nb::module_& m) {
  nb::class_<PackedPlan>(m, "PackedPlan", "A plan where the simulator holds it.")
      .def_prop_ro("steps", &PackedPlan::steps)
      .def_prop_ro("notes", &PackedPlan::notes)
      .def_prop_ro("warnings", &PackedPlan::warnings, "Notes for whoever trains with it.")
      .def_prop_ro("pack_ms", &PackedPlan::pack_ms, "Measured, mean per global batch.")
      .def("lanes", &PackedPlan::lanes, nb::arg("step"))
      .def("degrees", &PackedPlan::degrees, nb::arg("step"), "CP degrees of its lanes.")
      .def("tail", &PackedPlan::tail, nb::arg("step"))
      .def("micro_batches", &PackedPlan::micro_batches, nb::arg("step"), nb::arg("lane"))
      .def("counts", &PackedPlan::counts, nb::arg("lane"))
      .def("first_cut", &PackedPlan::first_cut, nb::arg("lengths"),
           nb::arg("multiple") = std::numeric_limits<std::int64_t>::max())
      .def("json", &PackedPlan::json_text)
      .def("metrics", &PackedPlan::metrics_text);
  m.def("pack", pack_lengths, nb::arg("lengths"), nb::arg("policy"), nb::arg("options"), nb::arg("plan") = "",
        "The plan of a policy; options are a JSON object. With the JSON of a plan, that one: policy is its "
        "label.");
  m.def("loaded", loaded, nb::arg("lengths"), nb::arg("options"),
        "What there is to plan: rows of batch, document, begin, end, and the shape of a step as JSON.");
  m.def("check_request", check_request, nb::arg("policy"), nb::arg("options"),
        "Raises what pack would of a policy's name and options; no name: a function's.");
  m.def("policy_names", policy_names, "All packing policies, in help order.");
  m.def("pack_options", option_helps,
        "Options of pack other than lanes, context, seed, cost, model and profile.");
}

}  // namespace equipoise::python

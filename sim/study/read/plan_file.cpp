#include "sim/study/read/plan_file.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "policies/parameter.h"
#include "policies/validator.h"
#include "sim/cost/context_exchange/context_form.h"
#include "sim/report/words/note_json.h"
#include "sim/schedule/schedule.h"
#include "sim/study/read/naming.h"
#include "traces/json_object.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr std::string_view kOne = "equipoise.plan/1", kSeveral = "equipoise.plans/1";
constexpr std::int64_t kMostIndex = std::int64_t{1} << 40;
constexpr std::int64_t kMostChunks = std::int64_t{1} << 30;
constexpr std::int64_t kMostDegree = 1 << 22;

// Keys that `plan` uses: those of the schedule, and the limit of placed documents.
constexpr PackParameter kPlanKeys[] = {kKeep, kStrictKeep, kBucketSize};

constexpr Policy made_elsewhere() {
  Policy policy;
  policy.name = "plan";
  policy.summary = "A plan made elsewhere, read from `file`";
  policy.parameters = kPlanKeys;
  return policy;
}
constexpr Policy kPlan = made_elsewhere();

std::string inside(const std::string& where, const char* list, std::size_t index) {
  return where + "." + list + "[" + std::to_string(index) + "]";
}

std::string expected(const std::string& where, const std::string& what, const json* found) {
  return where + ": expected " + what + ", found " + (found == nullptr ? "nothing" : shown_json(*found));
}

// A list, which may be missing unless `needed`.
const json* list_of(JsonObject& object, const char* key, bool needed) {
  const json* list = object.find(key);
  if (list == nullptr ? needed : !list->is_array()) object.fail(key, "a list");
  return list;
}

class PlanReader {
 public:
  explicit PlanReader(const RecomputedLayers& recomputed) : recomputed_(recomputed) {}

  Plan read(const json& node, const std::string& where) {
    JsonObject object(node, where);
    for (const char* of_reports : {"schema", "name", "metrics", "measured", "solver"})
      (void)object.find(of_reports);
    constexpr std::string_view kRules[] = {"plan", "study"};
    follows_study_ = object.choice("recompute", 0, kRules) == 1;
    Plan plan;
    plan.policy = printable(object.text("policy", ""));
    if (object.has("schedule"))
      plan.schedule = naming(where, [&] { return schedule_policy(object.text("schedule", "")); }).name;
    plan.sees_whole_set = object.flag("sees_whole_set", false);
    if (object.has("queue_emptied")) plan.queue_emptied = object.flag("queue_emptied", false);
    const json& steps = *list_of(object, "steps", true);
    for (std::size_t s = 0; s < steps.size(); ++s)
      plan.steps.push_back(read_step(steps[s], inside(where, "steps", s), s));
    if (const json* dropped = list_of(object, "dropped", false))
      plan.dropped = read_slices(*dropped, where + ".dropped");
    if (const json* notes = list_of(object, "notes", false))
      for (const json& note : *notes) try {
          plan.notes.push_back(note_of(note));
        } catch (const json::exception&) {
          object.fail("notes", "a list of notes (kind, about, numbers, text)");
        }
    object.finish();
    return plan;
  }

 private:
  // If an item states its place in its list, the place must be correct.
  static void check_place(JsonObject& object, const char* key, std::size_t place) {
    const json* said = object.find(key);
    std::int64_t value = 0;
    if (said != nullptr && (!parse_size(*said, value) || value != static_cast<std::int64_t>(place)))
      object.fail(key, std::to_string(place) + ", its place in the list");
  }

  static Slice read_slice(const json& node, const std::string& list, std::size_t index) {
    std::int64_t values[3] = {};
    bool good = node.is_array() && node.size() == 3;
    for (std::size_t i = 0; good && i < 3; ++i)
      good = node[i].is_number_integer() && parse_size(node[i], values[i]) && values[i] >= 0 &&
             values[i] <= kMostIndex;
    if (!good || values[1] >= values[2])
      throw UserError(expected(list + "[" + std::to_string(index) + "]",
                               "[document, begin, end] with 0 <= begin < end <= 2^40", &node));
    return {values[0], values[1], values[2]};
  }

  static std::vector<Slice> read_slices(const json& list, const std::string& where) {
    std::vector<Slice> slices;
    slices.reserve(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) slices.push_back(read_slice(list[i], where, i));
    return slices;
  }

  Step read_step(const json& node, const std::string& where, std::size_t place) {
    JsonObject object(node, where);
    check_place(object, "step", place);
    Step step;
    step.tail = object.flag("tail", false);
    const json& lanes = *list_of(object, "lanes", true);
    for (std::size_t l = 0; l < lanes.size(); ++l)
      step.lanes.push_back(read_lane(lanes[l], inside(where, "lanes", l), l));
    if (const json* carried = list_of(object, "carried", false))
      step.carried = read_slices(*carried, where + ".carried");
    if (const json* measured = object.find("measured")) {
      JsonObject times(*measured, where + ".measured");
      step.pack_ms = times.number("pack_ms", 0, 0, 1e15);
      times.finish();
    }
    object.finish();
    return step;
  }

  Lane read_lane(const json& node, const std::string& where, std::size_t place) {
    JsonObject object(node, where);
    check_place(object, "lane", place);
    Lane lane;
    lane.context = static_cast<int>(object.integer("context", 1, 1, kMostDegree));
    lane.barrier_group = static_cast<int>(object.integer("barrier_group", 0, 0, kMostDegree));
    const json& micro_batches = *list_of(object, "micro_batches", true);
    lane.micro_batches.reserve(micro_batches.size());
    for (std::size_t m = 0; m < micro_batches.size(); ++m)
      lane.micro_batches.push_back(read_micro_batch(micro_batches[m], inside(where, "micro_batches", m),
                                                    m == 0 ? nullptr : &lane.micro_batches[m - 1]));
    object.finish();
    return lane;
  }

  // `before` is the micro-batch that runs before it on its lane, or null.
  MicroBatch read_micro_batch(const json& node, const std::string& where, const MicroBatch* before) {
    JsonObject object(node, where);
    MicroBatch m;
    m.slices = read_slices(*list_of(object, "slices", true), where + ".slices");
    const json* tokens = object.find("tokens");
    std::int64_t said = 0;
    if (tokens != nullptr && (!parse_size(*tokens, said) || said != m.tokens()))
      object.fail("tokens", std::to_string(m.tokens()) + ", the sum of its slices");
    m.recompute_layers = read_recompute(object, m.recompute_by_stage);
    m.pad_each_to = object.integer("pad_each_to", 0, 0, kLongestSize);
    m.pack_length = object.integer("pack_length", 0, 0, kLongestSize);
    if (const json* placement = list_of(object, "placement", false))
      m.placement = read_placement(*placement, object);
    if (const json* chunk = object.find("chunk")) read_chunk(*chunk, where + ".chunk", before, m);
    object.finish();
    return m;
  }

  static std::vector<int> read_placement(const json& list, const JsonObject& object) {
    std::vector<int> placement;
    for (const json& rank : list) {
      std::int64_t value = 0;
      if (!rank.is_number_integer() || !parse_size(rank, value) || value < kDistributed ||
          value > kMostDegree)
        object.fail("placement", "a list of CP ranks, -1 for all of them");
      placement.push_back(static_cast<int>(value));
    }
    return placement;
  }

  // A group attends back to the first token of its first chunk.
  static void read_chunk(const json& node, const std::string& where, const MicroBatch* before,
                         MicroBatch& m) {
    JsonObject object(node, where);
    Chunk& chunk = m.chunk;
    chunk.sequence = object.integer("sequence", 0, 0, kMostIndex);
    chunk.count = static_cast<int>(object.integer("count", 1, 1, kMostChunks));
    chunk.index = static_cast<int>(object.integer("index", 0, 0, chunk.count - 1));
    for (const char* key : {"sequence", "index", "count"})
      if (!object.has(key)) object.fail(key, "an integer");
    object.finish();
    if (chunk.count == 1) return;
    if (chunk.index > 0 && before != nullptr)
      chunk.group_begin = before->chunk.group_begin;
    else if (!m.slices.empty())
      chunk.group_begin = m.slices.front().begin;
  }

  std::vector<std::int16_t> read_by_stage(const json& list, const JsonObject& object) const {
    const std::span<const int> layers = recomputed_.layers_of_virtual_stages();
    std::vector<std::int16_t> by_stage;
    for (const json& node : list) {
      std::int64_t value = -1;
      const std::size_t v = by_stage.size();
      if (v < layers.size() && node.is_number_integer() && parse_size(node, value) && value >= 0 &&
          value <= layers[v])
        by_stage.push_back(static_cast<std::int16_t>(value));
      else
        break;
    }
    if (by_stage.size() != layers.size() || list.size() != layers.size())
      object.fail("recompute_by_stage", "a list of " + std::to_string(layers.size()) +
                                            " numbers of layers, one a virtual stage, none above its own");
    return by_stage;
  }

  int read_recompute(JsonObject& object, std::vector<std::int16_t>& by_stage) {
    const int most = recomputed_.layers();
    const auto own = static_cast<int>(object.integer("recompute_layers", -1, 0, most));
    const auto of_model = static_cast<int>(object.integer("recompute_layers_of_model", -1, 0, most));
    if (const json* list = list_of(object, "recompute_by_stage", false)) {
      by_stage = read_by_stage(*list, object);
      return kStudyRecompute;
    }
    if (of_model >= 0) {
      const int of_stage = recomputed_.of_fullest_stage(of_model);
      if (own >= 0 && own != of_stage && own != of_model)  // for a plan that was made for one stage
        object.fail("recompute_layers",
                    std::to_string(of_stage) +
                        ", what recompute_layers_of_model is on a stage, or only one of the two");
      return of_model;
    }
    if (own < 0) return kStudyRecompute;
    if (!follows_study_) return recomputed_.of_model(own);
    if (!study_layers_) study_layers_ = own;
    if (own != *study_layers_)
      object.fail("recompute_layers", std::to_string(*study_layers_) +
                                          " as everywhere in a plan whose \"recompute\" is \"study\"");
    return kStudyRecompute;
  }

  const RecomputedLayers& recomputed_;
  bool follows_study_ = false;
  std::optional<int> study_layers_;  // what such a file says about all micro-batches that follow the study
};

std::string text_at(const json& node, const char* key) {
  const auto found = node.find(key);
  return found != node.end() && found->is_string() ? printable(found->get<std::string>()) : "";
}

std::string schema_of(const json& file, const std::string& where) {
  if (!file.is_object()) throw UserError(expected(where, "an object", &file));
  const auto found = file.find("schema");
  const json* schema = found == file.end() ? nullptr : &*found;
  if (schema == nullptr || (*schema != kOne && *schema != kSeveral))
    throw UserError(expected(where + ".schema", std::string(kOne) + " or " + std::string(kSeveral), schema));
  return schema->get<std::string>();
}

// Finds a plan by its name (a study's label), else by its policy.
std::size_t place_of(const json& plans, const std::string& where, const std::string& name) {
  std::vector<std::string> names;
  for (const json& plan : plans) {
    if (!plan.is_object()) throw UserError(expected(where + ".plans", "a list of objects", &plan));
    const std::string own = text_at(plan, "name");
    names.push_back(own.empty() ? text_at(plan, "policy") : own);
  }
  const auto refuse = [&](const std::string& found) {
    throw UserError(where, ": policy: expected one of ", joined(names), ", found ", found);
  };
  if (name.empty()) {
    if (names.size() != 1) refuse("nothing to choose by");
    return 0;
  }
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) found.push_back(i);
  for (std::size_t i = 0; found.empty() && i < names.size(); ++i)
    if (text_at(plans[i], "policy") == name) found.push_back(i);
  if (found.size() != 1) refuse(name + (found.empty() ? "" : ", which is several"));
  return found.front();
}

}  // namespace

const Policy& plan_policy() {
  return kPlan;
}

Plan read_plan(const json& file, const std::string& where, const std::string& name,
               const RecomputedLayers& recomputed) {
  PlanReader reader(recomputed);
  if (schema_of(file, where) == kOne) {
    const std::string own = text_at(file, "policy");
    if (!name.empty() && name != own)
      throw UserError(where, ": policy: expected ", own.empty() ? "none" : own, ", found ", name);
    return reader.read(file, where);
  }
  JsonObject object(file, where);
  (void)object.find("schema");
  const json& plans = *list_of(object, "plans", true);
  object.finish();
  const std::size_t place = place_of(plans, where, name);
  return reader.read(plans[place], inside(where, "plans", place));
}

void await_plans(Study& study) {
  const auto baseline = std::ranges::find(study.policies, study.baseline, &PolicyRun::label);
  for (PolicyRun& row : study.policies) {
    if (row.plan_file != kPlanOfCaller) continue;
    row.plan = std::make_shared<const Plan>();
    // Rules that place documents need a plan that was made for them.
    if (row.says("shard") || baseline == study.policies.end() || baseline->rule().places_documents) continue;
    row.shard = baseline->shard;
    row.sharding = baseline->sharding;
  }
}

void give_plan(PolicyRun& row, const Study& study, const json& file, const std::string& name) {
  row.plan_file = "policy " + row.label;
  const RecomputedLayers recomputed(study.model, study.layout);
  row.plan = std::make_shared<const Plan>(read_plan(file, row.plan_file, name, recomputed));
}

PlansOfRows read_plan_files(const Study& study) {
  PlansOfRows plans;
  std::map<std::string, json> files;  // because rows may use plans of one file
  std::optional<RecomputedLayers> recomputed;
  for (const PolicyRun& run : study.policies) {
    if (!run.has_plan_file() || run.plan != nullptr) continue;
    if (!recomputed) recomputed.emplace(study.model, study.layout);
    auto file = files.find(run.plan_file);
    if (file == files.end()) file = files.emplace(run.plan_file, read_json_file(run.plan_file)).first;
    plans[run.label] =
        std::make_shared<const Plan>(read_plan(file->second, run.plan_file, run.plan_name, *recomputed));
  }
  return plans;
}

PolicyRun with_plan(PolicyRun run, const PlansOfRows& plans, Notes& notes) {
  if (!run.has_plan_file() || run.plan != nullptr) return run;
  run.plan = plans.at(run.label);
  const auto known = std::ranges::find(packing_policies(), run.plan->policy, &Policy::name);
  const bool is_known = known != packing_policies().end();
  Notes rules;
  if (is_known && !run.says("shard") && run.shard != known->shard) {
    run.shard = known->shard;
    rules.push_back({"shard_rule", "", {{"shard", run.shard}}});
  }
  const std::string schedule(run.plan->schedule.empty() && is_known ? known->schedule : run.plan->schedule);
  if (!run.says("schedule") && !schedule.empty()) {
    run.schedule = schedule;
    rules.push_back({"schedule_rule", "", {{"schedule", run.schedule}}});
  }
  if (!rules.empty())
    notes.push_back({"rules_of_plan", run.label, {{"rules", rules}, {"policy", run.plan->policy}}});
  return run;
}

namespace {

std::string lane_text(std::size_t step, std::size_t lane) {
  return concatenated("steps[", step, "].lanes[", lane, "]");
}

// The degrees of CP groups that the layout allows, for an error.
std::string allowed_degrees(const ModelShape& model, const Layout& layout, int degree) {
  const int ranks = layout.data * layout.context;
  if (degree > ranks) return "at most data x context = " + std::to_string(ranks);
  if (std::string allowed = ranks_of_heads(model, layout, degree); !allowed.empty()) return allowed;
  // Inner groups of a nested form fit any CP group. Else AttentionCosts prices shared heads at these alone.
  if (context_form(layout).head_shares(layout, degree) == layout.inner_ranks(degree)) return "";
  if (degree == layout.context || std::has_single_bit(static_cast<unsigned>(degree))) return "";
  return concatenated("parallel.context (", layout.context, ") or a power of two (context_comm ",
                      name_of(layout.acting_form()), ")");
}

// Barrier groups count up from 0 in the order of lanes, as engines and traces expect.
void check_lanes(const ModelShape& model, const Layout& layout, const PolicyRun& run) {
  const auto refuse = [&](std::size_t s, std::size_t l, const std::string& key, const std::string& allowed,
                          int found) {
    throw UserError(run.plan_file, ": ", lane_text(s, l), ".", key, ": expected ", allowed, ", found ",
                    found);
  };
  for (std::size_t s = 0; s < run.plan->steps.size(); ++s) {
    int group = 0;
    const std::vector<Lane>& lanes = run.plan->steps[s].lanes;
    for (std::size_t l = 0; l < lanes.size(); ++l) {
      if (const std::string allowed = allowed_degrees(model, layout, lanes[l].context); !allowed.empty())
        refuse(s, l, "context", allowed, lanes[l].context);
      const int next = lanes[l].barrier_group;
      if (next != group && (next != group + 1 || l == 0))
        refuse(s, l, "barrier_group",
               l == 0 ? "0" : std::to_string(group) + " or " + std::to_string(group + 1), next);
      group = next;
    }
  }
}

// The pieces of the plan that attend to nothing before them, as (begin, end), sorted.
std::vector<std::pair<std::int64_t, std::int64_t>> cuts_of(const Plan& plan) {
  std::vector<std::pair<std::int64_t, std::int64_t>> cuts;
  for (const Slice& s : plan.dropped) {
    cuts.emplace_back(s.document, s.begin);
    cuts.emplace_back(s.document, s.end);
  }
  for (const Step& step : plan.steps)
    for (const Lane& lane : step.lanes)
      for (const MicroBatch& m : lane.micro_batches)
        for (const Slice& s : m.slices) {
          if (m.chunk.index == 0) cuts.emplace_back(s.document, s.begin);
          if (m.chunk.index + 1 == m.chunk.count) cuts.emplace_back(s.document, s.end);
        }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

// The study's batches with every slice cut into the plan's pieces.
std::vector<GlobalBatch> cut_batches(const Batches& batches, const Plan& plan) {
  const auto cuts = cuts_of(plan);
  std::vector<GlobalBatch> cut(batches.size());
  for (std::size_t b = 0; b < batches.size(); ++b)
    for (const Slice& s : batches[b].slices) {
      Slice rest = s;
      auto at = std::upper_bound(cuts.begin(), cuts.end(), std::pair{s.document, s.begin});
      for (; at != cuts.end() && at->first == s.document && at->second < s.end; ++at) {
        cut[b].slices.push_back({s.document, rest.begin, at->second});
        rest.begin = at->second;
      }
      cut[b].slices.push_back(rest);
    }
  return cut;
}

void note_idle_ranks(std::int64_t ranks, const Plan& plan, Notes& notes) {
  std::int64_t least = ranks;
  std::size_t steps = 0;
  for (const Step& step : plan.steps) {
    std::int64_t used = 0;
    for (const Lane& lane : step.lanes) used += lane.barrier_group == 0 ? lane.context : 0;
    least = std::min(least, used);
    steps += used < ranks ? 1 : 0;
  }
  if (steps > 0)
    notes.push_back(
        {"idle_ranks", "", {{"used", least}, {"ranks", ranks}, {"steps", steps}, {"of", plan.steps.size()}}});
}

}  // namespace

void check_plan(const ModelShape& model, const Layout& layout, const DocumentSet& documents,
                const PolicyRun& run, Notes& notes) {
  const Plan& plan = *run.plan;
  if (plan.steps.empty()) throw UserError(run.plan_file, ": steps: expected at least one step, found none");
  check_lanes(model, layout, run);
  PlanLimits limits;
  limits.gpus = std::int64_t{layout.data} * layout.context;
  limits.rank_tokens = run.says("bucket_size") ? run.pack.bucket_size : 0;
  const std::optional<std::string> wrong = plan_violation(documents.batches, plan, limits);
  if (wrong && plan_violation(cut_batches(documents.batches, plan), plan, limits))
    throw UserError(run.plan_file, ": does not fit the study: ", *wrong);
  if (wrong) notes.push_back({"pieces_alone", "", {}});
  note_idle_ranks(limits.gpus, plan, notes);
}

}  // namespace equipoise

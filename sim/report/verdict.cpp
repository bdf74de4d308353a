#include "sim/report/verdict.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "policies/base/index.h"
#include "policies/base/text.h"
#include "policies/steps.h"
#include "sim/report/words/words.h"
#include "sim/study/row/judge.h"

namespace equipoise {
namespace {

constexpr double kShareWorthNaming = 0.001;
constexpr std::size_t kNamedLosses = 3;

double rate_of(const PolicyResult& row) {
  return *row.metrics.tokens_per_second_per_gpu;
}

// The expected error of the figures, and how much of them is extrapolated.
Notes accuracy_of(const StudyResult& result, const PolicyResult& row) {
  Notes parts;
  const std::optional<ExpectedError>& error = result.expected_error;
  if (!error) {
    parts.push_back({"error_unknown", "", {{"family", result.family.text()}}});
    if (!result.kernel_errors.empty())
      parts.push_back({"kernel_errors", "", {{"errors", result.kernel_errors}}});
  } else if (error->step) {
    parts.push_back({error->is_of_ratio ? "interval_by_ratio" : "step_interval",
                     "",
                     {{"low", error->step->low * *row.metrics.step_seconds},
                      {"high", error->step->high * *row.metrics.step_seconds},
                      {"rows", error->step->rows},
                      {"sources", error->step->sources},
                      {"nearest", error->nearest}}});
  } else {
    parts.push_back(
        {"error_of_jump",
         "",
         {{"family", result.family.text()}, {"nearest", error->nearest}, {"error", error->nearest_error}}});
  }
  if (error && error->speed_up)
    parts.push_back({"ratio_interval", "", {{"low", error->speed_up->low}, {"high", error->speed_up->high}}});
  else
    parts.push_back({"ratio_error_unknown", "", {}});
  const double beyond = beyond_samples_share(row.use);
  if (beyond > 0 && beyond < 0.01) parts.push_back({"few_beyond_samples", "", {}});
  if (beyond >= 0.01) parts.push_back({"beyond_samples", "", {{"share", beyond}}});
  return parts;
}

// The share of time in steps after the end of the data; 0 if no step is full.
double tail_share(const PolicyResult& row) {
  double tails = 0;
  for (const StepFigures& step : row.steps)
    if (step.plan.tail) tails += to_seconds(step.times.makespan);
  return row.metrics.seconds > 0 ? tails / row.metrics.seconds : 0;
}

// Whether most of its time comes after the end of the data: its queues grow, since its lanes take less than
// what arrives. This needs at least four full steps.
bool falls_behind(const PolicyResult& row) {
  const Metrics& m = row.metrics;
  return m.token_delay_mean && m.steps - m.tail_steps >= 4 && tail_share(row) > 0.5;
}

Notes over_baseline(const PolicyResult& first, const PolicyResult& baseline) {
  const Metrics& m = first.metrics;
  if (&first == &baseline) return {{"is_baseline", "", {}}};
  if (!m.speedup) return {{"baseline_did_not_run", "", {{"baseline", baseline.run.label}}}};
  Notes parts{{"over_baseline", "", {{"speedup", *m.speedup}, {"baseline", baseline.run.label}}}};
  if (m.speedup_low && m.speedup_high)
    parts.push_back({"speedup_interval", "", {{"low", *m.speedup_low}, {"high", *m.speedup_high}}});
  return parts;
}

// The first row's global batch over the baseline's, if they differ.
std::optional<Note> batch_over_baseline(const PolicyResult& first, const PolicyResult& baseline) {
  const Metric own = first.metrics.tokens_per_step, other = baseline.metrics.tokens_per_step;
  if (!own || !other || *other <= 0 || std::abs(*own / *other - 1) <= kEqualBatch) return {};
  return Note{"batch_of_fastest", "", {{"ratio", *own / *other}, {"baseline", baseline.run.label}}};
}

Note fastest_of(const StudyResult& result, const Standing& standing) {
  const PolicyResult& first = *standing.first;
  Notes compared = over_baseline(first, result.policies[result.baseline]);
  std::vector<std::pair<std::string, RowRatio>> others;
  for (const Rival& rival : standing.others) others.emplace_back(rival.row->run.label, rival.ratio);
  for (Note& part : over_others(others)) compared.push_back(std::move(part));
  add(compared, batch_over_baseline(first, result.policies[result.baseline]));
  const auto name_of = [](const PolicyResult& row) { return listed(row.run.label); };
  return fastest_note(standing, std::move(compared), {result.family.framework, result.max_delay, name_of});
}

// "2T", "1.5B": a number of tokens as `--tokens` takes it.
std::string decimal_text(double tokens) {
  constexpr std::string_view kUnits[] = {"", "K", "M", "B", "T"};
  std::size_t unit = 0;
  for (; unit + 1 < std::size(kUnits) && tokens >= 1000; ++unit) tokens /= 1000;
  return formatted("%.4g", tokens) + std::string(kUnits[unit]);
}

// What the job takes with each of these rows.
Notes cost_of_job(std::initializer_list<const PolicyResult*> rows, double tokens) {
  Notes costs;
  for (const PolicyResult* row : rows) {
    const std::optional<JobCost> cost = job_cost(*row, tokens);
    if (!cost) continue;
    Notes dollars;
    if (cost->dollars) dollars.push_back({"job_dollars", "", {{"dollars", std::llround(*cost->dollars)}}});
    costs.push_back({"job_of_row",
                     listed(row->run.label),
                     {{"days", cost->days}, {"hours", std::llround(cost->gpu_hours)}, {"dollars", dollars}}});
  }
  if (costs.empty()) return {};
  return {{"cost_of_job", "", {{"tokens", decimal_text(tokens)}, {"rows", costs}}}};
}

Note cost_of(const PolicyResult& first, const PolicyResult& baseline, double tokens) {
  const auto dollars = [](const Metrics& m) {
    Notes part;
    if (m.dollars_per_billion_tokens)
      part.push_back({"cost_dollars", "", {{"dollars", *m.dollars_per_billion_tokens}}});
    return part;
  };
  Notes other;
  const Metrics& base = baseline.metrics;
  if (&first != &baseline && base.gpu_hours_per_billion_tokens)
    other.push_back({"cost_of_baseline",
                     "",
                     {{"baseline", baseline.run.label},
                      {"hours", *base.gpu_hours_per_billion_tokens},
                      {"dollars", dollars(base)}}});
  return {"cost",
          listed(first.run.label),
          {{"hours", first.metrics.gpu_hours_per_billion_tokens.value_or(0)},
           {"dollars", dollars(first.metrics)},
           {"baseline", other},
           {"job",
            &first == &baseline ? cost_of_job({&first}, tokens) : cost_of_job({&first, &baseline}, tokens)}}};
}

std::optional<Note> unequal_batches(const StudyResult& result) {
  std::vector<std::pair<std::string, Metric>> rows;
  for (const PolicyResult& row : result.policies)
    if (row.simulated()) rows.emplace_back(row.run.label, row.metrics.tokens_per_step);
  return batch_difference(rows);
}

// What limits the fastest row, after how much better its CP ranks share attention than the baseline's.
Note limits_of(const PolicyResult& first, const PolicyResult& baseline, int stages) {
  constexpr double kBalanceWorthNaming = 0.05;
  const Note limited{"limited_by", "", {{"losses", Notes{blame_of(first.metrics, stages)}}}};
  const Metric before = baseline.metrics.cp_imbalance, after = first.metrics.cp_imbalance;
  if (!before || !after || *before - *after < kBalanceWorthNaming) return limited;
  return {"cp_balance",
          "",
          {{"baseline", baseline.run.label},
           {"before", *before},
           {"winner", first.run.label},
           {"after", *after},
           {"limited", Notes{limited}}}};
}

// The loss that shrinks most from the baseline to the fastest row, and what limits that row.
Note why_of(const Study& study, const PolicyResult& first, const PolicyResult& baseline) {
  const int stages = study.layout.pipeline;
  const std::vector<Loss> own = losses_of(first.metrics, stages);
  const Note limited = limits_of(first, baseline, stages);
  if (&first == &baseline || !baseline.simulated()) return limited;
  const Loss* gained = nullptr;
  double most = 0.005, left = 0;
  const std::vector<Loss> before = losses_of(baseline.metrics, stages);
  for (const Loss& loss : before) {
    const auto same = std::ranges::find(own, std::string_view(loss.name), &Loss::name);
    const double now = same == own.end() ? 0 : same->share;
    if (loss.share - now <= most) continue;
    most = loss.share - now;
    gained = &loss;
    left = now;
  }
  if (gained == nullptr) return limited;
  return {"why_faster",
          "",
          {{"baseline", baseline.run.label},
           {"before", gained->share},
           {"loss", gained->name},
           {"after", left},
           {"limited", Notes{limited}}}};
}

constexpr double kBytesWorthNaming = 0.05 * kGiB;

std::string recompute_rule_of(const PolicyResult& row) {
  if (row.run.recompute_chosen) return row.metrics.recompute_ratio == 0.0 ? "none" : "chosen by memory";
  const Layout& layout = row.layout;
  if (layout.recompute == Recompute::modules) return names_of(layout.recompute_modules);
  if (layout.recompute != Recompute::layers) return std::string(name_of(layout.recompute));
  return counted(layout.recompute_layers, "layer");
}

// The row whose end-of-data steps count most in its speed-up, though in no mean.
std::optional<Note> tails_of(const StudyResult& result) {
  std::vector<const PolicyResult*> rows;
  for (const PolicyResult& row : result.policies)
    if (row.simulated() && tail_share(row) > kEqualBatch) rows.push_back(&row);
  if (rows.empty()) return {};
  const PolicyResult& row =
      **std::ranges::max_element(rows, {}, [](const auto* one) { return tail_share(*one); });
  const Metrics& m = row.metrics;
  Notes more, others;
  if (m.tail_steps == m.steps)
    more.push_back({"means_of_tails", "", {}});
  else if (falls_behind(row))
    more.push_back({"falls_behind", "", {}});
  if (rows.size() > 1) others.push_back({"tails_of_others", "", {{"rows", rows.size() - 1}}});
  return Note{
      "tails",
      "",
      {{"most",
        Notes{{"tails_of_row",
               row.run.label,
               {{"tails", m.tail_steps}, {"steps", m.steps}, {"share", tail_share(row)}, {"more", more}}}}},
       {"others", others}}};
}

// The policy that needs the most memory; at a tie the first.
const PolicyResult* fullest_of(const StudyResult& result) {
  const PolicyResult* most = nullptr;
  for (const PolicyResult& p : result.policies)
    if (p.capacity_bytes > 0 && (most == nullptr || p.peak.parts.total() > most->peak.parts.total()))
      most = &p;
  return most;
}

}  // namespace

double beyond_samples_share(const RangeUse& use) {
  return use.seconds > 0 ? use.beyond_seconds / use.seconds : 0;
}

std::optional<Note> spread_of(const StudyResult& result) {
  const PolicyResult* first = standing_of(result).first;
  if (first == nullptr) return {};
  const Metrics& m = first->metrics;
  if (!m.gpu_attention_imbalance || !m.gpu_compute_imbalance) return {};
  // A stage without layers has no attention to compare with.
  const auto compared = [](const std::optional<double>& fastest, double mean) {
    Notes parts;
    if (fastest) parts.push_back({"times_fastest", "", {{"ratio", *fastest}}});
    parts.push_back({"times_mean", "", {{"ratio", mean}}});
    return parts;
  };
  return Note{"gpu_spread",
              "",
              {{"attention", compared(m.gpu_attention_slowest_over_fastest, *m.gpu_attention_imbalance)},
               {"compute", compared(m.gpu_compute_slowest_over_fastest, *m.gpu_compute_imbalance)}}};
}

std::optional<Note> fullest_row(const StudyResult& result) {
  const PolicyResult* most = fullest_of(result);
  if (most == nullptr) return {};
  return Note{"holds_most", most->run.label, {{"peak", Notes{peak_of(*most)}}}};
}

std::vector<VerdictLine> verdict_of(const Study& study, const StudyResult& result) {
  const Standing standing = standing_of(result);
  if (standing.first == nullptr) return {{"Fastest", fastest_line(result)}};
  const PolicyResult &first = *standing.first, &baseline = result.policies[result.baseline];
  return {{"Fastest", fastest_line(result)},
          {"Why", why_of(study, first, baseline)},
          {"Cost", cost_of(first, baseline, result.tokens_of_job)},
          {"Accuracy", {"accuracy", "", {{"parts", accuracy_of(result, first)}}}}};
}

Note fastest_line(const StudyResult& result) {
  const Standing standing = standing_of(result);
  if (standing.first != nullptr) return fastest_of(result, standing);
  const bool any = std::ranges::any_of(result.policies, &PolicyResult::simulated);
  return {any ? "none_fits" : "none_runs", "", {}};
}

Note headline_of(const StudyResult& result) {
  Note line = fastest_line(result);
  const PolicyResult* first = standing_of(result).first;
  if (first == nullptr) return line;
  line.numbers.insert_or_assign("compared", over_baseline(*first, result.policies[result.baseline]));
  line.numbers.insert_or_assign("more", Notes{});
  return line;
}

Note fastest_note(const Standing& standing, Notes compared, const StandingWords& words) {
  Notes lead, reordered, elsewhere, sentences;
  if (standing.fastest_any_delay == nullptr)
    lead.push_back({"none_in_framework", "", {{"framework", words.framework}}});
  else if (standing.fastest == nullptr)
    lead.push_back({"none_in_bound", "", {{"bound", words.max_delay}}});
  for (const Rival& rival : standing.faster)
    (rival.row->needs.empty() ? reordered : elsewhere)
        .push_back({"faster_row",
                    "",
                    {{"row", words.name_of(*rival.row)},
                     {"ratio", *rival.ratio.ratio},
                     {"tied", rival.ratio.tied().value_or(false) ? Notes{{"and_tied", "", {}}} : Notes{}},
                     {"why", rival.why}}});
  if (!reordered.empty()) sentences.push_back({"faster_in_other_order", "", {{"rows", reordered}}});
  if (!elsewhere.empty())
    sentences.push_back({"faster_elsewhere", "", {{"framework", words.framework}, {"rows", elsewhere}}});
  return {"fastest",
          words.name_of(*standing.first),
          {{"lead", lead}, {"rate", rate_of(*standing.first)}, {"compared", compared}, {"more", sentences}}};
}

Notes over_others(const std::vector<std::pair<std::string, RowRatio>>& others) {
  Notes parts;
  const auto add_rows = [&](const char* kind, const auto& has) {
    std::vector<std::string> labels;
    for (const auto& [label, ratio] : others)
      if (has(ratio)) labels.push_back(listed(label));
    if (!labels.empty()) parts.push_back({kind, "", {{"rows", all_joined(labels)}}});
  };
  add_rows("significantly_faster", [](const RowRatio& r) { return r.tied() == std::optional(false); });
  add_rows("tied_by_sampling", [](const RowRatio& r) { return r.tied_by() == TiedBy::sampling; });
  add_rows("tied_by_model", [](const RowRatio& r) { return r.tied_by() == TiedBy::model; });
  if (std::ranges::any_of(others, [](const auto& one) { return !one.second.tied(); }))
    parts.push_back({"too_few_batches", "", {}});
  return parts;
}

std::optional<JobCost> job_cost(const PolicyResult& row, double tokens) {
  const Metrics& m = row.metrics;
  if (tokens <= 0 || !m.gpu_hours_per_billion_tokens) return {};
  constexpr double kHoursPerDay = 24;
  JobCost cost;
  cost.gpu_hours = *m.gpu_hours_per_billion_tokens * tokens / 1e9;
  cost.days = cost.gpu_hours / as_double(row.layout.gpus()) / kHoursPerDay;
  if (m.dollars_per_billion_tokens) cost.dollars = *m.dollars_per_billion_tokens * tokens / 1e9;
  return cost;
}

nlohmann::json job_cost_json(const StudyResult& result) {
  if (result.tokens_of_job <= 0) return nullptr;
  nlohmann::json rows = nlohmann::json::array();
  for (const PolicyResult& row : result.policies)
    if (const std::optional<JobCost> cost = job_cost(row, result.tokens_of_job))
      rows.push_back({{"label", row.run.label},
                      {"days", cost->days},
                      {"gpu_hours", cost->gpu_hours},
                      {"dollars", cost->dollars ? nlohmann::json(*cost->dollars) : nlohmann::json(nullptr)}});
  return {{"tokens", result.tokens_of_job}, {"rows", std::move(rows)}};
}

std::vector<Loss> losses_of(const Metrics& m, int stages) {
  std::vector<Loss> losses;
  const auto add = [&losses](const Metric& share, const char* name) {
    if (share && *share > kShareWorthNaming) losses.push_back({*share, name});
  };
  const auto exposed = [&m](Stream axis) { return m.exposed_comm_ratio[at(axis)]; };
  add(m.losses.waiting, stages > 1 ? "waiting for other stages" : "waiting for others");
  add(m.losses.lanes_wait, "waiting for the slowest replica");
  add(exposed(Stream::tp), "TP communication");
  add(exposed(Stream::cp), "CP communication");
  add(exposed(Stream::ep), "EP communication");
  add(exposed(Stream::pp), "transfers between stages");
  add(exposed(Stream::dp), "gradient and parameter exchange");
  add(m.losses.recompute, "recompute");
  std::ranges::stable_sort(losses, std::ranges::greater{}, &Loss::share);
  return losses;
}

Note blame_of(const Metrics& metrics, int stages) {
  const std::vector<Loss> losses = losses_of(metrics, stages);
  if (losses.empty()) return {"computation", "", {}};
  Notes largest;
  for (std::size_t i = 0; i < std::min(kNamedLosses, losses.size()); ++i)
    largest.push_back({"loss", "", {{"name", losses[i].name}, {"share", losses[i].share}}});
  return {"losses", "", {{"losses", largest}}};
}

Note peak_of(const PolicyResult& policy) {
  const MemoryPeak& peak = policy.peak;
  const PeakMoment& moment = policy.peak_moment;
  Notes when;
  if (peak.op_index >= 0) {
    std::string op = concatenated(letter_of(peak.op), peak.micro_batch);
    if (peak.virtual_stage > 0) op += '.' + std::to_string(peak.virtual_stage);
    when.push_back({peak.at_end ? "at_end_of_op" : "at_start_of_op", "", {{"op", op}}});
    if (moment.op)
      when.push_back({"seconds_into_step",
                      "",
                      {{"seconds", to_seconds(peak.at_end ? moment.op->end : moment.op->start)},
                       {"step", moment.step}}});
    else if (moment.step >= 0)
      when.push_back({"in_step", "", {{"step", moment.step}}});
  }
  std::vector<const MemoryPartName*> parts;
  for (const MemoryPartName& part : kMemoryParts)
    if (peak.parts.*part.bytes >= kBytesWorthNaming) parts.push_back(&part);
  const auto bytes = [&](const MemoryPartName* part) { return peak.parts.*(part->bytes); };
  std::ranges::stable_sort(parts, std::ranges::greater{}, bytes);
  Notes named;
  for (const MemoryPartName* part : parts) {
    std::string name = part->key;
    std::replace(name.begin(), name.end(), '_', ' ');
    named.push_back({"memory_part", "", {{"part", name}, {"GiB", bytes(part) / kGiB}}});
  }
  if (!named.empty()) when.push_back({"memory_parts", "", {{"parts", named}}});
  return {"peak",
          "",
          {{"GiB", peak.parts.total() / kGiB},
           {"capacity_GiB", policy.capacity_bytes / kGiB},
           {"stage", peak.stage},
           {"lane", peak.lane},
           {"rank", peak.rank},
           {"parts", when}}};
}

nlohmann::json memory_json(const PolicyResult& policy) {
  if (policy.capacity_bytes == 0) return nullptr;  // because nothing was planned
  const MemoryPeak& peak = policy.peak;
  nlohmann::json node = {{"capacity_bytes", policy.capacity_bytes},
                         {"peak_bytes", peak.parts.total()},
                         {"stage", peak.stage},
                         {"lane", peak.lane},
                         {"rank", peak.rank},
                         {"micro_batch", peak.micro_batch},
                         {"explanation", text_of(peak_of(policy))}};
  for (const MemoryPartName& part : kMemoryParts) node[part.key] = peak.parts.*part.bytes;
  if (peak.op_index >= 0) {
    node["op"] = letter_of(peak.op);
    node["virtual_stage"] = peak.virtual_stage;
    node["at"] = peak.at_end ? "end" : "start";
  }
  if (policy.peak_moment.step >= 0) node["step"] = policy.peak_moment.step;
  if (policy.peak_moment.op && policy.simulated()) {
    node["op_start_seconds"] = to_seconds(policy.peak_moment.op->start);
    node["op_end_seconds"] = to_seconds(policy.peak_moment.op->end);
  }
  if (policy.status == RowStatus::oom) {
    const OutOfMemory& fault = policy.memory_fault;
    node["out_of_memory"] = {{"step", fault.step},
                             {"lane", fault.lane},
                             {"stage", fault.stage},
                             {"rank", fault.rank},
                             {"micro_batch", fault.micro_batch},
                             {"need_bytes", fault.need_bytes},
                             {"capacity_bytes", fault.capacity_bytes},
                             {"message", text_of(policy.reasons.front())}};
  }
  return node;
}

std::optional<Note> recompute_difference(const StudyResult& result) {
  std::vector<std::string> rules, rows;
  bool alike = true;  // whether memory decides for all, though some may need no recompute
  for (const PolicyResult& row : result.policies) {
    if (!row.simulated()) continue;
    alike = alike && row.run.recompute_chosen;
    const auto place = at(std::ranges::find(rules, recompute_rule_of(row)) - rules.begin());
    if (place == rules.size()) {
      rules.push_back(recompute_rule_of(row));
      rows.emplace_back();
    }
    rows[place] += (rows[place].empty() ? "" : ", ") + listed(row.run.label);
  }
  if (alike || rules.size() < 2) return {};
  Notes each;
  for (std::size_t i = 0; i < rules.size(); ++i)
    each.push_back({"recompute_of_rows", "", {{"rule", rules[i]}, {"rows", rows[i]}}});
  return Note{"recompute_differs", "", {{"rules", each}}};
}

std::optional<Note> batch_difference(const std::vector<std::pair<std::string, Metric>>& rows) {
  using Row = std::pair<std::string, Metric>;
  std::vector<Row> known;
  std::ranges::copy_if(rows, std::back_inserter(known), [](const Row& row) { return row.second > 0.0; });
  if (known.empty()) return {};
  const auto [least, most] = std::ranges::minmax_element(known, {}, &Row::second);
  if (*most->second <= (1 + kEqualBatch) * *least->second) return {};
  const auto tokens_of = [](const Row& row) {
    return Note{"tokens_of_row", listed(row.first), {{"tokens", std::llround(*row.second)}}};
  };
  return Note{
      "batches_differ",
      "",
      {{"ratio", *most->second / *least->second}, {"rows", Notes{tokens_of(*least), tokens_of(*most)}}}};
}

Notes differences_of(const StudyResult& result) {
  Notes notes;
  add(notes, recompute_difference(result));
  add(notes, unequal_batches(result));
  add(notes, tails_of(result));
  return notes;
}

Notes notes_of(const Study& study, const StudyResult& result) {
  Notes notes = study.notes;
  notes.insert(notes.end(), result.notes.begin(), result.notes.end());
  add(notes, result.network_note);
  for (const Note& differs : differences_of(result)) notes.push_back(differs);
  return notes;
}

}  // namespace equipoise

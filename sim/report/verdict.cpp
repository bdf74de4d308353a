#include "sim/report/verdict.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "policies/base/index.h"
#include "policies/base/text.h"
#include "policies/steps.h"
#include "sim/study/row/judge.h"

namespace equipoise {
namespace {

constexpr double kShareWorthNaming = 0.001;
constexpr std::size_t kNamedLosses = 3;

std::string times(double ratio) {
  return fixed(ratio, 2) + "x";
}

std::string rate(const PolicyResult& row) {
  return fixed(*row.metrics.tokens_per_second_per_gpu, 0) + " tokens/s/GPU";
}

// "; 57 % of its kernel times are beyond the profile's samples (...)"; empty where none is.
std::string extrapolated(const PolicyResult& row) {
  const double percent = 100 * beyond_samples_share(row.use);
  if (percent == 0) return "";
  return "; " + (percent < 1 ? std::string("less than 1") : fixed(percent, 0)) +
         " % of its kernel times are beyond the profile's samples (measure them: equipoise profile)";
}

// "; steps of this family (megatron, dense, 3B to 20B, H100, bf16) were predicted within 4 % (15 rows left
// out)".
std::string expected(const Study& study, const StudyResult& result) {
  const std::string framework = study.framework.preset.name + ", ";
  if (!result.expected_error)
    return "; how far off such steps are is unknown (" + framework + result.family.text() + ")" +
           (result.kernel_errors.empty() ? ""
                                         : ", the profile's measurements are off by " + result.kernel_errors +
                                               " (median of samples left out, of the worst group of a kind)");
  const FamilyError& error = *result.expected_error;
  const StepFamily& family = error.family;
  const bool same = family.size == result.family.size && family.fp8 == result.family.fp8 &&
                    result.family.gpu.find(family.gpu) != std::string::npos;
  const double percent = 100 * error.mean_abs_error;
  return std::string("; steps of ") + (same ? "this" : "the nearest") + " family (" + framework +
         family.text() + ") were predicted within " + fixed(percent, percent < 9.95 ? 1 : 0) + " % (" +
         counted(error.rows, "row") + " left out)";
}

bool has_interval(const Metrics& m) {
  return m.speedup && m.speedup_low && m.speedup_high;
}

// Time in steps after the end of the data, as a share; 0 where none is full.
double tail_share(const PolicyResult& row) {
  double tails = 0;
  for (std::size_t i = 0; i < row.steps.size(); ++i)
    if (row.tail[i] != 0) tails += to_seconds(row.steps[i].times.makespan);
  return row.metrics.seconds > 0 ? tails / row.metrics.seconds : 0;
}

// Whether most of its time lies after the end of the data: its queues grow, as its lanes take less than what
// arrives. Of fewer than four full steps nothing is said.
bool falls_behind(const PolicyResult& row) {
  const Metrics& m = row.metrics;
  return m.token_delay_mean && m.steps - m.tail_steps >= 4 && tail_share(row) > 0.5;
}

// Of what runs and is not `but`; rows that keep up first.
const PolicyResult* fastest(const StudyResult& result, const PolicyResult* but = nullptr) {
  const PolicyResult* best = nullptr;
  for (const PolicyResult& row : result.policies) {
    if (&row == but || row.status != RowStatus::ok || !row.metrics.tokens_per_second_per_gpu) continue;
    const auto rank = [](const PolicyResult& r) {
      return std::pair(!falls_behind(r), *r.metrics.tokens_per_second_per_gpu);
    };
    if (best == nullptr || rank(row) > rank(*best)) best = &row;
  }
  return best;
}

std::string sure_sentence(const PolicyResult& winner, const PolicyResult& baseline) {
  const Metrics& m = winner.metrics;
  if (&winner == &baseline || !m.speedup) return "";
  if (!has_interval(m))
    return "Fewer than four global batches give no interval: how much of this is the luck of these documents "
           "is not known.";
  const std::string range = "Resampling these documents puts the speed-up between " + times(*m.speedup_low) +
                            " and " + times(*m.speedup_high) + " in 95 % of draws: ";
  return range +
         (*m.speedup_low > 1 ? "it is not the luck of the documents." : "they do not tell the two apart.");
}

std::string labels_of(const std::vector<const PolicyResult*>& rows) {
  return all_joined(rows, ", ", [](const PolicyResult* row) { return listed(row->run.label); });
}

// What the verdict's line says between the winner and that it is fastest, where others are not told apart.
std::string doubt_of(const StudyResult& result, const PolicyResult& winner) {
  const std::vector<const PolicyResult*> near = not_told_apart(result, winner);
  if (near.empty() || !winner.metrics.speedup) return "";
  return ", not told apart from " + labels_of(near) +
         (has_interval(winner.metrics) ? " (their intervals overlap)"
                                       : " (fewer than four global batches give no interval)");
}

// The winner's global batch beside the baseline's, where they are not equal.
std::string batch_of(const PolicyResult& winner, const PolicyResult& baseline) {
  const Metric own = winner.metrics.tokens_per_step, other = baseline.metrics.tokens_per_step;
  if (!own || !other || *other <= 0 || std::abs(*own / *other - 1) <= kEqualBatch) return "";
  return ", with " + times(*own / *other) + " the tokens a step of " + baseline.run.label;
}

std::string unequal_batches(const StudyResult& result) {
  std::vector<std::pair<std::string, Metric>> rows;
  for (const PolicyResult& row : result.policies)
    if (row.simulated()) rows.emplace_back(row.run.label, row.metrics.tokens_per_step);
  return batch_difference(rows);
}

std::string next_sentence(const PolicyResult& winner, const PolicyResult& next,
                          const PolicyResult& baseline) {
  if (&next == &baseline && &winner != &baseline) return "";  // the verdict has said it
  std::string text = "Next is " + next.run.label + " at " + rate(next);
  if (next.metrics.speedup) text += " (" + times(*next.metrics.speedup) + ")";
  const bool overlap =
      has_interval(winner.metrics) && has_interval(next.metrics) && !told_apart(winner.metrics, next.metrics);
  return text + (overlap ? ": too close to tell apart, their intervals overlap." : ".");
}

// What shrinks most from the baseline to the winner.
std::string why_sentence(const Study& study, const PolicyResult& winner, const PolicyResult& baseline) {
  const int stages = study.layout.pipeline;
  const std::vector<Loss> own = losses_of(winner.metrics, stages);
  const std::string limited = "It is limited by " + blame_text(winner.metrics, stages) + ".";
  if (&winner == &baseline || !baseline.simulated()) return limited;
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
  return baseline.run.label + " loses " + fixed(100 * gained->share, 1) + " % of a step to " + gained->name +
         ", " + winner.run.label + " " + fixed(100 * left, 1) + " %. " + limited;
}

constexpr double kBytesWorthNaming = 0.05 * kGiB;

std::string gib(double bytes) {
  return fixed(bytes / kGiB, 1);
}

// How a row decides what it recomputes.
std::string recompute_rule_of(const PolicyResult& row) {
  if (row.run.recompute_chosen) return row.metrics.recompute_ratio == 0.0 ? "none" : "chosen by memory";
  const Layout& layout = row.layout;
  if (layout.recompute == Recompute::modules) return names_of(layout.recompute_modules);
  if (layout.recompute != Recompute::layers) return std::string(name_of(layout.recompute));
  return counted(layout.recompute_layers, "layer");
}

// Rows whose end-of-data steps weigh in their speed-up, and in no mean.
std::string tails_of(const StudyResult& result) {
  std::string text;
  for (const PolicyResult& row : result.policies) {
    if (!row.simulated() || tail_share(row) <= kEqualBatch) continue;
    const Metrics& m = row.metrics;
    text += (text.empty() ? "" : "; ") + row.run.label + ' ' + std::to_string(m.tail_steps) + " of " +
            counted(m.steps, "step") + ", " + fixed(100 * tail_share(row), 1) + " % of its time" +
            (m.tail_steps == m.steps ? ", so that its means are of these"
             : falls_behind(row)     ? std::string(", as its queues grow") +
                                       (winner_of(result) == &row ? ", and no row that runs keeps up"
                                                                  : ": it is not called fastest")
                                 : "");
  }
  return text.empty()
             ? text
             : "end-of-data steps count in time, tokens and speed-up, not in means; more of batch.steps "
               "make them fewer: " +
                   text;
}

// The policy that needs the most memory; ties go to the first.
const PolicyResult* fullest_of(const StudyResult& result) {
  const PolicyResult* most = nullptr;
  for (const PolicyResult& p : result.policies)
    if (p.capacity_bytes > 0 && (most == nullptr || p.peak.parts.total() > most->peak.parts.total()))
      most = &p;
  return most;
}

}  // namespace

const PolicyResult* winner_of(const StudyResult& result) {
  return fastest(result);
}

double beyond_samples_share(const RangeUse& use) {
  return use.calls > 0 ? static_cast<double>(use.beyond_samples) / static_cast<double>(use.calls) : 0;
}

std::string limits_line(const Study& study, const StudyResult& result) {
  const PolicyResult* best = winner_of(result);
  if (best == nullptr) return "";
  const std::string aside = doubt_of(result, *best) + batch_of(*best, result.policies[result.baseline]);
  return best->run.label + aside + (aside.empty() ? "" : ",") + " is fastest; it is limited by " +
         blame_text(best->metrics, study.layout.pipeline) + extrapolated(*best) + expected(study, result) +
         ".\n";
}

bool told_apart(const Metrics& a, const Metrics& b) {
  return has_interval(a) && has_interval(b) &&
         (*a.speedup_low > *b.speedup_high || *b.speedup_low > *a.speedup_high);
}

std::vector<const PolicyResult*> not_told_apart(const StudyResult& result, const PolicyResult& winner) {
  std::vector<const PolicyResult*> near;
  for (const PolicyResult& row : result.policies)
    if (&row != &winner && row.status == RowStatus::ok && !told_apart(winner.metrics, row.metrics))
      near.push_back(&row);
  return near;
}

std::string spread_line(const StudyResult& result) {
  const PolicyResult* best = winner_of(result);
  if (best == nullptr) return "";
  const Metrics& m = best->metrics;
  if (!m.gpu_attention_imbalance || !m.gpu_compute_imbalance) return "";
  // A stage without layers has no attention to set the slowest against.
  const auto against = [](const std::optional<double>& fastest, const std::optional<double>& mean) {
    return (fastest ? times(*fastest) + " that of the fastest and " : std::string()) + times(*mean) +
           " the mean";
  };
  return "Its slowest GPU's attention takes " +
         against(m.gpu_attention_slowest_over_fastest, m.gpu_attention_imbalance) +
         " (all compute: " + against(m.gpu_compute_slowest_over_fastest, m.gpu_compute_imbalance) + ").\n";
}

std::string memory_line(const StudyResult& result) {
  const PolicyResult* most = fullest_of(result);
  return most == nullptr ? "" : most->run.label + " holds the most: " + peak_text(*most) + ".\n";
}

std::vector<std::string> verdict_of(const Study& study, const StudyResult& result) {
  const PolicyResult* winner = winner_of(result);
  if (winner == nullptr) return {"No policy of this study runs: each row below says what would make it."};
  const PolicyResult& baseline = result.policies[result.baseline];
  const PolicyResult* next = fastest(result, winner);
  std::vector<std::string> lines;
  const std::string doubt = doubt_of(result, *winner);  // why, a sentence below says
  const std::string fastest = " trains fastest" + doubt.substr(0, doubt.rfind(" (")) + ": " + rate(*winner);
  if (winner == &baseline)
    lines.push_back(winner->run.label + ", the baseline," + fastest + extrapolated(*winner) +
                    expected(study, result) + ".");
  else if (winner->metrics.speedup)
    lines.push_back(winner->run.label + fastest + ", " + times(*winner->metrics.speedup) + " " +
                    baseline.run.label + extrapolated(*winner) + expected(study, result) + ".");
  else
    lines.push_back(winner->run.label + fastest + "; the baseline " + baseline.run.label + " did not run" +
                    extrapolated(*winner) + expected(study, result) + ".");
  const auto add = [&](const std::string& line) {
    if (!line.empty()) lines.push_back(line);
  };
  add(sure_sentence(*winner, baseline));
  if (const std::string unequal = unequal_batches(result); !unequal.empty())
    add("Global batches are not equal: " + unequal + '.');
  if (next != nullptr) add(next_sentence(*winner, *next, baseline));
  add(why_sentence(study, *winner, baseline));
  return lines;
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

std::string blame_text(const Metrics& metrics, int stages) {
  const std::vector<Loss> losses = losses_of(metrics, stages);
  std::string text;
  for (std::size_t i = 0; i < std::min(kNamedLosses, losses.size()); ++i)
    text += (i == 0 ? "" : ", ") + std::string(losses[i].name) + " " + fixed(100 * losses[i].share, 1) + " %";
  return text.empty() ? "computation" : text + " of a step";
}

std::string peak_text(const PolicyResult& policy) {
  const MemoryPeak& peak = policy.peak;
  const PeakMoment& moment = policy.peak_moment;
  std::ostringstream text;
  text << gib(peak.parts.total()) << " of " << gib(policy.capacity_bytes) << " GiB on stage " << peak.stage
       << " of lane " << peak.lane << ", CP rank " << peak.rank;
  if (peak.op_index >= 0) {
    text << ", at the " << (peak.at_end ? "end" : "start") << " of " << letter_of(peak.op)
         << peak.micro_batch;
    if (peak.virtual_stage > 0) text << '.' << peak.virtual_stage;
    if (moment.op)
      text << " (" << fixed(to_seconds(peak.at_end ? moment.op->end : moment.op->start), 3) << " s into step "
           << moment.step << ')';
    else if (moment.step >= 0)
      text << " in step " << moment.step;
  }
  std::vector<const MemoryPartName*> parts;
  for (const MemoryPartName& part : kMemoryParts)
    if (peak.parts.*part.bytes >= kBytesWorthNaming) parts.push_back(&part);
  const auto bytes = [&](const MemoryPartName* part) { return peak.parts.*(part->bytes); };
  std::ranges::stable_sort(parts, std::ranges::greater{}, bytes);
  const char* separator = ": ";
  for (const MemoryPartName* part : parts) {
    std::string name = part->key;
    std::replace(name.begin(), name.end(), '_', ' ');
    text << separator << name << ' ' << gib(peak.parts.*(part->bytes));
    separator = ", ";
  }
  return text.str();
}

nlohmann::json memory_json(const PolicyResult& policy) {
  if (policy.capacity_bytes == 0) return nullptr;  // nothing was planned
  const MemoryPeak& peak = policy.peak;
  nlohmann::json node = {{"capacity_bytes", policy.capacity_bytes},
                         {"peak_bytes", peak.parts.total()},
                         {"stage", peak.stage},
                         {"lane", peak.lane},
                         {"rank", peak.rank},
                         {"micro_batch", peak.micro_batch},
                         {"explanation", peak_text(policy)}};
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
                             {"message", out_of_memory_text(fault)}};
  }
  return node;
}

std::string recompute_difference(const StudyResult& result) {
  std::vector<std::string> rules, rows;
  bool alike = true;  // all chosen by memory, though some may need none
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
  if (alike || rules.size() < 2) return "";
  std::string text = "recompute differs between rows, and so part of their speed-up: ";
  for (std::size_t i = 0; i < rules.size(); ++i)
    text += (i == 0 ? "" : "; ") + rules[i] + " (" + rows[i] + ")";
  return text + "; one parallel.recompute makes them alike (auto, where one is chosen by memory)";
}

std::string batch_difference(const std::vector<std::pair<std::string, Metric>>& rows) {
  double least = 0, most = 0;
  std::string text;
  for (const auto& [name, tokens] : rows) {
    if (!tokens || *tokens <= 0) continue;
    least = least == 0 ? *tokens : std::min(least, *tokens);
    most = std::max(most, *tokens);
    text += (text.empty() ? "" : ", ") + listed(name) + ' ' + grouped(std::llround(*tokens));
  }
  if (most <= (1 + kEqualBatch) * least) return "";
  return "tokens a step differ by up to " + times(most / least) +
         ", and part of the speed-up is the batch: " + text +
         "; more of batch.steps, or the policies' own sizes, bring them nearer";
}

std::vector<std::string> differences_of(const StudyResult& result) {
  std::vector<std::string> lines;
  for (std::string line : {recompute_difference(result), unequal_batches(result), tails_of(result)})
    if (!line.empty()) lines.push_back(std::move(line));
  return lines;
}

std::vector<std::string> notes_of(const Study& study, const StudyResult& result) {
  std::vector<std::string> notes = study.notes;
  notes.insert(notes.end(), result.notes.begin(), result.notes.end());
  if (!result.network_note.empty()) notes.push_back(result.network_note);
  for (const std::string& differs : differences_of(result)) notes.push_back(differs);
  return notes;
}

}  // namespace equipoise

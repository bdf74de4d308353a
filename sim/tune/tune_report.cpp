#include "sim/tune/tune_report.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <sstream>

#include "policies/base/csv.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/framework/framework_runs.h"
#include "sim/report/study_table.h"
#include "sim/report/summary_json.h"
#include "sim/report/verdict.h"
#include "sim/report/words/words.h"
#include "sim/tune/candidate_text.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr std::size_t kOutcomes = std::size(kOutcomeNames);

std::string cell(const Metric& metric, int digits, double scale = 1) {
  return metric ? fixed(*metric * scale, digits) : "-";
}

std::string speedup_cell(const Metrics& m) {
  if (!m.speedup) return "-";
  std::string text = fixed(*m.speedup, 2) + "x";
  if (m.speedup_low && m.speedup_high)
    text += " (" + fixed(*m.speedup_low, 2) + "-" + fixed(*m.speedup_high, 2) + ")";
  return text;
}

std::array<std::int64_t, kOutcomes> counts_of(const SearchResult& found) {
  std::array<std::int64_t, kOutcomes> counts{};
  for (const Tried& tried : found.tried) ++counts[at(tried.trial.outcome)];
  return counts;
}

// The first reason for an outcome; empty if no candidate ended so.
std::string example_of(const SearchResult& found, Outcome outcome) {
  for (const Tried& tried : found.tried)
    if (tried.trial.outcome == outcome) return tried.trial.reason;
  return "";
}

std::string reasons_text(const SearchResult& found) {
  if (found.tried.empty() && found.left > 0)
    return "No candidate was tried: more --minutes, or less --space.\n";
  std::string text = "No candidate runs.\n";
  const auto too_large = std::find_if(found.too_large_layouts.begin(), found.too_large_layouts.end(),
                                      [](const std::string& why) { return !why.empty(); });
  if (too_large != found.too_large_layouts.end()) text += "States too large: " + *too_large + ".\n";
  for (const Outcome outcome : {Outcome::oom, Outcome::unplaceable, Outcome::refused, Outcome::late})
    if (const std::string reason = example_of(found, outcome); !reason.empty())
      text += std::string(kOutcomeNames[at(outcome)]) + ", for example: " + reason + ".\n";
  return text;
}

std::string what_if_text(const WhatIf& what) {
  std::string text = what.change + ": ";
  if (!what.winner_runs)
    return text + "the winner does not run (" + what.reason + ")" +
           (what.rival.empty() ? "" : "; " + what.rival + " would be the fastest") + ".\n";
  if (what.rival_seconds <= 0) return text + "the winner runs, no other that was compared does.\n";
  const double ahead = what.rival_seconds / what.winner_seconds;
  if (what.stays)
    return text + "stays the fastest, " + fixed(ahead, 3) + "x the speed of " + what.rival + ".\n";
  return text + what.rival + " is faster, " + fixed(1 / ahead, 3) + "x.\n";
}

TextTable ranking_table(const TuneReport& report) {
  TextTable table({"#", "policy", "layout", "recompute", "tokens/s/GPU", "step s", "tokens/step",
                   "speed-up (95 %)", "MFU %", "bubble %", "delay (max)", "mem. free GiB", "runs in"});
  for (const std::size_t column : {1U, 2U, 3U}) table.align_left(column);
  for (std::size_t i = 0; i < report.ranking.size(); ++i) {
    const PolicyResult& row = report.ranking[i].row();
    const Metrics& m = row.metrics;
    table.add({std::to_string(i + 1), label_of(report.ranking[i]), layout_text(row.layout),
               recompute_text(row.layout), cell(m.tokens_per_second_per_gpu, 0), cell(m.step_seconds, 3),
               cell(m.tokens_per_step, 0), speedup_cell(m), cell(m.mfu, 1, 100),
               row.layout.pipeline > 1 ? cell(m.bubble_ratio, 1, 100) : "-",
               cell(m.token_delay_mean, 2) + " (" + cell(m.token_delay_max, 0) + ")",
               fixed((row.capacity_bytes - row.peak.parts.total()) / kGiB, 1),
               cell_of(row, "runs in", false)});
  }
  return table;
}

json what_if_json(const WhatIf& what) {
  return {{"change", what.change},
          {"winner_runs", what.winner_runs},
          {"stays", what.stays},
          {"winner_seconds_per_token", what.winner_runs ? json(what.winner_seconds) : json(nullptr)},
          {"rival", what.rival.empty() ? json(nullptr) : json(what.rival)},
          {"rival_seconds_per_token", what.rival_seconds > 0 ? json(what.rival_seconds) : json(nullptr)},
          {"reason", what.reason.empty() ? json(nullptr) : json(what.reason)}};
}

// summary.json's row without figures measured on this machine.
json row_json(const Study& study, const StudyResult& result) {
  json summary = summary_json(study, result), row = summary["policies"][0];
  row["study_notes"] = summary["study"]["notes"];
  for (const char* key : {"measured", "gpu_compute_seconds"}) row.erase(key);
  return row;
}

json counts_json(const TuneReport& report) {
  const SearchResult& found = report.found;
  const NoCandidates& none = report.candidates.none;
  json node = {{"candidates", found.candidates},
               {"tried", found.tried.size()},
               {"slower_by_bound", found.bounded},
               {"states_do_not_fit", found.too_large},
               {"not_reached", found.left},
               {"no_candidates",
                {{"other_gpus", none.gpus},
                 {"do_not_go_together", none.impossible},
                 {"same_as_another", none.alike},
                 {"example", none.example.empty() ? json(nullptr) : json(none.example)}}}};
  if (!none.layouts_without.empty() || !none.rows_without.empty())  // by the study's key
    node["no_flag"] = {{"layouts", none.layouts_without}, {"policies", none.rows_without}};
  const auto counts = counts_of(found);
  for (std::size_t i = 0; i < kOutcomes; ++i) node["outcomes"][std::string(kOutcomeNames[i])] = counts[i];
  return node;
}

// Numbers of global batches that candidates run on, in order; null means all.
json search_json(const SearchResult& found) {
  json batches = json::array();
  for (const int few : found.batches) batches.push_back(few > 0 ? json(few) : json(nullptr));
  return {
      {"kind", "successive halving"}, {"batches", std::move(batches)}, {"not_compared", found.not_compared}};
}

json tried_json(const Tried& tried) {
  json node = {{"layout", tried.point.layout},
               {"row", tried.point.row},
               {"outcome", kOutcomeNames[at(tried.trial.outcome)]},
               {"seconds_per_token",
                tried.trial.seconds_per_token > 0 ? json(tried.trial.seconds_per_token) : json(nullptr)},
               {"steps", tried.trial.steps}};
  if (tried.trial.batches > 0) node["of_batches"] = tried.trial.batches;
  if (tried.trial.token_delay) node["token_delay_mean"] = *tried.trial.token_delay;
  if (tried.trial.peak_bytes > 0) node["peak_memory_bytes"] = tried.trial.peak_bytes;
  if (!tried.trial.reason.empty()) node["reason"] = tried.trial.reason;
  return node;
}

// " that megatron runs in the order of the data": what the winner is the fastest of, where faster candidates
// were passed over; else empty. What another preset than a framework runs is not said.
std::string claim_text(const TuneReport& report) {
  if (report.places.faster.empty()) return "";
  const std::string& framework = report.baseline.study.framework.preset.name;
  const Claim claim = report.found.tried[report.found.ranking.front()].trial.claim;
  return (framework_runs(framework) != nullptr ? " that " + framework + " runs" : "") +
         (claim == Claim::fastest ? " in the order of the data" : "");
}

}  // namespace

std::string without_flag_text(const NoCandidates& none) {
  std::string text;
  for (const auto& [what, counts] :
       {std::pair("layout", &none.layouts_without), {"policy", &none.rows_without}}) {
    std::int64_t all = 0;
    for (const auto& [key, count] : *counts) all += count;
    const auto one = [](const auto& of) { return of.first + ' ' + grouped(of.second); };
    if (all > 0)
      text += (text.empty() ? "Excluded for want of a flag: " : ", ") + counted(all, what) + " (" +
              all_joined(*counts, ", ", one) + ")";
  }
  return text.empty() ? "" : text + ".\n";
}

std::string baseline_text(const Baseline& baseline) {
  const PolicyResult& row = baseline.row();
  std::string text =
      "Speed-up over " + row.run.label + " on the study's " + layout_and_recompute(baseline.study.layout);
  if (!row.simulated())
    return text + ": none, it does not run (" + reason_text(row.reasons) +
           "; `equipoise study` says with what it would).\n";
  return text + ": " + cell(row.metrics.tokens_per_second_per_gpu, 0) + " tokens/s/GPU on " +
         counted(baseline.study.layout.gpus(), "GPU") + ", by seconds per token.\n";
}

std::string what_ifs_text(const TuneReport& report) {
  std::string text = report.what_if.empty() ? "" : "What if the winner is run on something else:\n";
  for (const WhatIf& what : report.what_if) text += "  " + what_if_text(what);
  if (report.what_if_over) text += "What ifs are not all run: they have a quarter of --minutes.\n";
  return text;
}

std::string left_text(const TuneReport& report) {
  std::string text;
  const std::vector<Place>& places = report.places.ranking;
  for (std::size_t i = report.ranking.size(); report.cut_short && i < places.size(); ++i)
    text += std::to_string(i + 1) + " by the search: " + found_text(report, places[i]) + ".\n";
  for (std::size_t i = report.faster.size(); report.cut_short && i < report.places.faster.size(); ++i)
    text += "faster, but passed over, by the search: " + found_text(report, report.places.faster[i]) + ".\n";
  return text;
}

std::string label_of(const RankedRow& ranked) {
  const std::size_t alike = ranked.alike.size();
  return ranked.row().run.label + (alike > 0 ? concatenated(" and ", alike, " alike") : "");
}

std::string counts_text(const SearchResult& found) {
  const auto counts = counts_of(found);
  const auto tried = static_cast<std::int64_t>(found.tried.size());
  const auto of = [&](Outcome outcome) { return grouped(counts[at(outcome)]); };
  std::string text = counted(found.candidates, "candidate") + ": " + grouped(tried) + " tried (" +
                     of(Outcome::ok) + " to the end, " + of(Outcome::slower) + " until proven slower, " +
                     of(Outcome::oom) + " out of memory, " + of(Outcome::refused) + " refused";
  if (counts[at(Outcome::unplaceable)] > 0)
    text += ", " + of(Outcome::unplaceable) + " cannot place a document";
  if (counts[at(Outcome::late)] > 0)
    text += ", " + of(Outcome::late) + " over --max-delay, which bounds the mean and the largest delay";
  if (counts[at(Outcome::dropped)] > 0) text += ", " + of(Outcome::dropped) + " dropped after few steps";
  text += ')';
  std::vector<std::string> untried;
  if (found.bounded > 0) untried.push_back(grouped(found.bounded) + " slower by their lower bound");
  if (found.too_large > 0) untried.push_back(grouped(found.too_large) + " whose states alone do not fit");
  const char* const in = found.interrupted ? "" : found.timed_out ? " within the time" : " within the budget";
  if (found.left > 0) untried.push_back(grouped(found.left) + " not reached" + in);
  return text + (untried.empty() ? "" : ". Untried are " + all_joined(untried)) + ".\n";
}

std::string halving_text(const SearchResult& found) {
  std::string text;
  if (found.dropped() > 0) {
    std::vector<int> few = found.batches;
    few.pop_back();
    text =
        "Search by successive halving: candidates run on " +
        all_joined(few, ", then ", [](int batches) { return std::to_string(batches); }) +
        " steps first, and on all where they are among the fastest. The dropped ones are estimated slower, "
        "not proven.\n";
  }
  return text;
}

std::string not_compared_text(const SearchResult& found) {
  if (found.not_compared.empty()) return "";
  return concatenated("Not compared, since ",
                      found.timed_out ? "no trial of them ended within their share of the time: "
                                      : "nothing was tried of them: ",
                      all_joined(found.not_compared), ".\n");
}

std::string reach_text(const TuneReport& report) {
  const SearchResult& found = report.found;
  if (const std::string claim = claim_text(report); !claim.empty())
    return concatenated("the fastest", found.complete() ? "" : " tried", claim);
  const std::string tried = grouped(static_cast<std::int64_t>(found.tried.size())) + " tried, of ";
  return "the fastest of " + (found.complete() ? "" : tried) + counted(found.candidates, "candidate");
}

std::string end_text(const TuneReport& report) {
  const SearchResult& found = report.found;
  const std::string claim = claim_text(report);
  const std::string text =
      found.complete() ? concatenated("No candidate", claim.empty() ? " of the space" : claim,
                                      " is faster than the first: every one was run or proven slower.")
      : found.interrupted
          ? "Interrupted: the search is not finished; --resume after tune --out goes on with it."
      : found.timed_out
          ? "The time was over before the search was: more --minutes, with --resume after tune, reach more."
          : "What was not reached is what promised least; a larger --budget, with --resume, reaches more.";
  if (!report.cut_short || report.places.ranking.empty()) return text;
  return text + " What follows the search was ended early; --resume after tune runs it.";
}

std::string found_text(const TuneReport& report, const Place& place) {
  const double gpus = static_cast<double>(report.candidates.layouts.front().layout.gpus());
  return candidate_text(report.candidates, place.point) + ": " +
         fixed(1 / (place.seconds_per_token * gpus), 0) + " tokens/s/GPU";
}

std::string own_rows_text(const TuneReport& report) {
  std::string text;
  if (report.places.ranking.front().is_own)
    text = "The first is a row of the study, which was run on the best layout after the search.\n";
  if (const auto& omitted = report.places.omitted; !omitted.empty())
    text += concatenated("best.json is without ", all_joined(omitted),
                         ", which `study` would name first. The search did not reach it, or --space, --for "
                         "or --max-delay exclude it.\n");
  return text;
}

std::optional<Note> unequal_batches(const TuneReport& report) {
  const PolicyResult& baseline = report.baseline.row();
  std::vector<std::pair<std::string, Metric>> rows = {{baseline.run.label, baseline.metrics.tokens_per_step}};
  for (std::size_t i = 0; i < report.ranking.size(); ++i)
    rows.emplace_back("#" + std::to_string(i + 1), report.ranking[i].row().metrics.tokens_per_step);
  return batch_difference(rows);
}

static RowRatio winner_over(const TuneReport& report, const RankedRow& other) {
  const StudyResult& result = report.ranking.front().result;
  return ratio_of(result.policies.front(), other.row(), result.batches, result.expected_error);
}

Note fastest_line(const TuneReport& report, std::size_t shown) {
  const StudyResult& result = report.ranking.front().result;
  const double max_delay = report.options.order_delay;
  std::vector<const PolicyResult*> rows;
  std::vector<std::pair<std::string, RowRatio>> others;
  for (const RankedRow& one : report.ranking) {
    rows.push_back(&one.row());
    if (rows.size() > 1 && rows.size() <= shown)
      others.emplace_back("#" + std::to_string(rows.size()), winner_over(report, one));
  }
  for (const RankedRow& one : report.faster) rows.push_back(&one.row());
  const PolicyResult& winner = result.policies.front();
  const auto name_of = [&](const PolicyResult& row) {
    const bool is_alike = &row != &winner && row.layout == winner.layout;
    return is_alike ? row.run.label + " on the same layout" : candidate_text(row.run.label, row.layout);
  };
  return fastest_note(standing_of(rows, max_delay, result.batches, result.expected_error),
                      over_others(others), {result.family.framework, max_delay, name_of});
}

std::string about_text(const TuneReport& report) {
  const Study& study = report.baseline.study;
  return study.model.name + " on " + counted(report.candidates.layouts.front().layout.gpus(), "GPU") + ", " +
         counted(study.steps, "step") + " of every candidate that runs to the end, framework " +
         study.framework.preset.name;
}

std::string tune_table(const TuneReport& report) {
  std::ostringstream out;
  const SearchResult& found = report.found;
  out << report.baseline.study.name << ": " << about_text(report) << '\n';
  if (report.ranking.empty()) {
    out << (!report.places.ranking.empty() ? end_text(report) + '\n' + left_text(report)
            : found.interrupted            ? "Interrupted before a candidate ran.\n"
                                           : reasons_text(found));
    out << counts_text(found) << halving_text(found) << not_compared_text(found)
        << without_flag_text(report.candidates.none);
    return out.str();
  }
  out << ranking_table(report).text();
  out << left_text(report) << "Fastest: " << line_of(fastest_line(report)) << own_rows_text(report)
      << baseline_text(report.baseline);
  if (const std::optional<Note> unequal = unequal_batches(report))
    out << "Global batches are not equal: " << text_of(*unequal) << ".\n";
  const RankedRow& winner = report.ranking.front();
  out << "The first is limited by " << text_of(blame_of(winner.row().metrics, winner.study.layout.pipeline))
      << ".\n"
      << line_of(fullest_row(winner.result)) << counts_text(found) << halving_text(found)
      << not_compared_text(found) << without_flag_text(report.candidates.none) << end_text(report) << '\n';
  return out.str() + what_ifs_text(report) + source_line(winner.study, winner.result) + '\n';
}

std::string tune_csv(const TuneReport& report) {
  std::ostringstream out;
  out.precision(12);
  out << "rank,policy,layout,recompute,tokens_per_second_per_gpu,step_seconds,tokens_per_step,speedup,"
         "speedup_low,"
         "speedup_high,mfu,bubble_ratio,token_delay_mean,token_delay_max,token_delay_held,peak_memory_"
         "bytes,runs_in\n";
  for (std::size_t i = 0; i < report.ranking.size(); ++i) {
    const PolicyResult& row = report.ranking[i].row();
    out << i + 1 << ',' << csv_cell(row.run.label) << ',' << csv_cell(layout_text(row.layout)) << ','
        << csv_cell(recompute_text(row.layout));
    const Metrics& m = row.metrics;
    for (const Metric& metric : {m.tokens_per_second_per_gpu, m.step_seconds, m.tokens_per_step, m.speedup,
                                 m.speedup_low, m.speedup_high, m.mfu, m.bubble_ratio, m.token_delay_mean,
                                 m.token_delay_max, m.token_delay_held, m.peak_memory_bytes})
      out << ',' << (metric ? json(*metric).dump() : "");
    out << ',' << (row.runs_in ? kRunsInNames[at(*row.runs_in)] : "") << '\n';
  }
  return out.str();
}

json tune_json(const TuneReport& report) {
  const Study& study = report.baseline.study;
  const StudyResult& baseline = report.baseline.result;
  json layouts = json::array(), rows = json::array(), ranking = json::array(), faster = json::array(),
       tried = json::array(), what_if = json::array();
  for (const LayoutChoice& layout : report.candidates.layouts) layouts.push_back(layout.keys);
  for (const RowChoice& row : report.candidates.rows) rows.push_back(row.entry);
  const auto json_of = [&](const RankedRow& ranked) {
    json row = row_json(ranked.study, ranked.result);
    row["winner_over"] = ratio_json(winner_over(report, ranked));
    row["alike"] = ranked.alike;
    row["layout"] = report.candidates.layouts[ranked.point.layout].keys;
    row["entry"] = report.candidates.rows[ranked.point.row].entry;
    return row;
  };
  for (const RankedRow& ranked : report.ranking) {
    ranking.push_back(json_of(ranked));
    ranking.back()["rank"] = ranking.size();
  }
  for (const RankedRow& passed : report.faster) {
    faster.push_back(json_of(passed));
    faster.back()["reason"] = reason_text(why_passed_over(passed.row(), report.options.order_delay));
  }
  for (const Tried& one : report.found.tried) tried.push_back(tried_json(one));
  for (const WhatIf& what : report.what_if) what_if.push_back(what_if_json(what));
  json base = row_json(study, baseline);
  base["layout_text"] = layout_and_recompute(study.layout);
  base["gpus"] = study.layout.gpus();
  const auto bound = [](double delay) {
    return delay < std::numeric_limits<double>::infinity() ? json(delay) : json(nullptr);
  };
  return {{"schema", "equipoise.tune/1"},
          {"study",
           {{"name", study.name},
            {"model", study.model.name},
            {"framework", study.framework.preset.name},
            {"gpus", report.candidates.layouts.front().layout.gpus()},
            {"trace", baseline.trace_origin},
            {"steps", study.steps},
            {"tokens", baseline.tokens}}},
          {"objective", "tokens_per_second_per_gpu"},
          {"budget", report.options.budget},
          {"max_delay", bound(report.options.most_delay)},
          {"max_longest_delay", bound(report.options.longest_delay)},
          {"space", space_json(report.space)},
          {"complete", report.found.complete()},
          {"interrupted", report.found.interrupted || report.cut_short},
          {"timed_out", report.found.timed_out},
          {"what_if_timed_out", report.what_if_over},
          {"counts", counts_json(report)},
          {"search", search_json(report.found)},
          {"baseline", std::move(base)},
          {"ranking", std::move(ranking)},
          {"faster", std::move(faster)},
          {"what_if", std::move(what_if)},
          {"layouts", std::move(layouts)},
          {"rows", std::move(rows)},
          {"tried", std::move(tried)}};
}

}  // namespace equipoise

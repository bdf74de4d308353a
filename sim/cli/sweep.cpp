#include "sim/cli/sweep.h"

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <sstream>

#include "policies/base/csv.h"
#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"
#include "sim/cli/command_merge.h"
#include "sim/cli/merged_parts.h"
#include "sim/report/receipt.h"
#include "sim/report/result_csv.h"
#include "sim/report/study_screen.h"
#include "sim/report/summary_json.h"
#include "sim/study/read/naming.h"
#include "sim/study/row/details.h"
#include "traces/json_object.h"

namespace equipoise {

using nlohmann::json;

CaseText case_text(const std::string& name, ShownCase shown, const Study& study, const StudyResult& result,
                   json page) {
  CaseText text{std::move(shown), sweep_case(name, study, result), summary_json(study, result), "", {},
                std::move(page)};
  text.summary["case"] = name;
  std::istringstream lines(summary_csv(study, result));
  std::getline(lines, text.csv_header);
  text.csv_header.insert(0, "case,");
  for (std::string line; std::getline(lines, line);) text.csv.push_back(csv_cell(name) + "," + line);
  return text;
}

json to_json(const CaseText& text) {
  return {{"case", text.table.name},
          {"shown", to_json(text.shown)},
          {"lines", text.table.lines},
          {"reasons", text.table.reasons},
          {"source", text.table.source},
          {"summary", text.summary},
          {"csv_header", text.csv_header},
          {"csv", text.csv},
          {"page", text.page}};
}

CaseText case_text(const json& node) {
  return {shown_case(node.at("shown")),
          {node.at("case").get<std::string>(), node.at("lines").get<std::vector<std::vector<std::string>>>(),
           node.at("reasons").get<std::string>(), node.at("source").get<std::string>()},
          node.at("summary"),
          node.at("csv_header").get<std::string>(),
          node.at("csv").get<std::vector<std::string>>(),
          node.at("page")};
}

void SweepPrinter::add(const CaseText& text) {
  if (how_.of_seeds) spread_.add(text.table.name, text.page);
  shown_.push_back(text.shown);
  if (how_.prints_table()) {  // which has these
    std::erase_if(shown_.back().warnings, [&](const Warning& warning) {
      return text.table.reasons.find(warning.text) != std::string::npos;
    });
    table_.add(text.table);
  }
  if (how_.format == Format::json) summaries_.push_back(text.summary);
  if (csv_.empty()) csv_ = text.csv_header + "\n";
  for (const std::string& line : text.csv) csv_ += line + "\n";
  page_.add(text.page);
}

void SweepPrinter::finish() {
  if (how_.of_seeds) {
    out_ << (how_.format == Format::json  ? spread_.as_json().dump(2) + "\n"
             : how_.format == Format::csv ? spread_.csv()
                                          : spread_.table(how_.typed.width));
  } else if (how_.format == Format::json) {
    out_ << json(summaries_).dump(2) << '\n';
  } else if (how_.format == Format::csv) {
    out_ << csv_;
  } else if (how_.wide && !table_.empty()) {
    const auto [headline, more, faster] = page_.finding();
    out_ << table_.text() << "Found: " << printable(headline) << '.' << (more.empty() ? "" : " ")
         << printable(more) << '\n';
    if (!faster.empty()) out_ << "Faster: " << printable(faster) << '\n';
  } else if (!shown_.empty()) {
    out_ << sweep_screen(shown_, page_, how_.file, how_.typed);
  }
}

std::vector<Warning> SweepPrinter::warnings() const {
  if (how_.format == Format::table && !how_.wide && !how_.of_seeds) return {};  // the screen has them
  return warnings_of_cases(shown_, page_);
}

void SweepPrinter::write(const std::string& folder) const {
  write_file_atomically(folder + "/report.html", page_.html());
  write_file_atomically(folder + "/sweep.csv", csv_);
  if (how_.of_seeds) write_file_atomically(folder + "/seeds.csv", spread_.csv());
}

static JournalEntry into(std::map<std::size_t, CaseText>& finished) {
  return [&finished](const json& node, const std::string& where) {
    CaseText text = case_text(node);
    const std::size_t cells = 1 + comparison_header(true).size();  // with the case's name in front
    for (const std::vector<std::string>& line : text.table.lines)
      if (line.size() != cells)
        throw UserError(where + ": lines: expected " + std::to_string(cells) + " cells, found " +
                        std::to_string(line.size()) + " (another version of the program?)");
    SweepPage().add(text.page);  // throws if it is none
    finished.emplace(node.at("n").get<std::size_t>(), std::move(text));
  };
}

static SweepJournalText read_sweep_journal(const std::string& path) {
  SweepJournalText text;
  text.asked = read_line_journal(path, kSweepJournalKind, into(text.finished)).asked;
  return text;
}

SweepJournal::SweepJournal(std::string path, const json& asked, bool resume)
    : lines_(std::move(path), kSweepJournalKind, asked, resume, into(finished_)) {}

const CaseText* SweepJournal::find(std::size_t number) const {
  const auto found = finished_.find(number);
  return found == finished_.end() ? nullptr : &found->second;
}

void SweepJournal::add(std::size_t number, const CaseText& text) {
  json line = to_json(text);
  line["n"] = number;
  lines_.write(line.dump() + "\n");
}

void SweepJournal::remove() const {
  std::error_code ignored;
  std::filesystem::remove(lines_.path(), ignored);
}

// Everything that decides what is written. A journal of anything else is refused.
static json journal_key(const std::vector<StudyCase>& cases, const StudyOptions& options,
                        const AskedStudy& asked, const Share& share) {
  const RunStudyOptions run = run_options(options);
  const DetailOptions& details = run.details;
  const TimelineSelection& drawn = details.selection;
  json key = {{"study", asked.file},
              {"set", asked.set},
              {"options", options_json(run)},
              {"timelines",
               {details.steps, details.gzip, details.chakra, drawn.lanes, drawn.stages, drawn.ranks,
                drawn.counters.memory, drawn.counters.tokens}},
              {"max_delay", run.max_delay.value_or(asked.file.value("max_delay", Study().max_delay))},
              {"tokens", run.tokens_of_job},
              // A case beyond the limits is refused.
              {"limits", {options.memory.typed ? options.memory.bytes : 0, options.max_output_GB}},
              {"cases", json::array()}};
  key["inputs"] = json::object();
  const std::string folder = std::filesystem::path(asked.path).parent_path().string();
  for (const StudyCase& c : cases) {
    key["cases"].push_back(c.name);
    add_hashes_of_files(file_of(asked.file, c.assignments), folder, key["inputs"]);
  }
  if (options.seeds > 0) key["seeds"] = options.seeds;
  if (!share.is_all()) key["share"] = {share.index, share.count};
  return key;
}

Sweep::Sweep(const std::vector<StudyCase>& cases, const StudyOptions& options, const AskedStudy& asked,
             std::ostream& out)
    : cases_(cases),
      options_(options),
      set_(static_cast<std::ptrdiff_t>(asked.set.size())),
      share_(chosen_share(options.shard)),
      folder_(options.out),
      printer_({options.format,
                options.wide,
                options.seeds > 0,
                asked.path,
                {options.out, asked.set, words_of(options.job), screen_width()}},
               out) {
  if (!share_.is_all() && folder_.empty())
    throw UserError("--shard, mpirun and srun need --out DIR, from which `equipoise merge` takes the shares");
  if (!share_.is_all()) folder_ = (std::filesystem::path(folder_) / share_.folder()).string();
  if (!folder_.empty())
    journal_ = std::make_unique<SweepJournal>((std::filesystem::path(folder_) / kSweepJournal).string(),
                                              journal_key(cases, options, asked, share_), options.resume);
}

int Sweep::run(CaseRunner& runner, std::ostream& log) {
  std::size_t finished = 0, mine = 0;
  for (std::size_t i = 0; i < cases_.size(); ++i) mine += share_.has(i) ? 1 : 0;
  TimeLeft left;
  std::string time;  // the time that was printed last
  try {
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      if (!share_.has(i)) continue;
      if (std::string text = left.text(static_cast<double>(finished) / static_cast<double>(mine));
          !text.empty())
        time = std::move(text);
      const std::string place = "case " + std::to_string(finished + 1) + " of " + std::to_string(mine) +
                                (time.empty() ? ", " : ", " + time + ", ");
      naming(cases_[i].name, [&] { finish(i, place, runner); });
      ++finished;
    }
  } catch (const Interrupted&) {
    log << "interrupted: " << finished << " of " << counted(mine, "case") << " finished"
        << (journal_ ? "; --resume goes on from there" : "") << '\n';
  }
  print(finished, log);
  if (finished < mine) return kInterrupted;
  if (share_.is_all() && journal_) journal_->remove();
  if (!share_.is_all() && !options_.quiet)
    log << "shard " << share_.index << '/' << share_.count << ": " << mine << " of "
        << counted(cases_.size(), "case") << "; `equipoise merge OUT " << options_.out
        << "` puts those of all shards together\n";
  return runner.verified() ? 0 : 1;
}

void Sweep::print(std::size_t finished, std::ostream& log) {
  if (share_.is_all()) {
    if (!folder_.empty() && finished > 0) printer_.write(folder_);
    printer_.finish();
  }
  std::vector<Warning> warnings = printer_.warnings();
  if (options_.notes)  // those of cases were printed with their case
    std::erase_if(warnings, [](const Warning& warning) { return !warning.where.empty(); });
  print_warnings(warnings, options_.wide ? warnings.size() : kWarningsShown, log);
}

void Sweep::finish(std::size_t i, const std::string& place, CaseRunner& runner) {
  if (const CaseText* known = journal_ ? journal_->find(i) : nullptr) return printer_.add(*known);
  const StudyCase& c = cases_[i];
  const StudyResult result = runner.run(c, folder_, place);
  const CaseText text =
      case_text(c.name, shown_case({c.assignments.begin() + set_, c.assignments.end()}, c.study, result),
                c.study, result, case_of_page(c.assignments, file_name(c.name), c.study, result));
  printer_.add(text);
  if (result.incomplete) throw Interrupted();
  if (journal_) journal_->add(i, text);
}

int merge_sweep(const MergeOptions& options, const std::vector<std::string>& folders, std::ostream& out) {
  PartsFound parts(kSweepJournalKind);
  std::map<std::size_t, CaseText> finished;
  std::map<std::size_t, std::string> folder_of;
  for (const std::string& folder : folders) {
    const std::string path = (std::filesystem::path(folder) / kSweepJournal).string();
    SweepJournalText text = read_sweep_journal(path);
    parts.add(std::move(text.asked), path);
    for (const auto& [number, one] : text.finished) folder_of[number] = folder;
    finished.merge(text.finished);
  }
  const auto cases = refusing_other_types(
      folders.front(), [&] { return parts.whole().at("cases").get<std::vector<std::string>>(); });
  SweepPrinter printer({options.format,
                        options.wide,
                        parts.whole().contains("seeds"),
                        "",
                        {options.out, {}, {}, screen_width()}},
                       out);
  for (std::size_t i = 0; i < cases.size(); ++i)
    if (!finished.contains(i))
      throw UserError("merge: expected all " + std::to_string(cases.size()) + " cases, found " +
                      std::to_string(finished.size()) + "; " + cases[i] +
                      " is not finished: run its shard again with --resume");
  for (const auto& [number, text] : finished) {
    if (number >= cases.size() || text.table.name != cases[number] ||
        cases[number].find('=') == std::string::npos)
      throw UserError("merge: " + folder_of[number] + ": n " + std::to_string(number) + ": found " +
                      text.table.name + ", which is no such case of this sweep");
    const std::string name = file_name(text.table.name);
    StagedFolder folder(std::filesystem::path(options.out) / name, "merge");
    std::filesystem::copy(std::filesystem::path(folder_of[number]) / name, folder.path(),
                          std::filesystem::copy_options::recursive);
    folder.commit();
    printer.add(text);
  }
  printer.write(options.out);
  printer.finish();
  return 0;
}

}  // namespace equipoise

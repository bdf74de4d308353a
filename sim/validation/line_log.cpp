#include "sim/validation/line_log.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"

namespace equipoise {
namespace {

// --- Lines

// The line without terminal colours, in lower case, with a space for each underscore and one in front.
// Frameworks differ in these, and the space lets a key match at the very beginning, too.
std::string plain_line(std::string_view line) {
  std::string plain(" ");
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b' && i + 1 < line.size() && line[i + 1] == '[') {
      i = std::min(line.find('m', i), line.size() - 1);
      continue;
    }
    const char c = line[i] == '_' || line[i] == '\t' ? ' ' : line[i];
    plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return plain;
}

// Calls body(line, its number) for every line. A progress bar ends its lines with a carriage return.
template <class Body>
void each_line(std::string_view text, const Body& body) {
  std::size_t number = 1;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of("\r\n"), text.size());
    body(text.substr(0, end), number);
    if (end < text.size() && text[end] == '\n') ++number;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// The number after `key`, if there is one. Spaces, dots and a colon in between are skipped; "4,435" and
// "4.43k" are numbers.
std::optional<double> number_after(std::string_view line, std::string_view key) {
  const std::size_t found = line.find(key);
  if (found == std::string_view::npos) return std::nullopt;
  std::size_t at = line.find_first_not_of(" :=.", found + key.size());
  std::string digits;
  for (; at < line.size() && (std::isalnum(static_cast<unsigned char>(line[at])) != 0 || line[at] == '.' ||
                              line[at] == ',' || line[at] == '-' || line[at] == '+');
       ++at)
    if (line[at] != ',')
      digits += line[at];
    else if (at + 1 == line.size() || std::isdigit(static_cast<unsigned char>(line[at + 1])) == 0)
      break;
  double value = 0;
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc()) return std::nullopt;
  const std::string_view suffix(rest, static_cast<std::size_t>(digits.data() + digits.size() - rest));
  return suffix == "k" ? value * 1e3 : suffix == "m" ? value * 1e6 : value;
}

// --- Forms of a line

enum class Figure { milliseconds, seconds, tokens_per_second_per_gpu, samples_per_second };

struct LineForm {
  std::string_view name;
  std::string_view iteration, value;  // keys, in plain lines
  Figure figure;
  int first;   // number of the first iteration
  bool means;  // whether an entry is the mean of the iterations since the last entry
  std::string_view other = {};  // a key of lines that have these keys and are no steps
  [[nodiscard]] bool is_step(std::string_view line) const {
    return line.find(value) != std::string_view::npos &&
           (other.empty() || line.find(other) == std::string_view::npos);
  }
};
constexpr std::array kForms{
    LineForm{"Megatron-LM", " iteration ", "elapsed time per iteration (ms):", Figure::milliseconds, 1, true},
    LineForm{"nanotron", " iteration:", "elapsed time per iteration ms:", Figure::milliseconds, 1, true},
    LineForm{"NeMo", " global step:", "train step timing in s:", Figure::seconds, 0, false},
    LineForm{"torchtitan", " step:", " tps:", Figure::tokens_per_second_per_gpu, 1, true, "validate step:"},
    LineForm{"verl", " step:", " timing s/step:", Figure::seconds, 1, false},
    LineForm{"DeepSpeed", " steps:", " iter time (s):", Figure::seconds, 1, true},
    LineForm{"DeepSpeed", "global step=", "currsamplespersec=", Figure::samples_per_second, 1, false},
};

constexpr std::int64_t kWarmUp = 3;  // iterations with allocation, autotuning and the first collectives
constexpr double kMostIterations = static_cast<double>(std::int64_t{1} << 40);

struct Entry {
  std::int64_t step = 0;  // the last step that it covers, from 0
  double value = 0;
};

bool is_value(const LineForm& form, double value) {
  if (form.figure == Figure::milliseconds) return is_step_time(value / 1e3);
  return form.figure == Figure::seconds ? is_step_time(value) : value > 0 && value <= 1e15;
}

Entry read_entry(const LineForm& form, const std::string& line, std::string_view typed,
                 const std::string& where) {
  const auto refuse = [&](const std::string& expected) {
    throw UserError(where, ": expected ", expected, ", found \"",
                    printable(typed.substr(0, utf8_prefix(typed.substr(0, 100)))), "\"");
  };
  const std::optional<double> iteration = number_after(line, form.iteration);
  const std::optional<double> value = number_after(line, form.value);
  if (!iteration || !(*iteration >= form.first && *iteration <= kMostIterations))
    refuse(concatenated("an iteration >= ", form.first, " after \"", form.iteration.substr(1), "\""));
  if (!value || !is_value(form, *value)) refuse(concatenated("a number > 0 after \"", form.value, "\""));
  return {static_cast<std::int64_t>(*iteration) - form.first, *value};
}

LoggedSteps steps_of(const LineForm& form, const Entry& entry, std::int64_t count) {
  LoggedSteps steps{"", entry.step + 1 - count, count, 0, 0};
  switch (form.figure) {
    case Figure::milliseconds:
      steps.seconds = entry.value / 1e3;
      break;
    case Figure::seconds:
      steps.seconds = entry.value;
      break;
    case Figure::tokens_per_second_per_gpu:
      steps.tokens_per_second_per_gpu = entry.value;
      break;
    case Figure::samples_per_second:
      steps.samples_per_second = entry.value;
      break;
  }
  return steps;
}

// The smallest distance between consecutive entries, including the first. A restart goes back and does not
// count.
std::int64_t interval_of(const std::vector<Entry>& entries) {
  std::int64_t least = 0;
  for (std::size_t i = 1; i < entries.size(); ++i) {
    const std::int64_t distance = entries[i].step - entries[i - 1].step;
    if (distance > 0 && (least == 0 || distance < least)) least = distance;
  }
  return std::max<std::int64_t>(1, least);
}

// How many steps each entry averages.
std::vector<std::int64_t> counts_of(const LineForm& form, const std::vector<Entry>& entries) {
  if (!form.means) return std::vector<std::int64_t>(entries.size(), 1);
  const std::int64_t interval = interval_of(entries);
  std::vector<std::int64_t> counts;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::int64_t since = i == 0 ? 0 : entries[i].step - entries[i - 1].step;
    counts.push_back(since > 0 ? since : std::min(interval, entries[i].step + 1));
  }
  return counts;
}

MeasuredLog log_of(const LineForm& form, const std::vector<Entry>& entries, const std::string& name) {
  MeasuredLog log;
  log.form = std::string(form.name) + " log";
  const std::vector<std::int64_t> counts = counts_of(form, entries);
  const std::int64_t first = entries.front().step + 1 - counts.front();
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (entries[i].step + 1 - counts[i] >= first + kWarmUp)
      log.steps.push_back(steps_of(form, entries[i], counts[i]));
  const std::size_t excluded = entries.size() - log.steps.size();
  if (log.steps.empty()) {
    log.steps.push_back(steps_of(form, entries.back(), counts.back()));
    log.notes.push_back(
        {"only_last_entry", printable(name), {{"entries", entries.size()}, {"warm_up", kWarmUp}}});
  } else if (excluded > 0) {
    log.notes.push_back({"warm_up_excluded",
                         printable(name),
                         {{"excluded", excluded}, {"entries", entries.size()}, {"warm_up", kWarmUp}}});
  }
  if (const std::int64_t most = *std::ranges::max_element(counts); most > 1)
    log.notes.push_back({"mean_of_iterations", printable(name), {{"iterations", most}}});
  return log;
}

// --- What a log says of the run

constexpr std::string_view kGpu = "cuda capacity:";  // torchtitan's line, "... NVIDIA H100 with 79.11GiB"

// per_device_train_batch_size is not a global batch size.
bool is_of_one_device(std::string_view before) {
  return before.ends_with("per device") || before.ends_with("per gpu");
}

// Later lines override earlier ones, since a batch size may ramp up.
void read_facts(const std::string& line, std::string_view typed, LoggedRun& run) {
  const auto whole = [&](std::initializer_list<std::string_view> keys, std::optional<std::int64_t>& fact) {
    for (const std::string_view key : keys)
      if (const auto value = number_after(line, key);
          value && !is_of_one_device(std::string_view(line).substr(0, line.find(key))) && *value >= 1 &&
          *value <= kMostIterations && *value == std::floor(*value))
        fact = static_cast<std::int64_t>(*value);
  };
  // Hugging Face: "Total train batch size (w. parallel, distributed & accumulation) = 64"
  whole({"global batch size", " train batch size ", " train batch size=", "distributed & accumulation)"},
        run.samples_per_step);
  // "mp world size" and "data parallel world size" are sizes of groups.
  if (const std::size_t at = line.find(" world size");
      at != std::string::npos &&
      (at == 0 || line[at - 1] == ' ' || line[at - 1] == ',' || line[at - 1] == ']' ||
       std::string_view(line).substr(0, at).ends_with("using")))
    whole({" world size"}, run.gpus);
  if (const std::size_t at = line.find(kGpu); at != std::string::npos && !typed.empty()) {
    // The plain line is shorter than the typed one if that has colours, so the name is searched again.
    const std::size_t begin = typed.find("capacity:") + kGpu.size() - kGpu.find("capacity:");
    const std::size_t end = typed.find(" with ", std::min(begin, typed.size()));
    if (begin < typed.size() && end != std::string_view::npos)
      run.gpu = printable(typed.substr(begin + 1, end - begin - 1));
  }
}

// --- Hugging Face's Trainer

struct Bar {
  std::int64_t done = 0, of = 0;
  double elapsed = 0;  // seconds
};

// "[00:22<12:30" or "[1:00:22<": the time that has passed.
std::optional<double> clock_in(std::string_view text) {
  double seconds = 0, part = 0;
  std::size_t digits = 0;
  for (const char c : text) {
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      part = part * 10 + (c - '0');
      ++digits;
    } else if (c == ':' && digits > 0) {
      seconds = (seconds + part) * 60;
      part = 0, digits = 0;
    } else {
      return std::nullopt;
    }
  }
  return digits > 0 ? std::optional(seconds + part) : std::nullopt;
}

// "  7%|###   | 7/100 [00:49<12:30,  7.43s/it]"
std::optional<Bar> bar_in(std::string_view line) {
  const std::size_t open = line.find(" [");
  const std::size_t less = open == std::string_view::npos ? open : line.find('<', open);
  const std::size_t slash = open == std::string_view::npos ? open : line.rfind('/', open);
  if (less == std::string_view::npos || slash == std::string_view::npos) return std::nullopt;
  const std::size_t begin = line.find_last_not_of("0123456789", slash == 0 ? 0 : slash - 1) + 1;
  Bar bar;
  const auto read = [](std::string_view digits, std::int64_t& value) {
    const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && rest == digits.data() + digits.size();
  };
  const std::optional<double> elapsed = clock_in(line.substr(open + 2, less - open - 2));
  if (begin > slash || !elapsed || !read(line.substr(begin, slash - begin), bar.done) ||
      !read(line.substr(slash + 1, open - slash - 1), bar.of))
    return std::nullopt;
  bar.elapsed = *elapsed;
  return bar;
}

// The bars of the training. Other bars, such as those of tokenising, may be in the log, too. The training's
// is the longest bar that is next to a line of losses.
std::vector<Bar> training_bars(std::string_view text) {
  std::map<std::int64_t, std::vector<Bar>> bars;  // by the number at which they end
  std::map<std::int64_t, int> next_to_loss;
  std::int64_t last = 0;
  bool loss_before = false;
  each_line(text, [&](std::string_view line, std::size_t) {
    const std::optional<Bar> bar = bar_in(line);
    if (bar) {
      bars[bar->of].push_back(*bar);
      last = bar->of;
    }
    const bool loss =
        line.find("loss'") != std::string_view::npos || line.find("loss\"") != std::string_view::npos;
    if ((loss || (bar && loss_before)) && last > 0) ++next_to_loss[last];
    loss_before = loss || (loss_before && !bar);
  });
  const auto most = std::ranges::max_element(next_to_loss, {}, &std::pair<const std::int64_t, int>::second);
  return most == next_to_loss.end() ? std::vector<Bar>() : bars[most->first];
}

// The mean from the first bar after the warm-up to the last one, whose clocks have whole seconds. If a log
// has several runs, the last counts: a clock that goes back begins another run.
std::optional<LoggedSteps> mean_of_bars(std::vector<Bar> bars) {
  for (std::size_t i = bars.size(); i-- > 1;)
    if (bars[i].elapsed < bars[i - 1].elapsed) {
      bars.erase(bars.begin(), bars.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
  const auto after = std::ranges::find_if(bars, [](const Bar& bar) { return bar.done >= kWarmUp; });
  bars.erase(bars.begin(), after);
  if (bars.empty()) return std::nullopt;
  const Bar& first = bars.front();
  const Bar& last = *std::ranges::max_element(bars, {}, &Bar::done);
  const double seconds = (last.elapsed - first.elapsed) / as_double(last.done - first.done);
  if (last.done == first.done || !is_step_time(seconds)) return std::nullopt;
  return LoggedSteps{"", first.done, last.done - first.done, seconds, 0};
}

// The last line of a run: {'train_runtime': 742.1, ..., 'train_steps_per_second': 0.134, ...}
std::optional<LoggedSteps> mean_of_run(std::string_view text) {
  std::optional<LoggedSteps> steps;
  each_line(text, [&](std::string_view line, std::size_t) {
    std::string plain = plain_line(line);
    std::erase_if(plain, [](char c) { return c == '\'' || c == '"'; });
    const auto seconds = number_after(plain, "train runtime:");
    const auto rate = number_after(plain, "train steps per second:");
    if (seconds && rate && *rate > 0 && is_step_time(1 / *rate) && *seconds * *rate <= kMostIterations)
      steps = LoggedSteps{"", 0, std::max<std::int64_t>(1, std::llround(*seconds * *rate)), 1 / *rate, 0};
  });
  return steps;
}

std::optional<MeasuredLog> read_trainer(std::string_view text, const std::string& name) {
  const bool losses = text.find("'loss':") != std::string_view::npos ||
                      text.find("\"loss\":") != std::string_view::npos ||
                      text.find("train_runtime") != std::string_view::npos;
  if (!losses) return std::nullopt;
  MeasuredLog log;
  log.form = "Hugging Face Trainer log";
  if (const auto bars = mean_of_bars(training_bars(text))) {
    log.steps.push_back(*bars);
    log.notes.push_back({"log_bars",
                         printable(name),
                         {{"steps", bars->count}, {"seconds", bars->seconds * as_double(bars->count)}}});
  } else if (const auto run = mean_of_run(text)) {
    log.steps.push_back(*run);
    log.notes.push_back({"log_whole_run", printable(name), {{"steps", run->count}}});
  } else {
    throw UserError(printable(name),
                    ": expected progress bars of Hugging Face's Trainer (7/100 [00:49<12:30) of two steps "
                    "behind the first ",
                    kWarmUp,
                    ", or its line with train_runtime and train_steps_per_second, found losses alone");
  }
  return log;
}

const LineForm* form_of(const std::string& line) {
  const auto* const found = std::ranges::find_if(kForms, [&](const LineForm& form) {
    return form.is_step(line) &&
           (form.figure == Figure::milliseconds || line.find(form.iteration) != std::string::npos);
  });
  return found == kForms.end() ? nullptr : found;
}

}  // namespace

std::optional<MeasuredLog> read_line_log(std::string_view text, const std::string& name) {
  const LineForm* form = nullptr;
  std::vector<Entry> entries;
  LoggedRun run;
  each_line(text, [&](std::string_view typed, std::size_t number) {
    const std::string line = plain_line(typed);
    read_facts(line, typed, run);
    if (form == nullptr) form = form_of(line);
    if (form != nullptr && form->is_step(line))
      entries.push_back(read_entry(*form, line, typed, name + ":" + std::to_string(number)));
  });
  std::optional<MeasuredLog> log = entries.empty() ? read_trainer(text, name) : log_of(*form, entries, name);
  if (log) log->run = run;
  return log;
}

std::string line_log_forms() {
  std::string forms;
  for (const LineForm& form : kForms)
    forms += concatenated(form.name, " (lines with \"", form.value.substr(form.value.find_first_not_of(' ')),
                          "\"), ");
  return forms + "Hugging Face's Trainer (its losses and progress bar)";
}

}  // namespace equipoise

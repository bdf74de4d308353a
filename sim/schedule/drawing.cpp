#include "sim/schedule/drawing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "policies/base/index.h"

namespace equipoise {
namespace {

constexpr int kFewestColumns = 40;

struct Look {
  char letter;
  char fill;
  std::string_view color;  // ANSI: dark text on a background
  std::string_view meaning;
};

constexpr std::array<Look, 5> kLooks{{
    // by OpKind
    {'F', '-', "\x1b[30;44m", "forward"},
    {'B', '=', "\x1b[30;42m", "backward"},
    {'D', '~', "\x1b[30;46m", "forward that drops its activations"},
    {'R', '^', "\x1b[30;43m", "recomputing forward"},
    {'W', '+', "\x1b[30;45m", "weight-gradient half of a backward"},
}};
constexpr std::string_view kPlain = "\x1b[0m";

const Look& look_of(OpKind kind) {
  return kLooks[at(kind)];
}

std::string label_of(const ScheduleOp& op, int virtual_stages) {
  std::string label(1, look_of(op.kind).letter);
  label += std::to_string(op.micro_batch + 1);
  if (virtual_stages > 26) return label + "." + std::to_string(op.virtual_stage);
  if (virtual_stages > 1) label += static_cast<char>('a' + op.virtual_stage);
  return label;
}

// Whether every op starts and ends at a multiple of `unit`.
bool on_grid(const TimedSchedule& timed, double unit) {
  constexpr double kTolerance = 1e-6;  // in units, since thirds are not exact
  for (const auto& stage : timed.stages)
    for (const TimedOp& op : stage)
      if (std::abs(op.end / unit - std::round(op.end / unit)) > kTolerance) return false;
  return true;
}

// Maps time to columns. If all ops are on a grid of whole units and a unit gets at least two columns, it gets
// a whole number of them, so that equal ops are equally wide. Otherwise the full width is used, and ends are
// rounded to the nearest column.
class Scale {
 public:
  Scale(const TimedSchedule& timed, int columns) {
    if (timed.makespan <= 0) return;
    columns_per_time_ = columns / timed.makespan;
    for (const double unit : {shortest_op(timed), 1.0}) {
      const double columns_per_unit = std::floor(columns_per_time_ * unit);
      if (columns_per_unit < 2 || !on_grid(timed, unit)) continue;
      columns_per_time_ = columns_per_unit / unit;
      return;
    }
  }
  [[nodiscard]] std::size_t column(double time) const {
    return static_cast<std::size_t>(std::floor(time * columns_per_time_ + 0.5));
  }

 private:
  static double shortest_op(const TimedSchedule& timed) {
    double shortest = timed.makespan;
    for (const auto& stage : timed.stages)
      for (const TimedOp& op : stage)
        if (op.end > op.start) shortest = std::min(shortest, op.end - op.start);
    return shortest;
  }
  double columns_per_time_ = 0;
};

// Where the drawing of a pair's first op ends.
double border(const TimedOp& first, const TimedOp& second) {
  const double both = first.alone + second.alone;
  return first.start + (first.end - first.start) * (both > 0 ? first.alone / both : 0.5);
}

std::string draw_stage(const std::vector<TimedOp>& ops, int virtual_stages, const Scale& scale,
                       std::size_t width, bool color) {
  std::string line;
  std::size_t drawn = 0;  // columns without escape codes
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const TimedOp& timed = ops[i];
    const bool first = timed.op.with_next && i + 1 < ops.size();
    const bool second = i > 0 && ops[i - 1].op.with_next;
    const std::size_t begin = scale.column(second ? border(ops[i - 1], timed) : timed.start);
    const std::size_t end = scale.column(first ? border(timed, ops[i + 1]) : timed.end);
    if (end == begin) continue;
    const Look& look = look_of(timed.op.kind);
    std::string label = label_of(timed.op, virtual_stages);
    if (second && label.size() < end - begin) label.insert(0, 1, '&');
    label.resize(label.size() > end - begin ? 1 : label.size());
    label.resize(end - begin, color ? ' ' : look.fill);
    line.append(begin - drawn, color ? ' ' : '.');
    if (color) line += look.color;
    line += label;
    if (color) line += kPlain;
    drawn = end;
  }
  line.append(width - drawn, color ? ' ' : '.');
  return line;
}

std::string legend(const TimedSchedule& timed, int virtual_stages, bool color) {
  std::array<bool, kLooks.size()> used{};
  for (const auto& stage : timed.stages)
    for (const TimedOp& op : stage) used[at(op.op.kind)] = true;
  std::string text;
  for (std::size_t i = 0; i < kLooks.size(); ++i) {
    if (!used[i]) continue;
    if (!text.empty()) text += ", ";
    if (color) text += kLooks[i].color;
    text += kLooks[i].letter;
    if (color) text += kPlain;
    text += ' ';
    text += kLooks[i].meaning;
  }
  const bool pairs = std::any_of(timed.stages.begin(), timed.stages.end(), [](const auto& stage) {
    return std::any_of(stage.begin(), stage.end(), [](const TimedOp& op) { return op.op.with_next; });
  });
  if (pairs) text += ", & issued together";
  if (!text.empty()) text += "; the number is the micro-batch, from 1";
  if (virtual_stages > 1)
    text += virtual_stages > 26 ? ", then the virtual stage" : ", then the virtual stage, from a";
  return text;
}

}  // namespace

std::string draw_schedule(const TimedSchedule& timed, int virtual_stages, DrawingStyle style) {
  const std::size_t digits = std::to_string(timed.stages.size() - 1).size();
  const std::size_t margin = std::string_view("stage ").size() + digits + 2;
  const int columns = std::max(style.columns, kFewestColumns);
  const Scale scale(timed, columns - static_cast<int>(margin));
  const std::size_t width = scale.column(timed.makespan);
  std::string text;
  for (std::size_t s = 0; s < timed.stages.size(); ++s) {
    const std::string number = std::to_string(s);
    text += "stage " + std::string(digits - number.size(), ' ') + number + "  ";
    text += draw_stage(timed.stages[s], virtual_stages, scale, width, style.color) + '\n';
  }
  return text + legend(timed, virtual_stages, style.color) + '\n';
}

}  // namespace equipoise

#include <algorithm>
#include <cmath>
#include <sstream>

#include "policies/base/text.h"
#include "sim/report/html_page.h"
#include "sim/validation/figures.h"

namespace equipoise {
namespace {

constexpr double kWidth = 1080, kTop = 84, kRow = 26, kBottom = 44;
constexpr double kPolicyLeft = 190, kPolicyRight = 470;  // the left panel's axis, between labels and values
constexpr double kOpLeft = 730, kOpRight = 1010;
constexpr std::size_t kMostLabel = 24;  // characters; the whole label is its tooltip

// Colours of one theme: page, text, weak text, grid, measured, simulated, band of the limit, beyond it.
struct Theme {
  const char *page, *text, *weak, *grid, *measured, *predicted, *band, *beyond;
};
constexpr Theme kLight = {"#ffffff", "#1c2430", "#5b6675", "#d5dbe3",
                          "#1f6fb2", "#c4570b", "#e4eef8", "#b3261e"};
constexpr Theme kDark = {"#14181f", "#e6eaf0", "#9aa6b5", "#333c48",
                         "#6bb1ec", "#f0995a", "#1d2c3d", "#ff8a80"};

std::string style(const Theme& t) {
  std::ostringstream out;
  out << ".page{fill:" << t.page << "}text{fill:" << t.text << "}.weak{fill:" << t.weak
      << "}.grid{stroke:" << t.grid << "}.measured{fill:" << t.measured << ";stroke:" << t.measured
      << "}.predicted{fill:none;stroke:" << t.predicted << "}.bar{fill:" << t.predicted
      << "}.band{fill:" << t.band << "}.axis{stroke:" << t.weak << "}.bad{fill:" << t.beyond << "}";
  return out.str();
}

std::string escaped(std::string_view text) {
  return markup_escaped(printable(text));
}

bool starts_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U;
}

std::string shortened(const std::string& label) {
  std::size_t characters = 0;
  for (std::size_t i = 0; i < label.size(); ++i)
    if (starts_character(label[i]) && ++characters == kMostLabel) return label.substr(0, i) + "\u2026";
  return label;
}

class Drawing {
 public:
  explicit Drawing(double height, const std::string& title) {
    out_ << R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 )" << fixed(kWidth, 0) << ' '
         << fixed(height, 0) << R"(" width=")" << fixed(kWidth, 0) << R"(" height=")" << fixed(height, 0)
         << R"(" role="img" font-family="system-ui, sans-serif" font-size="13">)"
         << "\n<title>" << escaped(title) << "</title>\n<style>" << style(kLight)
         << "@media (prefers-color-scheme:dark){" << style(kDark) << "}</style>\n"
         << R"(<rect class="page" width="100%" height="100%"/>)" << '\n';
  }
  void text(double x, double y, const std::string& words, const char* attributes = "") {
    out_ << "<text x=\"" << fixed(x, 1) << "\" y=\"" << fixed(y, 1) << "\" " << attributes << '>'
         << escaped(words) << "</text>\n";
  }
  // A row's name, to the left of x, in full where the mouse rests.
  void label(double x, double y, const std::string& words) {
    out_ << "<text x=\"" << fixed(x, 1) << "\" y=\"" << fixed(y, 1) << "\" text-anchor=\"end\">"
         << escaped(shortened(printable(words))) << "<title>" << escaped(words) << "</title></text>\n";
  }
  void line(double x1, double y1, double x2, double y2, const char* kind, double width = 1) {
    out_ << "<line x1=\"" << fixed(x1, 1) << "\" y1=\"" << fixed(y1, 1) << "\" x2=\"" << fixed(x2, 1)
         << "\" y2=\"" << fixed(y2, 1) << "\" class=\"" << kind << "\" stroke-width=\"" << fixed(width, 1)
         << "\"/>\n";
  }
  void rect(double x, double y, double width, double height, const char* kind) {
    out_ << "<rect x=\"" << fixed(x, 1) << "\" y=\"" << fixed(y, 1) << "\" width=\"" << fixed(width, 1)
         << "\" height=\"" << fixed(height, 1) << "\" class=\"" << kind << "\"/>\n";
  }
  void circle(double x, double y) {
    out_ << "<circle cx=\"" << fixed(x, 1) << "\" cy=\"" << fixed(y, 1)
         << "\" r=\"4.5\" class=\"measured\"/>\n";
  }
  void diamond(double x, double y) {
    out_ << "<path d=\"M" << fixed(x - 6.5, 1) << ' ' << fixed(y, 1)
         << "l6.5 -6.5l6.5 6.5l-6.5 6.5z\" class=\"predicted\""
         << " stroke-width=\"2\"/>\n";
  }
  std::string finish() {
    out_ << "</svg>\n";
    return out_.str();
  }

 private:
  std::ostringstream out_;
};

// A round step that cuts the range into about `parts`.
double tick_of(double range, int parts) {
  const double rough = range / parts, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough) return factor * power;
  return 10 * power;
}

struct Unit {
  double per_second = 1;
  const char* name = "s";
};
Unit unit_of(double seconds) {
  if (seconds >= 1) return {1, "s"};
  return seconds >= 1e-3 ? Unit{1e3, "ms"} : Unit{1e6, "us"};
}

int digits_of(double tick) {
  return std::max(0, static_cast<int>(-std::floor(std::log10(tick) + 1e-9)));
}

void draw_policies(const ValidationFigures& figures, double bottom, Drawing& drawing) {
  double most = 0;
  for (const PolicyFigures& p : figures.policies)
    for (const double value : {p.predicted_seconds, p.measured_seconds + p.noise_seconds.value_or(0)})
      if (std::isfinite(value)) most = std::max(most, value);
  if (!(most > 0)) return;
  const Unit unit = unit_of(most);
  const double scale = (kPolicyRight - kPolicyLeft) / most, tick = tick_of(most * unit.per_second, 5);
  const auto x = [&](double seconds) {
    return kPolicyLeft + (std::isfinite(seconds) ? std::max(0.0, seconds) : 0.0) * scale;
  };
  drawing.text(20, 54, "Step time, " + std::string(unit.name), "font-weight=\"600\"");
  drawing.circle(kPolicyLeft + 6, 50);
  drawing.text(kPolicyLeft + 18, 54, "measured", "class=\"weak\"");
  drawing.diamond(kPolicyLeft + 100, 50);
  drawing.text(kPolicyLeft + 112, 54, "simulated", "class=\"weak\"");
  for (double value = 0; value <= most * unit.per_second * 1.0001; value += tick) {
    const double at = x(value / unit.per_second);
    drawing.line(at, kTop - 8, at, bottom, "grid");
    drawing.text(at, bottom + 18, fixed(value, digits_of(tick)), "class=\"weak\" text-anchor=\"middle\"");
  }
  double y = kTop + kRow / 2;
  for (const PolicyFigures& p : figures.policies) {
    drawing.label(kPolicyLeft - 12, y + 4, p.label);
    drawing.line(x(p.predicted_seconds), y, x(p.measured_seconds), y, "axis");
    if (const double noise = p.noise_seconds.value_or(0); noise > 0) {
      for (const double end : {p.measured_seconds - noise, p.measured_seconds + noise})
        drawing.line(x(end), y - 5, x(end), y + 5, "measured", 1.5);
      drawing.line(x(p.measured_seconds - noise), y, x(p.measured_seconds + noise), y, "measured", 1.5);
    }
    drawing.circle(x(p.measured_seconds), y);
    drawing.diamond(x(p.predicted_seconds), y);
    drawing.text(kPolicyRight + 14, y + 4, signed_percent(p.errors.error()),
                 p.within_limit ? "" : "class=\"bad\"");
    y += kRow;
  }
}

void draw_ops(const Validation& validation, const ValidationFigures& figures, double bottom,
              Drawing& drawing) {
  if (figures.ops.empty()) return;
  constexpr double kMostShown = 0.5;  // what is beyond is drawn to the edge, with its number
  double most = 1.5 * validation.limits.op;
  for (const OpFigures& op : figures.ops)
    if (std::isfinite(op.errors.error()))
      most = std::max(most, std::min(kMostShown, std::abs(op.errors.error())));
  const double middle = (kOpLeft + kOpRight) / 2, scale = (kOpRight - middle) / most,
               tick = tick_of(100 * most, 3);
  const auto x = [&](double error) { return middle + std::clamp(error, -most, most) * scale; };
  drawing.text(570, 54, "Error of op kinds by time", "font-weight=\"600\"");
  drawing.text(kOpLeft + 40, 54, "band: limit of " + signed_percent(validation.limits.op).substr(1),
               "class=\"weak\"");
  drawing.rect(x(-validation.limits.op), kTop - 8, x(validation.limits.op) - x(-validation.limits.op),
               bottom - kTop + 8, "band");
  for (double value = -std::floor(100 * most / tick) * tick; value <= 100 * most * 1.0001; value += tick) {
    drawing.line(x(value / 100), kTop - 8, x(value / 100), bottom, value == 0 ? "axis" : "grid");
    drawing.text(x(value / 100), bottom + 18,
                 fixed(std::abs(value) < 1e-9 ? 0 : value, digits_of(tick)) + " %",
                 "class=\"weak\" text-anchor=\"middle\"");
  }
  drawing.line(middle, kTop - 8, middle, bottom, "axis");
  double y = kTop + kRow / 2;
  for (const OpFigures& op : figures.ops) {
    const double error = std::isfinite(op.errors.error()) ? op.errors.error() : 0;
    drawing.label(kOpLeft - 12, y + 4, op.op);
    drawing.rect(std::min(middle, x(error)), y - 6, std::max(1.0, std::abs(x(error) - middle)), 12,
                 op.within_limit ? "bar" : "bad");
    drawing.text(kOpRight + 10, y + 4, signed_percent(op.errors.error()),
                 op.within_limit ? "" : "class=\"bad\"");
    y += kRow;
  }
}

}  // namespace

std::string validation_plot(const Validation& validation, const ValidationFigures& figures) {
  const std::size_t rows = std::max({figures.policies.size(), figures.ops.size(), std::size_t{1}});
  const double bottom = kTop + kRow * static_cast<double>(rows) + 4;
  const std::string title = validation.study + ": simulated with " + validation.profile + ", measured on " +
                            validation.device + (figures.judged() ? ": " + figures.verdict() : ": not judged");
  Drawing drawing(bottom + kBottom, title);
  drawing.text(20, 28, title, "font-size=\"16\" font-weight=\"600\"");
  draw_policies(figures, bottom, drawing);
  draw_ops(validation, figures, bottom, drawing);
  return drawing.finish();
}

}  // namespace equipoise

#include "sim/cli/manual_page.h"

namespace equipoise {
namespace {

// A line of text as man(7) reads it: a backslash, a hyphen that is typed, and a leading dot are escaped.
std::string roff(const std::string& text) {
  std::string escaped;
  for (const char letter : text) {
    if (letter == '\\')
      escaped += "\\e";
    else if (letter == '-')
      escaped += "\\-";
    else
      escaped += letter;
  }
  return escaped.starts_with(".") || escaped.starts_with("'") ? "\\&" + escaped : escaped;
}

void add_option(std::string& page, const OptionText& option) {
  page += ".TP\n.B " + roff(option.name) + (option.takes_value ? "\" \" \\fIvalue\\fR" : "") + "\n";
  page += roff(option.help);
  if (!option.fallback.empty()) page += " (default " + roff(option.fallback) + ")";
  page += "\n";
}

void add_command(std::string& page, const CommandText& command, const std::string& path) {
  if (!command.options.empty() || !command.positionals.empty() || command.commands.empty()) {
    std::string line = path;
    for (const OptionText& positional : command.positionals) line += " " + positional.name;
    page += ".SS " + roff(line) + "\n" + roff(command.summary) + ".\n";
    for (const OptionText& positional : command.positionals)
      page += ".TP\n.I " + roff(positional.name) + "\n" + roff(positional.help) + "\n";
    for (const OptionText& option : command.options) add_option(page, option);
    if (!command.example.empty()) page += ".PP\n.nf\n" + roff(command.example) + "\n.fi\n";
  }
  for (const CommandText& inner : command.commands) add_command(page, inner, path + " " + inner.name);
}

}  // namespace

std::string manual_page(const CommandText& program, const std::string& version) {
  std::string page = ".TH EQUIPOISE 1 \"\" \"" + program.name + " " + version + "\"\n";
  page += ".SH NAME\n" + program.name + " \\- " + roff(program.summary) + "\n";
  page += ".SH SYNOPSIS\n.B " + program.name + "\n.I command\n[options]\n.SH COMMANDS\n";
  for (const CommandText& command : program.commands) add_command(page, command, command.name);
  page += ".SH EXIT STATUS\n.TP\n.B 0\nsuccess; a policy that cannot run is a row of the result\n";
  page +=
      ".TP\n.B 1\na check failed (check, validate, execute)\n.TP\n.B 2\nwrong input; one line says what\n";
  page += ".TP\n.B 3\nan internal fault\n.TP\n.B 130\nended by Ctrl\\-C; what was finished is kept\n";
  return page;
}

}  // namespace equipoise

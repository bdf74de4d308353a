#include "sim/python/core/bindings.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <filesystem>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"
#include "sim/python/core/open_study.h"
#include "sim/python/core/packed_plan.h"
#include "traces/synth.h"
#include "traces/trace.h"

// Python has arguments where the program has options: "--bucket-size" becomes bucket_size and "--no-rollback"
// rollback=False. A command in `backquotes` stays as it is.
static std::string as_arguments(const std::string& message) {
  const auto is_letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
  std::string text;
  bool command = false;
  for (std::size_t i = 0; i < message.size();) {
    if (message[i] == '`') command = !command;
    const bool begins = !command && (i == 0 || (!is_letter(message[i - 1]) && message[i - 1] != '-'));
    if (!begins || message.compare(i, 2, "--") != 0 || i + 2 >= message.size() ||
        !is_letter(message[i + 2])) {
      text += message[i++];
      continue;
    }
    std::size_t end = i + 2;
    while (end < message.size() && (is_letter(message[end]) || message[end] == '-')) ++end;
    std::string name = message.substr(i + 2, end - i - 2);
    const bool negated = name.starts_with("no-");
    if (negated) name.erase(0, 3);
    std::replace(name.begin(), name.end(), '-', '_');
    text += name + (negated ? "=False" : "");
    i = end;
  }
  return text;
}

// The line that the program prints after "error: ", with Python's names of arguments.
static void raise_value_error(const std::string& message) {
  PyErr_SetString(PyExc_ValueError, as_arguments(equipoise::printable(message)).c_str());
}

static void translate(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const equipoise::UserError& e) {
    raise_value_error(e.what());
  } catch (const std::filesystem::filesystem_error& e) {  // for a name that the file system refuses
    raise_value_error(e.path1().string() + ": " + e.code().message());
  }
}

namespace equipoise::python {

static nb::object read_lengths(const std::string& path, const std::string& column) {
  Trace trace;
  {
    const nb::gil_scoped_release released;
    TraceReadOptions options;
    options.column = column;
    trace = read_trace(path, options);
  }
  return array_of(std::move(trace.lengths));
}

static nb::object draw_lengths(const std::string& distribution, std::int64_t documents, std::uint64_t seed) {
  Trace trace;
  {
    const nb::gil_scoped_release released;
    trace = synthesize(distribution, documents, seed);
  }
  return array_of(std::move(trace.lengths));
}

static void write_lengths(const Lengths& lengths, const std::string& path) {
  const std::span<const std::int64_t> values = span_of(lengths);
  const nb::gil_scoped_release released;
  forget_inputs();  // from earlier calls
  write_trace({{values.begin(), values.end()}, path}, path);
}

static void bind_traces(nb::module_& m) {
  m.def("read_lengths", read_lengths, nb::arg("path"), nb::arg("column") = "",
        "Tokens of each document of a trace file, in arrival order.");
  m.def("draw_lengths", draw_lengths, nb::arg("distribution"), nb::arg("documents"), nb::arg("seed") = 0,
        "Lengths drawn from a published distribution.");
  m.def("write_lengths", write_lengths, nb::arg("lengths"), nb::arg("path"),
        "Writes a trace; the suffix says how: .npy, else a line for each document, .gz and .zst compressed.");
}

}  // namespace equipoise::python

NB_MODULE(_core, m) {
  m.doc() = "The simulator's own functions; `import equipoise` has what is meant to be called.";
  m.attr("__version__") = EQUIPOISE_VERSION;
  nanobind::register_exception_translator(translate);
  m.def("in_python_words", as_arguments, nanobind::arg("message"),
        "A message of the program with arguments in place of its options.");
  equipoise::python::bind_traces(m);
  equipoise::python::bind_plans(m);
  equipoise::python::bind_studies(m);
}

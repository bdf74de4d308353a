#include "sim/python/core/bindings.h"

#include <nanobind/stl/string.h>

#include <exception>
#include <filesystem>
#include <string>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "traces/synth.h"
#include "traces/trace.h"

namespace {

// What the program prints after "error: ", one line.
void raise_value_error(const std::string& message) {
  PyErr_SetString(PyExc_ValueError, equipoise::printable(message).c_str());
}

void translate(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const equipoise::UserError& e) {
    raise_value_error(e.what());
  } catch (const std::filesystem::filesystem_error& e) {  // a name that no file system takes
    raise_value_error(e.path1().string() + ": " + e.code().message());
  }
}

}  // namespace

// --- Document lengths in and out.

namespace equipoise::python {
namespace {

nb::object read_lengths(const std::string& path, const std::string& column) {
  Trace trace;
  {
    const nb::gil_scoped_release released;
    TraceReadOptions options;
    options.column = column;
    trace = read_trace(path, options);
  }
  return array_of(std::move(trace.lengths));
}

nb::object draw_lengths(const std::string& distribution, std::int64_t documents, std::uint64_t seed) {
  Trace trace;
  {
    const nb::gil_scoped_release released;
    trace = synthesize(distribution, documents, seed);
  }
  return array_of(std::move(trace.lengths));
}

void write_lengths(const Lengths& lengths, const std::string& path) {
  const std::span<const std::int64_t> values = span_of(lengths);
  const nb::gil_scoped_release released;
  write_trace({{values.begin(), values.end()}, path}, path);
}

}  // namespace

void bind_traces(nb::module_& m) {
  m.def("read_lengths", read_lengths, nb::arg("path"), nb::arg("column") = "",
        "Tokens of each document of a trace file, in arrival order.");
  m.def("draw_lengths", draw_lengths, nb::arg("distribution"), nb::arg("documents"), nb::arg("seed") = 0,
        "Lengths drawn from a published distribution.");
  m.def("write_lengths", write_lengths, nb::arg("lengths"), nb::arg("path"),
        "Writes a trace; the suffix says how: .npy, else a line a document, .gz and .zst compressed.");
}

}  // namespace equipoise::python

NB_MODULE(_core, m) {
  m.doc() = "The simulator's own functions; `import equipoise` has what is meant to be called.";
  m.attr("__version__") = EQUIPOISE_VERSION;
  nanobind::register_exception_translator(translate);
  equipoise::python::bind_traces(m);
  equipoise::python::bind_plans(m);
  equipoise::python::bind_studies(m);
}

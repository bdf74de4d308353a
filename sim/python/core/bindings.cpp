#include "sim/python/core/bindings.h"

#include <exception>
#include <filesystem>
#include <string>

#include "policies/base/error.h"
#include "policies/base/utf8.h"

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

NB_MODULE(_core, m) {
  m.doc() = "The simulator's own functions; `import equipoise` has what is meant to be called.";
  m.attr("__version__") = EQUIPOISE_VERSION;
  nanobind::register_exception_translator(translate);
  equipoise::python::bind_traces(m);
  equipoise::python::bind_plans(m);
  equipoise::python::bind_studies(m);
}

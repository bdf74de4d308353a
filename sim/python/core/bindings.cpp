#include "sim/python/core/bindings.h"

#include <algorithm>
#include <cctype>
#include <exception>
#include <filesystem>
#include <string>

#include "policies/base/error.h"
#include "policies/base/utf8.h"

namespace {

// "--bucket-size" is an argument here, bucket_size, and "--no-rollback" rollback=False.
std::string as_arguments(const std::string& message) {
  const auto is_letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
  std::string text;
  for (std::size_t i = 0; i < message.size();) {
    const bool begins = i == 0 || (!is_letter(message[i - 1]) && message[i - 1] != '-');
    if (!begins || message.compare(i, 2, "--") != 0 || i + 2 >= message.size() || !is_letter(message[i + 2])) {
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

// What the program prints after "error: ", one line, in Python's words.
void raise_value_error(const std::string& message) {
  PyErr_SetString(PyExc_ValueError, as_arguments(equipoise::printable(message)).c_str());
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

#include "sim/report/junit.h"

#include <algorithm>

#include "policies/base/utf8.h"
#include "sim/report/markup.h"

namespace equipoise {
namespace {

std::string escaped(const std::string& text) {
  return markup_escaped(printable(text));
}

}  // namespace

std::string junit_xml(const std::string& suite, const std::vector<JunitCase>& cases) {
  const auto failures =
      std::count_if(cases.begin(), cases.end(), [](const JunitCase& c) { return !c.failure.empty(); });
  std::string xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"" + escaped(suite) +
                    "\" tests=\"" + std::to_string(cases.size()) + "\" failures=\"" +
                    std::to_string(failures) + "\">\n";
  for (const JunitCase& c : cases) {
    xml += "  <testcase classname=\"" + escaped(suite) + "\" name=\"" + escaped(c.name) + "\"";
    if (c.failure.empty())
      xml += "/>\n";
    else
      xml += "><failure message=\"" + escaped(c.failure) + "\"/></testcase>\n";
  }
  return xml + "</testsuite>\n";
}

}  // namespace equipoise

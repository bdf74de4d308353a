// Test results as CI systems read them: a JUnit XML file of one suite.
#pragma once

#include <string>
#include <vector>

namespace equipoise {

struct JunitCase {
  std::string name;
  std::string failure;  // empty: passed
};

// Names are escaped; control characters, which XML cannot hold, are shown as printable text.
std::string junit_xml(const std::string& suite, const std::vector<JunitCase>& cases);

}  // namespace equipoise

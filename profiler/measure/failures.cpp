#include "profiler/measure/failures.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "policies/base/error.h"
#include "policies/base/files.h"

namespace equipoise::measure {

Failures::Failures(const std::string& out, bool resume) : path_(out + ".failed"), trying_(out + ".trying") {
  if (!resume) {
    std::remove(path_.c_str());
    end();
    return;
  }
  keep_lines();
  std::string key;
  if (std::ifstream trying(trying_); std::getline(trying, key) && !key.empty()) {
    add(key, "the program ended while it was measured");
    end();
  }
}

void Failures::keep_lines() {
  std::ifstream failed(path_);
  std::string kept;
  bool cut_short = false;  // by a crash: what is added next must not become a part of it
  for (std::string line; std::getline(failed, line);) {
    cut_short = failed.eof();
    if (cut_short) break;
    keys_.insert(line.substr(0, line.find('\t')));
    kept += line + '\n';
  }
  if (cut_short) write_file_atomically(path_, kept);
}

void Failures::add(const std::string& key, const std::string& reason) {
  if (!keys_.insert(key).second) return;
  std::string line = key + '\t' + reason;
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::ofstream file(path_, std::ios::app);
  file << line << '\n' << std::flush;
  if (!file) throw UserError(path_ + ": cannot be written");
}

void Failures::begin(const std::string& key) const {
  std::ofstream file(trying_, std::ios::trunc);
  file << key << '\n' << std::flush;
  if (!file) throw UserError(trying_ + ": cannot be written");
}

void Failures::end() const {
  std::remove(trying_.c_str());
}

}  // namespace equipoise::measure

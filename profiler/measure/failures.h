// Points that could not be measured, so that a resumed run goes round them: <out>.failed has a line for each,
// its key and the reason. A point that takes the whole program down (a wild access ends all work on a GPU)
// writes no line itself; it is found in <out>.trying, which holds the key of the point under way.
#pragma once

#include <set>
#include <string>

namespace equipoise::measure {

class Failures {
 public:
  // With `resume` the points that failed before are kept, else none. Throws UserError.
  Failures(const std::string& out, bool resume);
  [[nodiscard]] bool has(const std::string& key) const { return keys_.count(key) > 0; }
  [[nodiscard]] std::size_t size() const { return keys_.size(); }
  void add(const std::string& key, const std::string& reason);

  void begin(const std::string& key) const;  // the point is under way
  void end() const;                          // and has returned

 private:
  void keep_lines();
  std::string path_;
  std::string trying_;
  std::set<std::string> keys_;
};

}  // namespace equipoise::measure

#include "profiler/fit/document_histogram.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/random.h"
#include "profiler/fit/samples.h"

namespace equipoise {

DocumentHistogram read_document_histogram(const std::string& path) {
  std::istringstream in(read_text_file(path));
  DocumentHistogram histogram;
  std::string text;
  for (std::size_t line = 1; std::getline(in, text); ++line) {
    if (text.empty() || text[0] == '#' || text.rfind("length_min", 0) == 0) continue;
    DrawnLengths bucket;
    long long low = 0;
    long long high = 0;
    if (std::sscanf(text.c_str(), "%lld,%lld,%lf", &low, &high, &bucket.documents) != 3 || low > high ||
        high < 1 || static_cast<double>(high) > kMostCount ||
        !(bucket.documents >= 0 && std::isfinite(bucket.documents)))
      throw UserError(path, ":", line,
                      ": expected length_min,length_max,n_docs (lengths from 1 to 2^31 - 1, the first not "
                      "above the second, a count >= 0), found '",
                      text, "'");
    bucket.shortest = std::max<long long>(low, 1);
    bucket.longest = high;
    histogram.push_back(bucket);
  }
  return histogram;
}

std::vector<std::int64_t> draw_documents(const DocumentHistogram& histogram, std::int64_t total_tokens,
                                         std::uint64_t seed) {
  const std::int64_t cap = std::max<std::int64_t>(total_tokens / 4, 1);
  double all = 0;
  for (const DrawnLengths& bucket : histogram) all += bucket.documents;
  std::vector<std::int64_t> documents;
  if (all <= 0) return documents;
  SplitMix64 random(seed);
  const auto uniform = [&random] { return static_cast<double>(random.next() >> 11) * 0x1.0p-53; };
  for (std::int64_t left = total_tokens; left > 0;) {
    double mark = uniform() * all;
    const DrawnLengths* drawn = nullptr;
    for (const DrawnLengths& bucket : histogram) {
      drawn = &bucket;
      if (mark < bucket.documents) break;
      mark -= bucket.documents;
    }
    const auto width = static_cast<double>(drawn->longest - drawn->shortest + 1);
    const std::int64_t length = drawn->shortest + static_cast<std::int64_t>(uniform() * width);
    documents.push_back(std::min({length, cap, left}));
    left -= documents.back();
  }
  return documents;
}

}  // namespace equipoise

// Document lengths by their distribution, for published rows that state nothing else about their packed
// documents.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace equipoise {

struct DrawnLengths {
  std::int64_t shortest = 0;
  std::int64_t longest = 0;
  double documents = 0;
};
using DocumentHistogram = std::vector<DrawnLengths>;

// Reads a CSV of length_min,length_max,n_docs with # comments. Throws UserError with file and line.
DocumentHistogram read_document_histogram(const std::string& path);

// Draws documents until `total_tokens` are full. Each is cut to a quarter of the total, and the last to what
// remains. The same seed gives the same documents.
std::vector<std::int64_t> draw_documents(const DocumentHistogram& histogram, std::int64_t total_tokens,
                                         std::uint64_t seed);

}  // namespace equipoise

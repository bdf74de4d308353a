#include "policies/loader.h"

#include <algorithm>

#include "policies/base/text.h"

namespace equipoise {
namespace {

// The trace as an endless or a finite stream of documents.
class Stream {
 public:
  Stream(std::span<const std::int64_t> lengths, const PackOptions& shape, bool repeat)
      : lengths_(lengths), shape_(shape), repeat_(repeat) {}

  // The length of the next document, or 0 at the end. Its id is `documents() - 1` afterwards.
  std::int64_t next() {
    for (std::int64_t length; (length = next_recorded()) > 0;) {
      const std::int64_t kept = loaded_length(length, shape_);
      cut_documents_ += kept < length ? 1 : 0;
      cut_tokens_ += length - kept;
      if (kept > 0) return kept;
    }
    return 0;
  }

  [[nodiscard]] std::int64_t documents() const { return documents_; }
  [[nodiscard]] std::int64_t cut_documents() const { return cut_documents_; }
  [[nodiscard]] std::int64_t cut_tokens() const { return cut_tokens_; }

 private:
  [[nodiscard]] bool leaves_all_out() const {
    return shape_.longer == LongerThan::drop && documents_ > 0 && cut_documents_ == documents_;
  }

  std::int64_t next_recorded() {
    if (position_ == lengths_.size()) {
      if (!repeat_ || leaves_all_out()) return 0;
      position_ = 0;
    }
    const std::int64_t length = lengths_[position_];
    if (length < 1) {
      throw UserError("trace: document ", position_, " has length ", length, "; expected at least 1 token");
    }
    ++position_;
    ++documents_;
    return length;
  }

  std::span<const std::int64_t> lengths_;
  const PackOptions& shape_;
  bool repeat_;
  std::size_t position_ = 0;
  std::int64_t documents_ = 0;
  std::int64_t cut_documents_ = 0;
  std::int64_t cut_tokens_ = 0;
};

[[noreturn]] void too_short(std::int64_t steps, std::int64_t full, const std::string& batch) {
  throw UserError("trace: too short: it holds ", full, " full global batches of ", batch, ", steps asks for ",
                  steps, "; lower steps or set trace.repeat to true");
}

// Fills one window from the stream. `rest` is the unused part of the current document. Returns the number of
// tokens placed, which is less than the window only at the end of the trace.
std::int64_t fill_window(Stream& stream, std::int64_t window, LoaderTail tail, Slice& rest,
                         std::vector<Slice>& slices, std::int64_t& dropped) {
  std::int64_t room = window;
  while (room > 0) {
    if (rest.tokens() == 0) {
      const std::int64_t length = stream.next();
      if (length == 0) break;
      rest = {stream.documents() - 1, 0, length};
    }
    const std::int64_t taken = std::min(room, rest.tokens());
    slices.push_back({rest.document, rest.begin, rest.begin + taken});
    rest.begin += taken;
    room -= taken;
  }
  if (tail == LoaderTail::drop) {
    dropped += rest.tokens();
    rest.begin = rest.end;
  }
  return window - room;
}

void load_windows(Stream& stream, const PackOptions& shape, const LoadOptions& options, DocumentSet& set) {
  if (shape.context_window < 1 || shape.sequences_per_step < 1)
    throw UserError("context_window and sequences_per_step: expected numbers >= 1, found ",
                    shape.context_window, " and ", shape.sequences_per_step);
  Slice rest;
  for (std::int64_t step = 0; options.steps == 0 || step < options.steps; ++step) {
    GlobalBatch batch;
    if (!set.batches.empty()) batch.slices.reserve(set.batches.back().slices.size() * 5 / 4);
    std::int64_t tokens = 0;
    for (std::int64_t w = 0; w < shape.sequences_per_step; ++w) {
      const std::size_t first = batch.slices.size();
      const std::int64_t placed =
          fill_window(stream, shape.context_window, options.tail, rest, batch.slices, set.dropped_tokens);
      if (placed > 0) batch.window_begin.push_back(first);
      tokens += placed;
      if (placed < shape.context_window) break;
    }
    if (options.steps > 0 && tokens < shape.context_window * shape.sequences_per_step) {
      too_short(options.steps, step,
                std::to_string(shape.sequences_per_step) + " windows of " +
                    std::to_string(shape.context_window) + " tokens");
    }
    if (tokens == 0) break;
    batch.window_begin.push_back(batch.slices.size());
    set.tokens += tokens;
    set.batches.push_back(std::move(batch));
  }
}

void load_whole(Stream& stream, const PackOptions& shape, const LoadOptions& options, DocumentSet& set) {
  for (std::int64_t step = 0; options.steps == 0 || step < options.steps; ++step) {
    GlobalBatch batch;
    for (std::int64_t i = 0; i < shape.documents_per_step; ++i) {
      const std::int64_t length = stream.next();
      if (length == 0) break;
      batch.slices.push_back({stream.documents() - 1, 0, length});
      set.tokens += length;
    }
    const auto count = static_cast<std::int64_t>(batch.slices.size());
    if (options.steps > 0 && count < shape.documents_per_step)
      too_short(options.steps, step, std::to_string(shape.documents_per_step) + " documents");
    if (count == 0) break;
    set.batches.push_back(std::move(batch));
  }
}

void append(const Slice& slice, std::int64_t limit, Oversize oversize, std::vector<Slice>& kept,
            std::vector<Slice>& dropped) {
  if (slice.tokens() <= limit) {
    kept.push_back(slice);
  } else if (oversize == Oversize::drop) {
    dropped.push_back(slice);
  } else if (oversize == Oversize::truncate) {
    kept.push_back({slice.document, slice.begin, slice.begin + limit});
    dropped.push_back({slice.document, slice.begin + limit, slice.end});
  } else {
    for (std::int64_t begin = slice.begin; begin < slice.end; begin += limit)
      kept.push_back({slice.document, begin, std::min(begin + limit, slice.end)});
  }
}

}  // namespace

UnplaceableDocument::UnplaceableDocument(const Slice& slice, std::string_view policy, std::int64_t limit)
    : UnplaceableDocument("document " + std::to_string(slice.document) + ": " +
                              std::to_string(slice.tokens()) + " tokens, policy " + std::string(policy) +
                              " places at most " + std::to_string(limit) +
                              "; raise that limit or set oversize to drop, truncate or split",
                          slice.document, slice.tokens(), limit) {}

DocumentSet load_documents(std::span<const std::int64_t> lengths, const PackOptions& shape,
                           const LoadOptions& options) {
  if (lengths.empty()) throw UserError("trace: empty; expected at least one document length");
  DocumentSet set;
  // Without a number of steps an endless stream would never end.
  Stream stream(lengths, shape, options.repeat && options.steps > 0);
  if (shape.documents_per_step > 0)
    load_whole(stream, shape, options, set);
  else
    load_windows(stream, shape, options, set);
  set.documents = stream.documents();
  set.cut_documents = stream.cut_documents();
  set.cut_tokens = stream.cut_tokens();
  return set;
}

std::optional<Note> cut_note(const DocumentSet& documents, const PackOptions& shape, std::string_view key) {
  if (documents.cut_documents == 0) return {};
  return Note{shape.longer == LongerThan::drop ? "documents_dropped" : "documents_truncated",
              "",
              {{"key", key},
               {"max_length", shape.max_length},
               {"documents", documents.cut_documents},
               {"of", documents.documents},
               {"tokens", documents.cut_tokens}}};
}

std::optional<std::vector<GlobalBatch>> without_oversize(std::span<const GlobalBatch> batches,
                                                         std::int64_t limit, Oversize oversize,
                                                         std::string_view policy,
                                                         std::vector<Slice>& dropped) {
  const auto too_long = [limit](const Slice& slice) { return slice.tokens() > limit; };
  bool any = false;
  for (const GlobalBatch& batch : batches) {
    const auto found = std::find_if(batch.slices.begin(), batch.slices.end(), too_long);
    if (found == batch.slices.end()) continue;
    if (oversize == Oversize::error) throw UnplaceableDocument(*found, policy, limit);
    any = true;
    break;
  }
  if (!any) return std::nullopt;

  std::vector<GlobalBatch> result(batches.size());
  for (std::size_t b = 0; b < batches.size(); ++b) {
    const GlobalBatch& from = batches[b];
    GlobalBatch& to = result[b];
    to.slices.reserve(from.slices.size());
    std::size_t window = 0;
    for (std::size_t i = 0; i <= from.slices.size(); ++i) {
      for (; window < from.window_begin.size() && from.window_begin[window] == i; ++window)
        to.window_begin.push_back(to.slices.size());
      if (i < from.slices.size()) append(from.slices[i], limit, oversize, to.slices, dropped);
    }
  }
  return result;
}

}  // namespace equipoise

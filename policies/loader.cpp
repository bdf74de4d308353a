#include "policies/loader.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "policies/base/text.h"

namespace equipoise {
namespace {

// What batches are made from.
struct Source {
  std::vector<std::int64_t> lengths;  // of the recorded documents
  PackOptions shape;
  LoaderTail tail = LoaderTail::carry;
  bool repeat = false;
};

// The trace as an endless or a finite stream of documents and of batches.
class Stream {
 public:
  // A place between two batches.
  struct Place {
    std::size_t position = 0;    // recorded documents before it, of the current reading
    std::int64_t documents = 0;  // documents before it, of all readings
    Slice rest;                  // the part of the last document that no batch has yet
  };

  Stream(const Source& source, const Place& place) : source_(source), place_(place) {}

  // The next batch; empty at the end of the trace, before which one may be short. `expected`: its slices, so
  // far as they are known.
  GlobalBatch next_batch(std::size_t expected) {
    GlobalBatch batch;
    batch.slices.reserve(expected);
    if (source_.shape.documents_per_step > 0)
      fill_with_documents(batch);
    else
      fill_with_windows(batch);
    return batch;
  }

  [[nodiscard]] const Place& place() const { return place_; }
  [[nodiscard]] std::int64_t dropped_tokens() const { return dropped_tokens_; }
  [[nodiscard]] std::int64_t cut_documents() const { return cut_documents_; }
  [[nodiscard]] std::int64_t cut_tokens() const { return cut_tokens_; }

 private:
  // The length of the next document, or 0 at the end. Its id is `place_.documents - 1` afterwards.
  std::int64_t next() {
    for (std::int64_t length; (length = next_recorded()) > 0;) {
      const std::int64_t kept = loaded_length(length, source_.shape);
      cut_documents_ += kept < length ? 1 : 0;
      cut_tokens_ += length - kept;
      if (kept > 0) return kept;
    }
    return 0;
  }

  [[nodiscard]] bool leaves_all_out() const {
    return source_.shape.longer == LongerThan::drop && place_.documents > 0 &&
           cut_documents_ == place_.documents;
  }

  std::int64_t next_recorded() {
    if (place_.position == source_.lengths.size()) {
      if (!source_.repeat || leaves_all_out()) return 0;
      place_.position = 0;
    }
    const std::int64_t length = source_.lengths[place_.position];
    if (length < 1) {
      throw UserError("trace: document ", place_.position, " has length ", length,
                      "; expected at least 1 token");
    }
    ++place_.position;
    ++place_.documents;
    return length;
  }

  // Fills one window. Returns the number of tokens placed, which is less than the window only at the end of
  // the trace.
  std::int64_t fill_window(std::vector<Slice>& slices) {
    const std::int64_t window = source_.shape.context_window;
    Slice& rest = place_.rest;
    std::int64_t room = window;
    while (room > 0) {
      if (rest.tokens() == 0) {
        const std::int64_t length = next();
        if (length == 0) break;
        rest = {place_.documents - 1, 0, length};
      }
      const std::int64_t taken = std::min(room, rest.tokens());
      slices.push_back({rest.document, rest.begin, rest.begin + taken});
      rest.begin += taken;
      room -= taken;
    }
    if (source_.tail == LoaderTail::drop) {
      dropped_tokens_ += rest.tokens();
      rest.begin = rest.end;
    }
    return window - room;
  }

  void fill_with_windows(GlobalBatch& batch) {
    for (std::int64_t w = 0; w < source_.shape.sequences_per_step; ++w) {
      const std::size_t first = batch.slices.size();
      const std::int64_t placed = fill_window(batch.slices);
      if (placed > 0) batch.window_begin.push_back(first);
      if (placed < source_.shape.context_window) break;
    }
    if (!batch.slices.empty()) batch.window_begin.push_back(batch.slices.size());
  }

  void fill_with_documents(GlobalBatch& batch) {
    for (std::int64_t i = 0; i < source_.shape.documents_per_step; ++i) {
      const std::int64_t length = next();
      if (length == 0) break;
      batch.slices.push_back({place_.documents - 1, 0, length});
    }
  }

  const Source& source_;
  Place place_;
  std::int64_t dropped_tokens_ = 0;
  std::int64_t cut_documents_ = 0;
  std::int64_t cut_tokens_ = 0;
};

// Refuses a batch that is not full, where the study asks for full ones.
void check_full(const GlobalBatch& batch, std::int64_t tokens, std::int64_t full, std::int64_t steps,
                const PackOptions& shape) {
  const bool whole = shape.documents_per_step > 0;
  if (whole ? std::ssize(batch.slices) >= shape.documents_per_step
            : tokens >= shape.context_window * shape.sequences_per_step)
    return;
  const std::string of = whole ? std::to_string(shape.documents_per_step) + " documents"
                               : std::to_string(shape.sequences_per_step) + " windows of " +
                                     std::to_string(shape.context_window) + " tokens";
  throw UserError("trace: too short: it holds ", full, " full global batches of ", of, ", steps asks for ",
                  steps, "; lower steps or set trace.repeat to true");
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

// The batch with its slices above the limit as `oversize` has them.
GlobalBatch shortened(const GlobalBatch& from, std::int64_t limit, Oversize oversize,
                      std::vector<Slice>& dropped) {
  GlobalBatch to;
  to.slices.reserve(from.slices.size());
  std::size_t window = 0;
  for (std::size_t i = 0; i <= from.slices.size(); ++i) {
    for (; window < from.window_begin.size() && from.window_begin[window] == i; ++window)
      to.window_begin.push_back(to.slices.size());
    if (i < from.slices.size()) append(from.slices[i], limit, oversize, to.slices, dropped);
  }
  return to;
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
  if (shape.documents_per_step <= 0 && (shape.context_window < 1 || shape.sequences_per_step < 1))
    throw UserError("context_window and sequences_per_step: expected numbers >= 1, found ",
                    shape.context_window, " and ", shape.sequences_per_step);
  // Without a number of steps an endless stream would never end.
  const auto source = std::make_shared<const Source>(
      Source{{lengths.begin(), lengths.end()}, shape, options.tail, options.repeat && options.steps > 0});
  struct Begin {
    Stream::Place place;
    std::size_t slices = 0;
  };
  std::vector<Begin> begins;
  DocumentSet set;
  Stream stream(*source, {});
  for (std::int64_t step = 0; options.steps == 0 || step < options.steps; ++step) {
    const Stream::Place place = stream.place();
    const GlobalBatch batch = stream.next_batch(begins.empty() ? 0 : begins.back().slices * 5 / 4);
    const std::int64_t tokens = sum_of(batch.slices, &Slice::tokens);
    if (options.steps > 0) check_full(batch, tokens, step, options.steps, shape);
    if (tokens == 0) break;
    set.tokens += tokens;
    begins.push_back({place, batch.slices.size()});
  }
  set.recorded = std::ssize(source->lengths);
  set.documents = stream.place().documents;
  set.dropped_tokens = stream.dropped_tokens();
  set.cut_documents = stream.cut_documents();
  set.cut_tokens = stream.cut_tokens();
  const std::size_t count = begins.size();
  set.batches = Batches(count, [source, begins = std::move(begins)](std::size_t k) {
    return Stream(*source, begins[k].place).next_batch(begins[k].slices);
  });
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

bool cut_by_windows(const Batches& batches) {
  return std::ranges::any_of(batches, [](const GlobalBatch& batch) {
    return std::ranges::any_of(batch.slices, [](const Slice& slice) { return slice.begin > 0; });
  });
}

std::optional<Batches> without_oversize(const Batches& batches, std::int64_t limit, Oversize oversize,
                                        std::string_view policy, std::vector<Slice>& dropped) {
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
  for (const GlobalBatch& batch : batches) (void)shortened(batch, limit, oversize, dropped);
  return Batches(batches.size(), [batches, limit, oversize](std::size_t k) {
    std::vector<Slice> known;
    return shortened(batches[k], limit, oversize, known);
  });
}

}  // namespace equipoise

#include "traces/formats/packed_row.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "traces/json_text.h"

namespace equipoise::formats {
namespace {

using nlohmann::json;
using Numbers = std::vector<std::int64_t>;

// How a field of a row tells where documents begin. The first kind in this list that a row has decides; its
// token ids are checked before all.
enum class Says { lengths, borders, starts, positions, segments, padded_segments, mask, tokens };

struct Field {
  std::string_view name;
  Says says;
};
constexpr std::array kFields{Field{"input_ids", Says::tokens},
                             Field{"token_ids", Says::tokens},
                             Field{"seq_lengths", Says::lengths},
                             Field{"seq_lens", Says::lengths},
                             Field{"seqlens", Says::lengths},
                             Field{"sequence_lengths", Says::lengths},
                             Field{"document_lengths", Says::lengths},
                             Field{"doc_lengths", Says::lengths},
                             Field{"doc_lens", Says::lengths},
                             Field{"sample_lengths", Says::lengths},
                             Field{"cu_seqlens", Says::borders},
                             Field{"cu_seqlens_q", Says::borders},
                             Field{"cu_seq_lens", Says::borders},
                             Field{"cu_seq_lens_q", Says::borders},
                             Field{"seq_start_id", Says::starts},
                             Field{"seq_start_ids", Says::starts},
                             Field{"position_ids", Says::positions},
                             Field{"input_pos", Says::positions},
                             Field{"inputs_position", Says::positions},
                             Field{"seq_idx", Says::segments},
                             Field{"sequence_ids", Says::segments},
                             Field{"document_ids", Says::segments},
                             Field{"doc_ids", Says::segments},
                             Field{"segment_ids", Says::padded_segments},
                             Field{"inputs_segmentation", Says::padded_segments},
                             Field{"attention_mask", Says::mask}};

std::optional<Says> says(std::string_view name) {
  const auto* const found = std::ranges::find(kFields, name, &Field::name);
  return found == kFields.end() ? std::nullopt : std::optional(found->says);
}

// The integers of a flat list; nothing if the value is none (masks of two dimensions, text).
std::optional<Numbers> numbers_of(const json& value) {
  if (!value.is_array()) return std::nullopt;
  Numbers numbers;
  numbers.reserve(value.size());
  for (const json& item : value) {
    if (item.is_boolean()) {
      numbers.push_back(item.get<bool>() ? 1 : 0);
    } else if (item.is_number_integer()) {
      const bool wraps = item.is_number_unsigned() && item.get<std::int64_t>() < 0;
      numbers.push_back(wraps ? std::numeric_limits<std::int64_t>::max() : item.get<std::int64_t>());
    } else {
      return std::nullopt;
    }
  }
  return numbers;
}

[[noreturn]] void refuse_list(const json& list, const std::string& where) {
  throw UserError(where, ": found ", shown_json(list), "; expected a length, or one flat array of token ids");
}

// Whether a value that is no list of integers is a fault. Names of documents may be text, and positions and
// masks may have more dimensions, which say nothing about documents.
bool must_be_read(const Field& field, const json& value) {
  if (field.says <= Says::starts) return !value.is_null() && !value.is_number_integer();
  return (field.says == Says::positions || field.says == Says::mask) && value.is_array() &&
         std::ranges::none_of(value, [](const json& item) { return item.is_array(); });
}

struct Span {
  std::int64_t begin = 0, end = 0;
};

class Row {
 public:
  // `own` is the field that the user named, if any; only token ids are then read besides it. `tokens` are
  // those of a field with an unknown name.
  Row(const json& row, const std::string& where, std::string_view own, Numbers tokens = {}) : where_(where) {
    if (!tokens.empty()) size_ = static_cast<std::int64_t>(tokens.size()), size_of_ = "its token ids";
    if (!row.is_object()) return;
    for (const Field& field : kFields) {
      const bool of_tokens = field.says == Says::tokens;
      if ((!own.empty() && own != field.name && !of_tokens) || (of_tokens && !tokens.empty())) continue;
      const auto found = row.find(field.name);
      if (found == row.end()) continue;
      if (std::optional<Numbers> numbers = numbers_of(*found))
        add(field, *std::move(numbers));
      else if (of_tokens)
        refuse_list(*found, where);
      else if (must_be_read(field, *found))
        throw UserError(where, ": ", field.name, ": found ", shown_json(*found),
                        "; expected a list of integers");
    }
  }

  void add_documents(Lengths& lengths) const {
    if (size_ <= 0 && numbers_.empty()) refuse_length(where_, "an empty array");
    const std::size_t before = lengths.size();
    for (const Span& span : spans()) add_unmasked(span, lengths);
    if (lengths.size() == before) refuse_length(where_, "a row of padding");
  }

 private:
  void add(const Field& field, Numbers numbers) {
    if (numbers.empty() && field.says != Says::tokens) return;
    const bool per_token = field.says >= Says::positions;
    const auto size = static_cast<std::int64_t>(numbers.size());
    const bool unlike = per_token && size_ >= 0 && size != size_;
    // Numbers of other documents, such as search engines give, have such names, too.
    if (unlike && field.says == Says::segments) return;
    if (unlike)
      fail(field.name, concatenated("as many numbers as ", size_of_, " has (", size_, "), found ", size));
    if (per_token && size_ < 0) size_ = size, size_of_ = field.name;
    if (field.says == Says::mask) {
      mask_ = std::move(numbers);
    } else if (field.says != Says::tokens && by_.name.empty()) {
      by_ = field;
      numbers_ = std::move(numbers);
    }
  }

  [[noreturn]] void fail(std::string_view field, const std::string& expected) const {
    throw UserError(where_, ": ", field, ": expected ", expected);
  }

  [[nodiscard]] std::vector<Span> spans() const {
    switch (by_.says) {
      case Says::lengths:
        return between(sums());
      case Says::borders:
        return between(borders());
      case Says::starts:
        return between(starts());
      case Says::positions:
        return begun_where([](std::int64_t, std::int64_t now) { return now == 0; });
      case Says::padded_segments:
        check_zero_is_padding();
        [[fallthrough]];
      case Says::segments:
        return begun_where([](std::int64_t before, std::int64_t now) { return now != before; });
      case Says::mask:
      case Says::tokens:
        break;
    }
    return {{0, size_}};
  }

  [[nodiscard]] Numbers sums() const {
    Numbers ends{0};
    for (const std::int64_t length : numbers_) {
      if (length < 0 || length > kLongestDocument)
        fail(by_.name, concatenated("lengths from 0 to ", kLongestDocument, ", found ", length));
      ends.push_back(ends.back() + length);
    }
    check_end(ends.back());
    return ends;
  }
  [[nodiscard]] Numbers borders() const {
    Numbers ends = numbers_;
    while (!ends.empty() && ends.back() < 0) ends.pop_back();  // Megatron pads the list with -1
    check_rising(ends);
    check_end(ends.back());
    return ends;
  }
  [[nodiscard]] Numbers starts() const {
    if (size_ < 0)
      fail(by_.name, "token ids (input_ids) with it, which say where the last document ends, found none");
    Numbers ends = numbers_;
    check_rising(ends);
    check_end(ends.back());
    ends.push_back(size_);
    return ends;
  }
  void check_rising(const Numbers& ends) const {
    if (ends.empty() || ends.front() != 0 || !std::ranges::is_sorted(ends))
      fail(by_.name, "numbers that rise from 0, found " + shown_json(json(numbers_)));
  }
  void check_end(std::int64_t end) const {
    if (size_ >= 0 && end > size_)
      fail(by_.name, concatenated("at most the ", size_, " tokens of ", size_of_, ", found ", end));
  }

  // A row that begins with zeros and has none later is padded on its left, or its first document has number
  // 0. A mask tells which.
  void check_zero_is_padding() const {
    if (numbers_.empty() || numbers_.front() != 0 || !mask_.empty()) return;
    const auto first = std::ranges::find_if(numbers_, [](std::int64_t n) { return n != 0; });
    if (first == numbers_.end() || std::find(first, numbers_.end(), 0) != numbers_.end()) return;
    fail(by_.name,
         concatenated("an attention_mask next to it, since the row begins with ", first - numbers_.begin(),
                      " zeros: they are padding, or a document that seq_idx would number"));
  }

  static std::vector<Span> between(const Numbers& ends) {
    std::vector<Span> spans;
    for (std::size_t i = 1; i < ends.size(); ++i) spans.push_back({ends[i - 1], ends[i]});
    return spans;
  }
  template <class Begins>
  [[nodiscard]] std::vector<Span> begun_where(const Begins& begins) const {
    std::vector<Span> spans;
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      const auto place = static_cast<std::int64_t>(i);
      if (by_.says == Says::padded_segments && numbers_[i] == 0) continue;
      const bool follows =
          !spans.empty() && spans.back().end == place && !begins(numbers_[i - 1], numbers_[i]);
      if (!follows) spans.push_back({place, place});
      spans.back().end = place + 1;
    }
    return spans;
  }

  // Adds the tokens of a span that are no padding. If the mask numbers documents, one ends where the number
  // changes.
  void add_unmasked(const Span& span, Lengths& lengths) const {
    if (mask_.empty()) return add_length(span.end - span.begin, lengths);
    std::int64_t length = 0, last = 0;
    for (std::int64_t i = span.begin; i < span.end && i < static_cast<std::int64_t>(mask_.size()); ++i) {
      const std::int64_t now = mask_[at(i)];
      if (now == 0) continue;
      if (now != last && last != 0) add_length(length, lengths), length = 0;
      last = now;
      ++length;
    }
    add_length(length, lengths);
  }
  void add_length(std::int64_t length, Lengths& lengths) const {
    if (length == 0) return;
    if (!is_length(length)) refuse_length(where_, std::to_string(length));
    lengths.push_back(length);
  }

  const std::string& where_;
  std::int64_t size_ = -1;  // tokens of the row including padding; -1 if unknown
  std::string_view size_of_;
  Field by_{"", Says::tokens};  // the field that tells where documents begin
  Numbers numbers_;             // of it
  Numbers mask_;
};

// The kind of a list by parts of its name, for names that no known library uses.
std::optional<Says> says_by_parts(std::string_view name) {
  if (name.ends_with("ids") || name.find("token") != std::string_view::npos) return Says::tokens;
  if (name.starts_with("cu_")) return Says::borders;
  for (const std::string_view word : {"len", "lens", "length", "lengths"})
    if (name.ends_with(word) || name.find(std::string(word) + "_") != std::string_view::npos)
      return Says::lengths;
  return std::nullopt;
}

}  // namespace

bool has_token_fields(const json& row) {
  return std::ranges::any_of(kFields, [&](const Field& field) {
    const bool alone =
        field.says < Says::starts || field.says == Says::positions || field.says == Says::tokens;
    const auto found = row.find(field.name);
    return alone && found != row.end() && found->is_array();
  });
}

void add_documents(const json& row, const std::string& where, Lengths& lengths) {
  Row(row, where, "").add_documents(lengths);
}

void add_documents_of(const json& row, std::string_view field, const json& list, const std::string& where,
                      Lengths& lengths) {
  std::optional<Numbers> numbers = numbers_of(list);
  if (!numbers) refuse_list(list, where);
  if (numbers->empty()) refuse_length(where, "an empty array");
  const std::string_view name = field.substr(field.rfind('.') + 1);
  if (const std::optional<Says> known = says(name))
    return Row(row, where, *known == Says::tokens ? "" : name).add_documents(lengths);
  const std::optional<Says> kind = name.empty() ? Says::tokens : says_by_parts(name);
  if (!kind)
    throw UserError(
        where, ": ", field, ": found ", shown_json(list),
        "; expected a length, token ids (input_ids), or what says where the documents of a pack "
        "begin (",
        all_joined(kFields, ", ", [](const Field& f) { return f.says < Says::mask ? f.name : ""; }), ")");
  if (*kind != Says::tokens) {
    const std::string_view as = *kind == Says::borders ? "cu_seqlens" : "seq_lengths";
    return Row({{std::string(as), list}}, where, as).add_documents(lengths);
  }
  if (std::ranges::any_of(*numbers, [](std::int64_t id) { return id < 0; }))
    throw UserError(where, ": found ", shown_json(list), "; expected token ids, which are not negative");
  Row(row, where, "", *std::move(numbers)).add_documents(lengths);
}

}  // namespace equipoise::formats

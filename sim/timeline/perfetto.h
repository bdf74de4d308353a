// Writes a timeline as a Perfetto trace (.pftrace; opens in ui.perfetto.dev): tracks in a tree, nested
// slices, flow arrows, counters, arguments.
//
// The format is a protobuf message per packet. Names are interned: each text is written once and referred to
// by number. Packets stream into a temporary file through a fixed buffer; close() renames it to its place, so
// that a half-written trace is never left behind. Memory: the distinct names, nothing per event.
//
// A path that ends with .gz is compressed on the way, which the viewer reads as it is.
//
// Times are picoseconds in, nanoseconds (the format's unit, rounded down) out. Write each track's events in
// time order, slices properly nested.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

struct gzFile_s;

namespace equipoise {

// Protobuf messages, written by hand (chakra.cpp has some, too): a message is a run of fields, a field a tag
// (number and wire type) and a value that is a varint, eight bytes or length-delimited bytes. No library is
// needed for that, nor a schema.
namespace protobuf {

using Bytes = std::vector<std::uint8_t>;

inline void put_varint(Bytes& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<std::uint8_t>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<std::uint8_t>(value));
}

inline void put_tag(Bytes& out, std::uint32_t number, std::uint32_t wire) {
  put_varint(out, (std::uint64_t{number} << 3) | wire);
}

inline void put_integer(Bytes& out, std::uint32_t number, std::uint64_t value) {
  put_tag(out, number, 0);
  put_varint(out, value);
}

inline void put_fixed64(Bytes& out, std::uint32_t number, std::uint64_t value) {
  put_tag(out, number, 1);
  for (int byte = 0; byte < 8; ++byte) out.push_back(static_cast<std::uint8_t>(value >> (8 * byte)));
}

inline void put_text(Bytes& out, std::uint32_t number, std::string_view text) {
  put_tag(out, number, 2);
  put_varint(out, text.size());
  out.insert(out.end(), text.begin(), text.end());
}

inline void put_message(Bytes& out, std::uint32_t number, const Bytes& message) {
  put_text(out, number, {reinterpret_cast<const char*>(message.data()), message.size()});
}

}  // namespace protobuf

// Number of a text within the file.
using NameId = std::uint64_t;
using TrackId = std::uint64_t;

// One argument of a slice, shown when it is selected.
struct TraceArgument {
  NameId name = 0;
  std::variant<std::int64_t, double, std::string_view> value;
};

class PerfettoWriter {
 public:
  // Throws UserError if the file cannot be created.
  explicit PerfettoWriter(const std::string& path);
  ~PerfettoWriter();  // removes the temporary file unless close() was called
  PerfettoWriter(const PerfettoWriter&) = delete;
  PerfettoWriter& operator=(const PerfettoWriter&) = delete;

  // Adds a track below `parent` (0 is the top); siblings are in the order of `rank`.
  TrackId add_track(std::string_view name, TrackId parent = 0, int rank = 0);
  // Adds a counter's track; `unit` is shown next to the value, e.g. "bytes".
  TrackId add_counter(std::string_view name, std::string_view unit, TrackId parent = 0);

  // Interns the name of a slice or an argument; equal texts give equal numbers.
  NameId slice_name(std::string_view text);
  NameId argument_name(std::string_view text);

  // `flows` leave this slice and `arriving` end in it; slices of equal flow number are joined by arrows.
  void begin(TrackId track, std::int64_t picoseconds, NameId name,
             std::span<const TraceArgument> arguments = {}, std::span<const std::uint64_t> flows = {},
             std::span<const std::uint64_t> arriving = {});
  void end(TrackId track, std::int64_t picoseconds);
  void slice(TrackId track, std::int64_t start, std::int64_t stop, NameId name) {
    begin(track, start, name);
    end(track, stop);
  }
  void count(TrackId counter, std::int64_t picoseconds, std::int64_t value);

  // Completes the file. Throws UserError if it cannot be written.
  void close();

 private:
  NameId intern(std::unordered_map<std::string, NameId>& table, std::string_view text, std::uint32_t field);
  TrackId begin_track(std::string_view name, TrackId parent);
  void finish_track();
  void finish_event(std::int64_t picoseconds);
  void finish_packet();
  void flush();

  std::string path_, temporary_;
  gzFile_s* file_ = nullptr;          // from zlib, which can also write uncompressed
  std::vector<std::uint8_t> buffer_;  // whole packets that wait to be written
  std::vector<std::uint8_t> packet_;  // the packet under construction
  std::vector<std::uint8_t> event_;   // a message inside it
  std::vector<std::uint8_t> nested_;  // a message inside event_
  std::unordered_map<std::string, NameId> slice_names_, argument_names_;
  TrackId next_track_ = 1;
};

}  // namespace equipoise

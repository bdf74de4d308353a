#include "sim/timeline/perfetto.h"

#include <zlib.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "policies/base/error.h"

namespace equipoise {
namespace {

using namespace protobuf;

constexpr std::size_t kBufferBytes = 1 << 20;
constexpr std::uint64_t kSequence = 1;         // all packets form one sequence
constexpr std::uint64_t kSequenceCleared = 1;  // sequence_flags of the first packet
constexpr std::uint64_t kNeedsState = 2;       // of packets that use interned names
constexpr std::int64_t kPicosecondsPerNanosecond = 1000;

// Field numbers of perfetto_trace.proto.
namespace field {
constexpr std::uint32_t kTracePacket = 1;
constexpr std::uint32_t kTimestamp = 8, kSequenceId = 10, kTrackEvent = 11, kInternedData = 12,
                        kSequenceFlags = 13, kTrackDescriptor = 60;
constexpr std::uint32_t kTrackUuid = 1, kTrackName = 2, kParentUuid = 5, kCounter = 8, kChildOrdering = 11,
                        kSiblingRank = 12;
constexpr std::uint32_t kCounterUnit = 3, kCounterUnitName = 6;
constexpr std::uint32_t kDebugAnnotation = 4, kEventType = 9, kNameIid = 10, kEventTrack = 11,
                        kCounterValue = 30, kFlowIds = 47, kTerminatingFlowIds = 48;
constexpr std::uint32_t kAnnotationNameIid = 1, kAnnotationInt = 4, kAnnotationDouble = 5,
                        kAnnotationString = 6;
constexpr std::uint32_t kEventNames = 2, kArgumentNames = 3, kInternedIid = 1, kInternedName = 2;
}  // namespace field

enum class EventType : std::uint64_t { slice_begin = 1, slice_end = 2, counter = 4 };
constexpr std::uint64_t kExplicitOrder = 3;
constexpr std::uint64_t kUnitCount = 2, kUnitBytes = 3;

}  // namespace

PerfettoWriter::PerfettoWriter(const std::string& path) : path_(path), temporary_(path + ".partial") {
  file_ = gzopen(temporary_.c_str(), path.ends_with(".gz") ? "wb" : "wbT");
  if (file_ == nullptr) throw UserError(path, ": cannot be written: ", std::strerror(errno));
  buffer_.reserve(kBufferBytes + 4096);
  put_integer(packet_, field::kSequenceId, kSequence);
  put_integer(packet_, field::kSequenceFlags, kSequenceCleared);
  finish_packet();
}

PerfettoWriter::~PerfettoWriter() {
  if (file_ == nullptr) return;
  gzclose(file_);
  std::remove(temporary_.c_str());
}

void PerfettoWriter::finish_event(std::int64_t picoseconds) {
  packet_.clear();
  put_integer(packet_, field::kTimestamp,
              static_cast<std::uint64_t>(picoseconds / kPicosecondsPerNanosecond));
  put_integer(packet_, field::kSequenceId, kSequence);
  put_integer(packet_, field::kSequenceFlags, kNeedsState);
  put_message(packet_, field::kTrackEvent, event_);
  finish_packet();
}

void PerfettoWriter::finish_packet() {
  put_message(buffer_, field::kTracePacket, packet_);
  packet_.clear();
  if (buffer_.size() >= kBufferBytes) flush();
}

void PerfettoWriter::flush() {
  if (!buffer_.empty() && gzwrite(file_, buffer_.data(), static_cast<unsigned>(buffer_.size())) <= 0)
    throw UserError(path_, ": cannot be written: ", std::strerror(errno));
  buffer_.clear();
}

TrackId PerfettoWriter::begin_track(std::string_view name, TrackId parent) {
  event_.clear();
  put_integer(event_, field::kTrackUuid, next_track_);
  put_text(event_, field::kTrackName, name);
  if (parent != 0) put_integer(event_, field::kParentUuid, parent);
  return next_track_++;
}

void PerfettoWriter::finish_track() {
  packet_.clear();
  put_integer(packet_, field::kSequenceId, kSequence);
  put_message(packet_, field::kTrackDescriptor, event_);
  finish_packet();
}

TrackId PerfettoWriter::add_track(std::string_view name, TrackId parent, int rank) {
  const TrackId id = begin_track(name, parent);
  put_integer(event_, field::kChildOrdering, kExplicitOrder);
  put_integer(event_, field::kSiblingRank, static_cast<std::uint64_t>(static_cast<std::int64_t>(rank)));
  finish_track();
  return id;
}

TrackId PerfettoWriter::add_counter(std::string_view name, std::string_view unit, TrackId parent) {
  nested_.clear();
  put_integer(nested_, field::kCounterUnit, unit == "bytes" ? kUnitBytes : kUnitCount);
  if (unit != "bytes") put_text(nested_, field::kCounterUnitName, unit);
  const TrackId id = begin_track(name, parent);
  put_message(event_, field::kCounter, nested_);
  finish_track();
  return id;
}

NameId PerfettoWriter::intern(std::unordered_map<std::string, NameId>& table, std::string_view text,
                              std::uint32_t interned_field) {
  const auto [it, is_new] = table.try_emplace(std::string(text), table.size() + 1);
  if (!is_new) return it->second;
  nested_.clear();
  put_integer(nested_, field::kInternedIid, it->second);
  put_text(nested_, field::kInternedName, text);
  event_.clear();
  put_message(event_, interned_field, nested_);
  packet_.clear();
  put_integer(packet_, field::kSequenceId, kSequence);
  put_integer(packet_, field::kSequenceFlags, kNeedsState);
  put_message(packet_, field::kInternedData, event_);
  finish_packet();
  return it->second;
}

NameId PerfettoWriter::slice_name(std::string_view text) {
  return intern(slice_names_, text, field::kEventNames);
}

NameId PerfettoWriter::argument_name(std::string_view text) {
  return intern(argument_names_, text, field::kArgumentNames);
}

void PerfettoWriter::begin(TrackId track, std::int64_t picoseconds, NameId name,
                           std::span<const TraceArgument> arguments, std::span<const std::uint64_t> flows,
                           std::span<const std::uint64_t> arriving) {
  event_.clear();
  for (const TraceArgument& argument : arguments) {
    nested_.clear();
    put_integer(nested_, field::kAnnotationNameIid, argument.name);
    if (const auto* integer = std::get_if<std::int64_t>(&argument.value))
      put_integer(nested_, field::kAnnotationInt, static_cast<std::uint64_t>(*integer));
    else if (const auto* real = std::get_if<double>(&argument.value))
      put_fixed64(nested_, field::kAnnotationDouble, std::bit_cast<std::uint64_t>(*real));
    else
      put_text(nested_, field::kAnnotationString, std::get<std::string_view>(argument.value));
    put_message(event_, field::kDebugAnnotation, nested_);
  }
  put_integer(event_, field::kEventType, static_cast<std::uint64_t>(EventType::slice_begin));
  put_integer(event_, field::kNameIid, name);
  put_integer(event_, field::kEventTrack, track);
  for (const std::uint64_t flow : flows) put_fixed64(event_, field::kFlowIds, flow);
  for (const std::uint64_t flow : arriving) put_fixed64(event_, field::kTerminatingFlowIds, flow);
  finish_event(picoseconds);
}

void PerfettoWriter::end(TrackId track, std::int64_t picoseconds) {
  event_.clear();
  put_integer(event_, field::kEventType, static_cast<std::uint64_t>(EventType::slice_end));
  put_integer(event_, field::kEventTrack, track);
  finish_event(picoseconds);
}

void PerfettoWriter::count(TrackId counter, std::int64_t picoseconds, std::int64_t value) {
  event_.clear();
  put_integer(event_, field::kEventType, static_cast<std::uint64_t>(EventType::counter));
  put_integer(event_, field::kEventTrack, counter);
  put_integer(event_, field::kCounterValue, static_cast<std::uint64_t>(value));
  finish_event(picoseconds);
}

void PerfettoWriter::close() {
  flush();
  gzFile const file = file_;
  file_ = nullptr;
  const bool complete = gzclose(file) == Z_OK && std::rename(temporary_.c_str(), path_.c_str()) == 0;
  if (complete) return;
  const std::string why = std::strerror(errno);
  std::remove(temporary_.c_str());
  throw UserError(path_, ": cannot be written: ", why);
}

}  // namespace equipoise

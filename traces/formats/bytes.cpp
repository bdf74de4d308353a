#include "traces/formats/bytes.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <memory>
#include <new>
#include <stdexcept>

#include "policies/base/error.h"
#include "policies/base/files.h"

namespace equipoise::formats {

static_assert(std::endian::native == std::endian::little, "binary length files are little-endian");

namespace {

constexpr std::size_t kBlock = std::size_t{1} << 18;

// Unpacks blocks of bytes by the magic number at their beginning. The unpacked size is compared with the
// limit of inputs. Where the user stated none, it is compared with the ratio that a file of lengths can
// reach: up to 64 MB any ratio is accepted (a million equal lines), above it less than a thousand.
class Unpacker {
 public:
  explicit Unpacker(std::string name) : name_(std::move(name)) {}
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;
  ~Unpacker() {
    if (how_ == Compression::gzip) inflateEnd(&gzip_);
  }

  void add(std::string_view block) {
    if (!begun_) {  // a pipe may deliver one byte at a time
      head_ += block;
      if (head_.size() < 4) return;
      begin();
      block = head_;
    }
    unpack(block);
  }

  Unpacked finish() {
    if (!begun_) {
      begin();
      unpack(head_);
    }
    const bool whole = how_ == Compression::none || (how_ == Compression::gzip ? ended_ : left_ == 0);
    if (!whole) fail("the " + std::string(kNames[at()]) + " stream ends too early: the file is truncated");
    return {std::move(out_), how_};
  }

 private:
  static constexpr std::string_view kNames[] = {"", "gzip", "zstd"};
  [[nodiscard]] std::size_t at() const { return static_cast<std::size_t>(how_); }

  void begin() {
    begun_ = true;
    how_ = compression_of(head_);
    if (how_ == Compression::gzip && inflateInit2(&gzip_, 15 + 16) != Z_OK) throw std::bad_alloc();
    if (how_ == Compression::zstd) zstd_.reset(ZSTD_createDStream());
    if (how_ == Compression::zstd && !zstd_) throw std::bad_alloc();
    if (how_ != Compression::none) block_.assign(kBlock, '\0');
  }

  void unpack(std::string_view block) {
    if (how_ == Compression::gzip) return gunzip(block);
    if (how_ == Compression::zstd) return unzstd(block);
    out_ += block;
  }

  void gunzip(std::string_view block) {
    gzip_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(block.data()));
    gzip_.avail_in = static_cast<uInt>(block.size());
    for (bool full = false; gzip_.avail_in > 0 || full;) {
      if (ended_) inflateReset(&gzip_);  // a file may hold several consecutive gzip members
      gzip_.next_out = reinterpret_cast<Bytef*>(block_.data());
      gzip_.avail_out = static_cast<uInt>(block_.size());
      const int status = inflate(&gzip_, Z_NO_FLUSH);
      ended_ = status == Z_STREAM_END;
      full = gzip_.avail_out == 0 && !ended_;
      keep(block_.size() - gzip_.avail_out, block.size() - gzip_.avail_in);
      if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
        fail(std::string("damaged gzip stream (") + (gzip_.msg != nullptr ? gzip_.msg : "no detail") + ")");
    }
    read_ += block.size();
    taken_ = 0;
  }

  void unzstd(std::string_view block) {
    ZSTD_inBuffer in{block.data(), block.size(), 0};
    for (bool full = false; in.pos < in.size || full;) {
      ZSTD_outBuffer chunk{block_.data(), block_.size(), 0};
      left_ = ZSTD_decompressStream(zstd_.get(), &chunk, &in);
      if (ZSTD_isError(left_) != 0) {
        taken_ = in.pos;
        fail(std::string("damaged zstd stream (") + ZSTD_getErrorName(left_) + ")");
      }
      full = chunk.pos == chunk.size;
      keep(chunk.pos, in.pos);
    }
    read_ += block.size();
    taken_ = 0;
  }

  void keep(std::size_t bytes, std::size_t taken) {
    constexpr double kAnyway = 64e6, kMostRatio = 1000;
    out_.append(block_.data(), bytes);
    taken_ = taken;
    const auto size = static_cast<double>(out_.size()), read = static_cast<double>(read_ + taken_);
    const std::string where = name_ + ": byte " + std::to_string(read_ + taken_);
    if (size > input_limit().bytes) refuse_input(where, "unpacks to more than fits");
    if (!input_limit().is_stated && size > std::max(kAnyway, kMostRatio * read))
      refuse_input(where, "unpacks to more than 1000 times its size");
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw UserError(name_, ": byte ", read_ + taken_, ": ", what);
  }

  std::string name_, head_, out_, block_;
  bool begun_ = false;
  Compression how_ = Compression::none;
  z_stream gzip_{};
  bool ended_ = false;  // whether a gzip member has ended
  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> zstd_{nullptr, ZSTD_freeDStream};
  std::size_t left_ = 0;              // bytes that zstd still expects; 0 at the end of a frame
  std::size_t read_ = 0, taken_ = 0;  // packed bytes of earlier blocks, and of this one
};

std::string gzip(std::string_view bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::bad_alloc();
  const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, deflateEnd);
  std::string out(deflateBound(&stream, static_cast<uLong>(bytes.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(out.size() - stream.avail_out);
  return out;
}

std::string zstd(std::string_view bytes) {
  const std::unique_ptr<ZSTD_CCtx, std::size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
  if (!context) throw std::bad_alloc();
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, 19);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag,
                         1);  // verifies the checksum, so that a damaged file does not give other lengths
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  const std::size_t size = ZSTD_compress2(context.get(), out.data(), out.size(), bytes.data(), bytes.size());
  if (ZSTD_isError(size) != 0) throw std::runtime_error(ZSTD_getErrorName(size));
  out.resize(size);
  return out;
}

}  // namespace

Compression compression_of(std::string_view bytes) {
  if (bytes.substr(0, 2) == "\x1f\x8b") return Compression::gzip;
  if (bytes.substr(0, 4) == "\x28\xb5\x2f\xfd") return Compression::zstd;
  return Compression::none;
}

Compression compression_of_suffix(std::string_view path) {
  if (path.ends_with(".gz")) return Compression::gzip;
  if (path.ends_with(".zst")) return Compression::zstd;
  return Compression::none;
}

std::string_view without_compression_suffix(std::string_view path) {
  const Compression how = compression_of_suffix(path);
  const std::size_t cut = how == Compression::gzip ? 3 : how == Compression::zstd ? 4 : 0;
  return path.substr(0, path.size() - cut);
}

Unpacked read_file(const std::string& path, std::string_view holds) {
  std::error_code ignored;
  if (holds == kDocumentLengths && std::filesystem::is_directory(path, ignored))
    throw UserError(path,
                    ": found a folder; expected a file of document lengths (`trace record` reads folders)");
  Unpacker unpacker(path);
  read_blocks(path, holds, [&](std::string_view block) { unpacker.add(block); });
  return unpacker.finish();
}

Unpacked unpacked(std::string_view bytes, const std::string& name) {
  Unpacker unpacker(name);
  unpacker.add(bytes);
  return unpacker.finish();
}

std::string compress(std::string_view bytes, Compression how) {
  if (how == Compression::gzip) return gzip(bytes);
  if (how == Compression::zstd) return zstd(bytes);
  return std::string(bytes);
}

}  // namespace equipoise::formats

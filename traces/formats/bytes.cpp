#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <new>
#include <stdexcept>

#include "policies/base/error.h"
#include "traces/formats/formats.h"

namespace equipoise::formats {

static_assert(std::endian::native == std::endian::little, "binary length files are little-endian");

namespace {

constexpr std::size_t kBlock = std::size_t{1} << 18;

std::string gunzip(std::string_view bytes, const std::string& name) {
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, inflateEnd);
  std::string out;
  std::string block(kBlock, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  const auto at = [&] { return std::to_string(bytes.size() - stream.avail_in); };
  while (true) {
    stream.next_out = reinterpret_cast<Bytef*>(block.data());
    stream.avail_out = static_cast<uInt>(block.size());
    const int status = inflate(&stream, Z_NO_FLUSH);
    out.append(block.data(), block.size() - stream.avail_out);
    if (status == Z_STREAM_END) {
      if (stream.avail_in == 0) return out;
      inflateReset(&stream);  // a file may hold several gzip members, one after another
    } else if (status == Z_BUF_ERROR || (status == Z_OK && stream.avail_in == 0 && stream.avail_out != 0)) {
      throw UserError(name + ": byte " + at() + ": the gzip stream ends too early: the file is truncated");
    } else if (status != Z_OK) {
      throw UserError(name + ": byte " + at() + ": damaged gzip stream (" +
                      (stream.msg != nullptr ? stream.msg : "no detail") + ")");
    }
  }
}

std::string unzstd(std::string_view bytes, const std::string& name) {
  const std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                             ZSTD_freeDStream);
  if (!stream) throw std::bad_alloc();
  std::string out;
  std::string block(kBlock, '\0');
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  std::size_t left = 0;
  while (true) {
    ZSTD_outBuffer chunk{block.data(), block.size(), 0};
    left = ZSTD_decompressStream(stream.get(), &chunk, &in);
    if (ZSTD_isError(left) != 0)
      throw UserError(name + ": byte " + std::to_string(in.pos) + ": damaged zstd stream (" +
                      ZSTD_getErrorName(left) + ")");
    out.append(block.data(), chunk.pos);
    if (in.pos == in.size && chunk.pos < chunk.size) break;
  }
  if (left != 0)
    throw UserError(name + ": byte " + std::to_string(in.size) +
                    ": the zstd stream ends too early: the file is truncated");
  return out;
}

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
                         1);  // a damaged file must not read as other lengths
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

std::string read_file(const std::string& path, std::string_view holds) {
  const auto expected = [&] { return std::string("; expected a file of ").append(holds); };
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    throw UserError(path + ": cannot open: " + std::strerror(errno) + expected());
  if (S_ISDIR(info.st_mode))
    throw UserError(path + ": found a folder" + expected() +
                    (holds == kDocumentLengths ? " (`trace record` reads folders)" : ""));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) throw UserError(path + ": cannot open: " + std::strerror(errno));
  std::string bytes;
  bytes.resize(static_cast<std::size_t>(info.st_size > 0 ? info.st_size : 0));
  std::size_t filled = std::fread(bytes.data(), 1, bytes.size(), file.get());
  bytes.resize(filled);
  std::string block(kBlock, '\0');  // pipes and growing files: the size was only a hint
  while (std::feof(file.get()) == 0 && std::ferror(file.get()) == 0) {
    filled = std::fread(block.data(), 1, block.size(), file.get());
    bytes.append(block.data(), filled);
    if (filled == 0) break;
  }
  if (std::ferror(file.get()) != 0) throw UserError(path + ": cannot read: " + std::strerror(errno));
  return bytes;
}

std::string decompress(std::string_view bytes, Compression how, const std::string& name) {
  if (how == Compression::gzip) return gunzip(bytes, name);
  if (how == Compression::zstd) return unzstd(bytes, name);
  return std::string(bytes);
}

std::string compress(std::string_view bytes, Compression how) {
  if (how == Compression::gzip) return gzip(bytes);
  if (how == Compression::zstd) return zstd(bytes);
  return std::string(bytes);
}

}  // namespace equipoise::formats

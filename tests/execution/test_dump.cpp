#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "policies/base/files.h"
#include "sim/execution/dump.h"
#include "sim/execution/parameters.h"
#include "sim/workload/model_hf.h"
#include "tests/execution/tiny_model.h"
#include "tests/scratch_folder.h"

using namespace equipoise;
using namespace equipoise::execution;
using equipoise::testing::tiny_llama;

namespace {

struct Npy {
  std::string header;
  std::string data;
};

// By the format's description: 6 bytes of magic, 2 of version, the header's length in 2, the header, data.
Npy read_npy(const std::string& path) {
  const std::string bytes = read_text_file(path);
  REQUIRE(bytes.size() > 10);
  CHECK(bytes.substr(0, 8) == std::string("\x93NUMPY\x01\x00", 8));
  const auto low = static_cast<unsigned char>(bytes[8]);
  const auto high = static_cast<unsigned char>(bytes[9]);
  const std::size_t length = low + 256U * high;
  CHECK((10 + length) % 64 == 0);
  CHECK(bytes[10 + length - 1] == '\n');
  return {bytes.substr(10, length), bytes.substr(10 + length)};
}

template <class Value>
std::vector<Value> values_of(const Npy& npy) {
  std::vector<Value> values(npy.data.size() / sizeof(Value));
  std::memcpy(values.data(), npy.data.data(), npy.data.size());
  return values;
}

}  // namespace

TEST_CASE("an .npy file states type and shape and holds the values") {
  const test::Scratch scratch;
  const std::vector<float> values{1, 2, 3, 4, 5, -6.5F};
  write_npy(scratch.path("a.npy"), std::array<std::int64_t, 2>{2, 3}, values);
  const Npy matrix = read_npy(scratch.path("a.npy"));
  CHECK(matrix.header.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (2,3,), }"));
  CHECK(values_of<float>(matrix) == values);
  const std::vector<std::int64_t> integers{std::int64_t{1} << 40, -100};
  write_npy(scratch.path("b.npy"), std::array<std::int64_t, 1>{2}, integers);
  const Npy vector = read_npy(scratch.path("b.npy"));
  CHECK(vector.header.starts_with("{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }"));
  CHECK(values_of<std::int64_t>(vector) == integers);
}

TEST_CASE("a dump has its files where specs and PyTorch look for them") {
  const test::Scratch scratch;
  const Dump dump(scratch.folder() / "new" / "folder");
  const ModelShape model = tiny_llama();
  const std::vector<Tensor> tensors = inventory(model);
  dump.write_config(model);
  const std::vector<DumpedDocument> documents{{7, 5}};
  dump.write_documents(documents, 3, model.vocab);
  const std::vector<float> norm(static_cast<std::size_t>(model.hidden), 0.5F);
  dump.write_weights("wlb", tensors[final_norm_index(model)], norm);
  dump.write_gradients("wlb", tensors[final_norm_index(model)], norm);
  dump.write_loss("wlb", 2.5, 100);
  dump.write_plan("wlb", {{"steps", nlohmann::json::array()}});

  const std::string root = scratch.path("new/folder/");
  CHECK(nlohmann::json::parse(read_text_file(root + "wlb/loss.json")) ==
        nlohmann::json{{"loss", 2.5}, {"tokens", 100}});
  CHECK(nlohmann::json::parse(read_text_file(root + "wlb/plan.json")).contains("steps"));
  CHECK(read_npy(root + "wlb/weights/model.norm.weight.npy").header.find("(12,)") != std::string::npos);
  CHECK(values_of<float>(read_npy(root + "wlb/gradients/model.norm.weight.npy")) == norm);
  const auto tokens = values_of<std::int64_t>(read_npy(root + "tokens/7.npy"));
  const auto targets = values_of<std::int64_t>(read_npy(root + "targets/7.npy"));
  REQUIRE(tokens.size() == 5);
  CHECK(tokens[2] == token_at(3, 7, 2, model.vocab));
  CHECK(std::vector<std::int64_t>(targets.begin(), targets.end() - 1) ==
        std::vector<std::int64_t>(tokens.begin() + 1, tokens.end()));
  CHECK(targets.back() == kEndOfDocument);
}

TEST_CASE("the configuration of a dump is read back as the same model") {
  for (const bool tied : {false, true}) {
    const test::Scratch scratch;
    const ModelShape model = tiny_llama(tied);
    Dump(scratch.folder()).write_config(model);
    const ModelShape read = read_hf_config(scratch.path("config.json"));
    CHECK(read.layers == model.layers);
    CHECK(read.hidden == model.hidden);
    CHECK(read.heads == model.heads);
    CHECK(read.kv_heads == model.kv_heads);
    CHECK(read.head_dim == model.head_dim);
    CHECK(read.ffn == model.ffn);
    CHECK(read.vocab == model.vocab);
    CHECK(read.tied_embeddings == tied);
    CHECK_NOTHROW(check_runnable(read));
  }
}

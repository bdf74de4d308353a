#include "profiler/fit/torch_trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "traces/json_text.h"

namespace equipoise {
namespace {

using nlohmann::json;

constexpr int kNone = -1;
constexpr std::int64_t kMostSequences = 65536;  // limit for one call

// The ops that are read, with the positions of their operands in "Input Dims", "Input type" and "Concrete
// Inputs".
struct GemmOp {
  std::string_view name;
  int first = 0;  // index of the first of two consecutive matrices
};
constexpr GemmOp kGemms[] = {
    {"aten::mm", 0}, {"aten::addmm", 1}, {"aten::bmm", 0}, {"aten::baddbmm", 1}, {"aten::_scaled_mm", 0}};

struct AttentionOp {
  std::string_view name, kernel, pass;
  bool heads_second;  // [batch, heads, tokens, dim]; else [batch, tokens, heads, dim]
  int query;          // the keys come next
  int causal;
  int cu_seqlens = kNone;  // a tensor only where documents are packed
  int mask = kNone;        // a tensor only where a mask is given
};
constexpr std::string_view kFlash2 = "flash-attention-2";
constexpr AttentionOp kAttentions[] = {
    {"aten::_flash_attention_forward", kFlash2, "forward", false, 0, 8, 3},
    {"aten::_flash_attention_backward", kFlash2, "backward", false, 1, 11, 6},
    {"aten::_scaled_dot_product_flash_attention", kFlash2, "forward", true, 0, 4},
    {"aten::_scaled_dot_product_flash_attention_backward", kFlash2, "backward", true, 1, 11, 6},
    {"aten::_cudnn_attention_forward", "cudnn", "forward", true, 0, 10, 4, 3},
    {"aten::_scaled_dot_product_cudnn_attention", "cudnn", "forward", true, 0, 6, kNone, 3},
    {"aten::_scaled_dot_product_cudnn_attention_backward", "cudnn", "backward", true, 1, 14, 9, 8},
    {"flash_attn::_flash_attn_forward", kFlash2, "forward", false, 0, 5},
    {"flash_attn::_flash_attn_backward", kFlash2, "backward", false, 1, 11},
    {"flash_attn_3::fwd", "flash-attention-3", "forward", false, 0, kNone},
};
// These calls pack documents whose lengths are only on the GPU.
constexpr std::string_view kPacked[] = {"flash_attn::_flash_attn_varlen_forward",
                                        "flash_attn::_flash_attn_varlen_backward"};
constexpr const char* kPackedReason =
    "attention calls over packed documents, whose lengths a trace does not record";

// Transformer Engine calls its products from functions of its own, whose operands a trace does not record.
constexpr std::string_view kTransformerEngine[] = {"_Linear", "_LayerNormLinear", "_LayerNormMLP",
                                                   "_GroupedLinear", "FusedAttnFunc"};

bool is_of_transformer_engine(std::string_view op) {
  if (op.ends_with("Backward")) op.remove_suffix(std::string_view("Backward").size());
  return std::ranges::count(kTransformerEngine, op) > 0;
}

using Dims = std::vector<std::int64_t>;

std::string_view text_in(const json& node, const char* key) {
  const auto it = node.find(key);
  return it != node.end() && it->is_string() ? std::string_view(it->get_ref<const std::string&>())
                                             : std::string_view();
}

// An id that connects events. Profilers before 2.0 write its name in lower case on kernels.
std::optional<std::int64_t> id_in(const json& arguments, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const auto it = arguments.find(key); it != arguments.end() && it->is_number_integer())
      return it->get<std::int64_t>();
  return std::nullopt;
}
std::optional<std::int64_t> external_id(const json& arguments) {
  return id_in(arguments, {"External id", "external id"});
}

// An item in a list of the arguments; null if the list has none there.
const json* item_at(const json& arguments, const char* key, int place) {
  const auto all = arguments.find(key);
  const bool held = place >= 0 && all != arguments.end() && all->is_array() && at(place) < all->size();
  return held ? &(*all)[at(place)] : nullptr;
}

// The shape of a tensor; empty if the input is no tensor.
Dims dims_at(const json& arguments, int place) {
  const json* const sizes = item_at(arguments, "Input Dims", place);
  if (sizes == nullptr) return {};
  Dims dims;
  for (const json& size : *sizes) {
    if (!size.is_number_integer() || size.get<double>() < 0 || size.get<double>() > kMostCount) return {};
    dims.push_back(size.get<std::int64_t>());
  }
  return dims;
}

std::string_view text_at(const json& arguments, const char* key, int place) {
  const json* const one = item_at(arguments, key, place);
  if (one == nullptr || !one->is_string()) return {};
  return one->get_ref<const std::string&>();
}

// The simulator's name of a type; empty if no table covers it.
std::string_view dtype_of(std::string_view type) {
  if (type == "c10::BFloat16") return "bf16";
  if (type == "c10::Half") return "fp16";
  if (type.starts_with("c10::Float8")) return "fp8";
  return {};
}

struct Call {
  const json* arguments = nullptr;
  std::string_view name;
  double us = 0;
  bool has_kernel = false;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class CallReader {
 public:
  CallReader(const std::string& name, ForeignFile& file) : name_(name), file_(file) {}

  void read(const json& events) {
    for (const json& event : events) add_host_event(event);
    for (std::size_t i = 0; i < events.size(); ++i) add_kernel(events[i], i);
    for (const Call& call : calls_)
      if (!sort_in(call) && call.has_kernel) unread_us_[call.name] += call.us;
  }

  void give(SampleSet& set) {
    for (auto& [key, times] : gemms_) {
      GemmSample sample;
      sample.labels = {{"dtype", key.dtype}, {"gpu", file_.gpu}, {"source", name_}};
      sample.groups = key.shape[0];
      sample.m = key.shape[1];
      sample.n = key.shape[2];
      sample.k = key.shape[3];
      sample.seconds = median(std::move(times)) * 1e-6;
      set.gemm.push_back(std::move(sample));
    }
    for (auto& [key, times] : attention_)
      set.attention.push_back(attention_sample(key, median(std::move(times)) * 1e-6));
    file_.used = gemms_.size() + attention_.size();
    file_.unread = unread();
    if (kernels_ == 0)
      throw UserError(name_, ": expected GPU kernels (profile with ProfilerActivity.CUDA), found none");
    if (file_.used == 0 && !any_shapes_)
      throw UserError(
          name_,
          ": expected shapes of the ops (\"Input Dims\": profile with record_shapes=True), found none");
    file_.what = concatenated(gemms_.size(), " GEMM shapes and ", attention_.size(), " attention shapes");
  }

 private:
  struct Key {  // calls with equal keys make one sample
    std::string dtype, kernel, pass;
    bool causal = false;
    std::array<std::int64_t, 6> shape{};
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  void add_host_event(const json& node) {
    const std::optional<TorchEvent> event = torch_event(node);
    if (!event || event->arguments == nullptr) return;
    const json& arguments = *event->arguments;
    const std::optional<std::int64_t> id = external_id(arguments);
    if (!id) return;
    if (event->category == "cpu_op" || event->category == "Operator") {
      any_shapes_ = any_shapes_ || arguments.contains("Input Dims");
      call_of_id_[*id] = calls_.size();
      calls_.push_back({&arguments, event->name, 0, false});
    } else if (event->category == "cuda_runtime" || event->category == "cuda_driver" ||
               event->category == "Runtime") {
      if (const auto correlation = id_in(arguments, {"correlation"})) id_of_correlation_[*correlation] = *id;
    }
  }

  void add_kernel(const json& node, std::size_t place) {
    const std::optional<TorchEvent> event = torch_event(node);
    if (!event || !event->kernel()) return;
    if (!event->length || !(*event->length >= 0))
      throw UserError(name_, ": traceEvents[", place, "].dur: expected microseconds >= 0, found ",
                      node.contains("dur") ? shown_json(node["dur"]) : "nothing");
    ++kernels_;
    kernel_us_ += *event->length;
    if (event->arguments == nullptr) return;
    std::optional<std::int64_t> id = external_id(*event->arguments);
    if (!id)
      if (const auto correlation = id_in(*event->arguments, {"correlation"}))
        if (const auto it = id_of_correlation_.find(*correlation); it != id_of_correlation_.end())
          id = it->second;
    const auto call = id ? call_of_id_.find(*id) : call_of_id_.end();
    if (call == call_of_id_.end()) return;
    calls_[call->second].us += *event->length;
    calls_[call->second].has_kernel = true;
  }

  // Whether the reader knows the op.
  bool sort_in(const Call& call) {
    for (const std::string_view packed : kPacked)
      if (call.name == packed) return file_.skip(kPackedReason), true;
    for (const GemmOp& op : kGemms)
      if (call.name == op.name) return add_gemm(call, op), true;
    for (const AttentionOp& op : kAttentions)
      if (call.name == op.name) return add_attention(call, op), true;
    return false;
  }

  // The unknown ops that take longest: compiled ones and those of other libraries.
  [[nodiscard]] std::string unread() const {
    constexpr std::size_t kListed = 6;
    constexpr double kLeastShare = 0.01;  // of the kernels' time
    std::vector<std::pair<double, std::string_view>> longest;
    double sum = 0;
    for (const auto& [op, us] : unread_us_) {
      longest.emplace_back(us, op);
      sum += us;
    }
    if (!(sum > kLeastShare * kernel_us_)) return "";
    std::ranges::stable_sort(longest, std::greater<>(), &std::pair<double, std::string_view>::first);
    if (longest.size() > kListed) longest.resize(kListed);
    return concatenated(
        percent(sum / kernel_us_), " of the kernel time (", grouped(std::llround(sum)),
        " us) is of ops whose shapes are not read: ", all_joined(longest, ", ", [](const auto& op) {
          return concatenated(op.second, is_of_transformer_engine(op.second) ? " (Transformer Engine) " : " ",
                              grouped(std::llround(op.first)), " us");
        }));
  }

  // Whether the call has a time and an operand type that a table covers. Otherwise it is counted as skipped.
  bool usable(const Call& call, int operand, Key& key) {
    const auto skip = [&](std::string_view why) {
      file_.skip(concatenated("calls of ", call.name, why));
      return false;
    };
    if (!call.arguments->contains("Input Dims")) return skip(" without shapes (record_shapes=True)");
    const std::string_view type = text_at(*call.arguments, "Input type", operand);
    key.dtype = dtype_of(type);
    if (key.dtype.empty()) return skip(concatenated(" in ", type.empty() ? "no stated type" : type));
    if (!call.has_kernel || !(call.us > 0)) return skip(" without a kernel of their own");
    return true;
  }

  void add_gemm(const Call& call, const GemmOp& op) {
    Key key;
    if (!usable(call, op.first, key)) return;
    Dims a = dims_at(*call.arguments, op.first);
    Dims b = dims_at(*call.arguments, op.first + 1);
    std::int64_t groups = 1;
    if (a.size() == 3 && b.size() == 3 && a[0] == b[0]) {
      groups = a[0];
      a.erase(a.begin());
      b.erase(b.begin());
    }
    const bool product =
        a.size() == 2 && b.size() == 2 && a[1] == b[0] && groups > 0 && a[0] > 0 && a[1] > 0 && b[1] > 0;
    if (!product) return file_.skip("calls of " + std::string(op.name) + " whose shapes are no product");
    key.shape = {groups, a[0], b[1], a[1]};
    gemms_[key].push_back(call.us);
  }

  void add_attention(const Call& call, const AttentionOp& op) {
    Key key;
    // An op without a kernel passed its work to another op, which is read instead.
    if (!call.has_kernel || !usable(call, op.query, key)) return;
    if (!dims_at(*call.arguments, op.cu_seqlens).empty()) return file_.skip(kPackedReason);
    if (!dims_at(*call.arguments, op.mask).empty()) return file_.skip("attention calls under a mask tensor");
    const std::string_view causal = text_at(*call.arguments, "Concrete Inputs", op.causal);
    if (causal != "True" && causal != "False")
      return file_.skip("attention calls that do not say whether they are causal (Concrete Inputs)");
    const Dims query = dims_at(*call.arguments, op.query);
    const Dims keys = dims_at(*call.arguments, op.query + 1);
    const std::size_t tokens = op.heads_second ? 2 : 1;
    const std::size_t heads = op.heads_second ? 1 : 2;
    const bool dense = query.size() == 4 && keys.size() == 4 && query[0] == keys[0] && query[3] == keys[3] &&
                       std::ranges::none_of(query, [](std::int64_t size) { return size == 0; }) &&
                       keys[tokens] >= query[tokens] && keys[heads] > 0 && query[heads] % keys[heads] == 0;
    if (!dense) return file_.skip("attention calls whose shapes are not [batch, tokens, heads, dim]");
    if (query[0] > kMostSequences ||
        static_cast<double>(query[0]) * static_cast<double>(keys[tokens]) > kMostCount)
      return file_.skip("attention calls of more than 2^31 tokens or 65,536 sequences");
    key.kernel = op.kernel;
    key.pass = op.pass;
    key.causal = causal == "True";
    key.shape = {query[0], query[tokens], keys[tokens], query[heads], keys[heads], query[3]};
    attention_[key].push_back(call.us);
  }

  [[nodiscard]] AttentionSample attention_sample(const Key& key, double seconds) const {
    const auto [batch, queries, keys, query_heads, kv_heads, dim] = key.shape;
    AttentionSample sample;
    sample.labels = {{"kernel", key.kernel}, {"dtype", key.dtype}, {"gpu", file_.gpu}, {"source", name_}};
    sample.pass = key.pass;
    sample.heads = {static_cast<int>(dim), static_cast<int>(query_heads), static_cast<int>(kv_heads)};
    sample.mask.causal = key.causal;
    sample.packings = {std::vector<QueryKeys>(static_cast<std::size_t>(batch), {queries, keys})};
    sample.seconds = {seconds};
    sample.least_queries = queries;
    sample.most_keys = keys;
    for (const std::int64_t size : key.shape) sample.shape.push_back(static_cast<double>(size));
    sample.shape.push_back(key.causal ? 1 : 0);
    return sample;
  }

  const std::string& name_;
  ForeignFile& file_;
  std::vector<Call> calls_;
  std::unordered_map<std::int64_t, std::size_t> call_of_id_;
  std::unordered_map<std::int64_t, std::int64_t> id_of_correlation_;
  std::map<Key, std::vector<double>> gemms_, attention_;
  std::map<std::string_view, double> unread_us_;  // of unknown ops, by name
  double kernel_us_ = 0;                          // sum over all kernels
  std::size_t kernels_ = 0;
  bool any_shapes_ = false;
};

const json* events_of(const json& file) {
  if (file.is_array()) return &file;
  if (!file.is_object()) return nullptr;
  const auto it = file.find("traceEvents");
  return it != file.end() ? &*it : nullptr;
}

}  // namespace

std::optional<TorchEvent> torch_event(const json& node) {
  if (!node.is_object() || text_in(node, "ph") != "X") return std::nullopt;
  TorchEvent event{text_in(node, "name"), text_in(node, "cat"), {}, {}, nullptr};
  for (const auto& [key, value] : {std::pair{"ts", &event.begin}, std::pair{"dur", &event.length}})
    if (const auto it = node.find(key); it != node.end() && it->is_number()) *value = it->get<double>();
  if (const auto it = node.find("args"); it != node.end() && it->is_object()) event.arguments = &*it;
  return event;
}

const json& torch_events(const json& file, const std::string& name) {
  const json* events = events_of(file);
  if (events == nullptr)
    throw UserError(name, ": traceEvents: expected the list of a torch.profiler trace, found nothing");
  if (!events->is_array())
    throw UserError(name, ": traceEvents: expected a list, found ", shown_json(*events));
  return *events;
}

std::string torch_gpu(const json& file) {
  if (!file.is_object()) return "";
  const auto devices = file.find("deviceProperties");
  if (devices == file.end() || !devices->is_array() || devices->empty() || !(*devices)[0].is_object())
    return "";
  return std::string(text_in((*devices)[0], "name"));
}

std::optional<std::int64_t> torch_world_size(const json& file) {
  if (!file.is_object()) return std::nullopt;
  const auto job = file.find("distributedInfo");
  const auto ranks = job != file.end() && job->is_object() ? id_in(*job, {"world_size"}) : std::nullopt;
  return ranks && *ranks >= 1 ? ranks : std::nullopt;
}

bool looks_like_torch_trace(const json& file) {
  return events_of(file) != nullptr;
}

ForeignFile add_torch_trace(const json& node, const std::string& name, SampleSet& set) {
  ForeignFile file{"torch.profiler", "", torch_gpu(node), 0, {}};
  CallReader reader(name, file);
  reader.read(torch_events(node, name));
  reader.give(set);
  return file;
}

}  // namespace equipoise

#include "profiler/fit/recipe.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "profiler/fit/attention_fit.h"
#include "profiler/fit/collective_fit.h"
#include "profiler/fit/elementwise_fit.h"
#include "profiler/fit/fitted_table.h"
#include "profiler/fit/gemm_fit.h"
#include "profiler/profile/profile.h"
#include "traces/json_object.h"

namespace equipoise {
namespace {

using nlohmann::json;

bool text_matches(const json& wanted, const std::string& found, bool part) {
  if (wanted.is_array())
    return std::ranges::any_of(wanted, [&](const json& one) { return text_matches(one, found, part); });
  const auto text = wanted.get<std::string>();
  return part ? found.find(text) != std::string::npos : found == text;
}

template <class Sample>
std::vector<const Sample*> selected(const std::vector<Sample>& samples, const json& entry,
                                    const std::string& where) {
  const json& selector = object_field(entry, "fit", where);
  std::vector<const Sample*> found;
  for (const Sample& sample : samples)
    if (selects(selector, sample.labels)) found.push_back(&sample);
  constexpr std::size_t kFewest = 4;
  if (found.size() < kFewest)
    throw UserError(where, ": expected at least ", kFewest, " samples for ", shown_json(selector), ", found ",
                    found.size());
  return found;
}

void multiply_numbers(json& node, double factor) {
  if (node.is_number())
    node = significant(node.get<double>() * factor);
  else
    for (json& child : node) multiply_numbers(child, factor);
}

class Maker {
 public:
  Maker(const json& recipe, std::string where, const SampleSet& samples)
      : recipe_(recipe), where_(std::move(where)), samples_(samples) {}

  json make() {
    profile_ = {{"schema", "equipoise.profile/1"},
                {"name", text_field(recipe_, "name", where_)},
                {"summary", text_field(recipe_, "summary", where_)},
                {"device", object_field(recipe_, "device", where_)},
                {"tables", json::object()}};
    for (const char* key : {"software", "power", "checks"})
      if (recipe_.contains(key)) profile_[key] = recipe_[key];
    sms_ = positive_field(profile_["device"], "sms", where_ + ".device");
    kind_ = recipe_.value("measured", false) ? Provenance::measured : Provenance::published;
    if (recipe_.contains("attention")) make_attention(recipe_["attention"]);
    if (recipe_.contains("gemm")) make_plain("gemm", recipe_["gemm"]);
    if (recipe_.contains("elementwise")) make_plain("elementwise", recipe_["elementwise"]);
    if (recipe_.contains("collective")) {
      const json& section = recipe_["collective"];
      if (section.contains("keep"))
        profile_["tables"]["collective"] = kept(section, where_ + ".collective");
      else
        make_collective(section);
    }
    return profile_;
  }

 private:
  // `path` is such as "collective/node/all_gather".
  static const json& at_path(const json& tables, const std::string& path, const std::string& where) {
    const json::json_pointer pointer("/" + path);
    if (!tables.contains(pointer)) throw UserError(where, ".copy: no table '", path, "' has been made yet");
    return tables.at(pointer);
  }

  json derived(const json& entry, const std::string& where) {
    const json& derive = object_field(entry, "derive", where);
    const std::string here = where + ".derive";
    refuse_unknown_keys(derive, {"copy", "profile", "multiply", "set", "ranges", "document_mask", "rule"},
                        here);
    json table = {{"parameters", json::object()}};
    if (derive.contains("copy")) {
      const std::string path = text_field(derive, "copy", here);
      if (derive.contains("profile")) {
        const Profile other = Profile::load(text_field(derive, "profile", here));
        table = at_path(other.json().at("tables"), path, here);
      } else {
        table = at_path(profile_["tables"], path, here);
      }
      for (const char* key : {"hold_out", "cross_validated", "hold_out_pairs", "selector"}) table.erase(key);
    }
    const json factors = derive.value("multiply", json::object());
    for (const auto& item : factors.items()) {
      if (!table["parameters"].contains(item.key()))
        throw UserError(here, ".multiply: the copied table has no parameter '", item.key(), "'");
      multiply_numbers(table["parameters"][item.key()], item.value().get<double>());
    }
    const json values = derive.value("set", json::object());
    for (const auto& item : values.items()) table["parameters"][item.key()] = item.value();
    for (const char* key : {"ranges", "document_mask"})
      if (derive.contains(key)) table[key] = derive[key];
    table["provenance"] = {{"kind", "derived"}, {"source", text_field(derive, "rule", here)}};
    return table;
  }

  static json kept(const json& entry, const std::string& where) {
    const json& keep = object_field(entry, "keep", where);
    refuse_unknown_keys(keep, {"profile", "table"}, where + ".keep");
    const Profile other = Profile::load(text_field(keep, "profile", where + ".keep"));
    return at_path(other.json().at("tables"), text_field(keep, "table", where + ".keep"), where + ".keep");
  }

  [[nodiscard]] Provenance kind_of(const json& entry) const {
    return entry.value("measured", kind_ == Provenance::measured) ? Provenance::measured
                                                                  : Provenance::published;
  }

  // `more` are the keys that entries of this kind have in addition.
  template <class Fit>
  json made(const json& entry, const std::string& where, const Fit& fit,
            std::initializer_list<std::string_view> more = {}) {
    std::vector<std::string_view> keys{"fit", "derive", "keep", "note", "measured"};
    keys.insert(keys.end(), more);
    refuse_unknown_keys(entry, keys, where);
    if (entry.contains("derive")) return derived(entry, where);
    if (entry.contains("keep")) return kept(entry, where);
    json table = to_json(fit());
    table["selector"] = entry["fit"];
    if (entry.contains("note")) table["note"] = entry["note"];
    return table;
  }

  // A CPU rank is one thread: this program measured it as a device with one compute unit.
  [[nodiscard]] bool cpu_core() const { return kind_ == Provenance::measured && sms_ == 1; }

  void make_attention(const json& section) {
    const std::string where = where_ + ".attention";
    json& table = profile_["tables"]["attention"];
    table = {{"default", text_field(section, "default", where)}, {"kernels", json::object()}};
    for (const auto& kernel : object_field(section, "kernels", where).items())
      for (const auto& pass : kernel.value().items()) {
        const std::string here = where + ".kernels." + kernel.key() + "." + pass.key();
        const json& entry = pass.value();
        const PackedGrid grid{document_mask(entry, here), entry.value("padded_grid", false)};
        const auto fit = [&] {
          std::vector<const AttentionSample*> found;
          for (const AttentionSample* sample : selected(samples_.attention, entry, here))
            if (sample->pass == pass.key()) found.push_back(sample);
          if (found.empty()) throw UserError(here, ": no sample of this direction");
          return cpu_core() ? fit_blocked_attention(found) : fit_attention(found, sms_, grid, kind_of(entry));
        };
        table["kernels"][kernel.key()][pass.key()] = made(entry, here, fit, {"document_mask", "padded_grid"});
      }
  }

  void make_plain(const std::string& name, const json& section) {
    for (const auto& item : section.items()) {
      const std::string here = where_ + "." + name + "." + item.key();
      profile_["tables"][name][item.key()] = made(item.value(), here, [&] {
        if (name == "gemm") {
          const auto found = selected(samples_.gemm, item.value(), here);
          return cpu_core() ? fit_panel_gemm(found) : fit_gemm(found, sms_, kind_of(item.value()));
        }
        return fit_elementwise(selected(samples_.elementwise, item.value(), here), kind_of(item.value()));
      });
    }
  }

  // The entry's samples inside a node or between nodes, of one kind or, if `kind` is empty, of all.
  std::vector<const CollectiveSample*> collectives(const json& entry, const std::string& where,
                                                   bool between_nodes, const std::string& kind) {
    std::vector<const CollectiveSample*> found;
    for (const CollectiveSample* sample : selected(samples_.collective, entry, where)) {
      if (sample->between_nodes() == between_nodes && (kind.empty() || kind == name_of(sample->kind)))
        found.push_back(sample);
    }
    if (found.empty()) throw UserError(where, ": no sample of this kind");
    return found;
  }

  void make_collective(const json& section) {
    const std::string where = where_ + ".collective";
    json& table = profile_["tables"]["collective"];
    table = json::object();
    const double from_ranks = section.value("switch_from_ranks", 0.0);
    for (const auto& item : object_field(section, "node", where).items()) {
      const std::string here = where + ".node." + item.key();
      json made_table = made(item.value(), here, [&] {
        const auto found = collectives(item.value(), here, false, item.key());
        return cpu_core() ? fit_size_table(found)
                          : fit_node_collective(found, from_ranks, kind_of(item.value()));
      });
      profile_["tables"]["collective"]["node"][item.key()] = std::move(made_table);
    }
    if (section.contains("exchange")) make_exchange(section["exchange"], where + ".exchange");
    if (section.contains("networks")) make_networks(section, where);
  }

  void make_exchange(const json& section, const std::string& where) {
    for (const auto& item : section.items()) {
      const std::string here = where + "." + item.key();
      const json& entry = item.value();
      const LinkRates links{entry.value("nvlink_GBps", 0.0), entry.value("nic_GBps", 0.0)};
      const auto fit = [&] {
        if (!(links.nic > 0))
          throw UserError(here, ".nic_GBps: expected the rate of the samples' NICs, found nothing");
        const auto found = selected(samples_.exchange, entry, here);
        if (!found.front()->streams && !(links.nvlink > 0))
          throw UserError(here, ".nvlink_GBps: expected the rate of the samples' NVLink, found nothing");
        return fit_exchange(found, links, kind_of(entry));
      };
      profile_["tables"]["collective"]["exchange"][item.key()] =
          made(entry, here, fit, {"nvlink_GBps", "nic_GBps"});
    }
  }

  void make_networks(const json& section, const std::string& where) {
    std::array<NodeParameters, kCollectiveNames.size()> node;
    for (std::size_t i = 0; i < node.size(); ++i) {
      const std::string name(kCollectiveNames[i]);
      node[i] = node_parameters(object_field(profile_["tables"]["collective"]["node"], name, where + ".node"),
                                where + ".node." + name);
    }
    profile_["tables"]["collective"]["default_network"] = text_field(section, "default_network", where);
    for (const auto& item : object_field(section, "networks", where).items()) {
      const std::string here = where + ".networks." + item.key();
      const json& entry = item.value();
      const double nic = positive_field(entry, "nic_GBps", here);
      const auto fit = [&] {
        return fit_network(collectives(entry, here, true, ""), node, nic, kind_of(entry));
      };
      json table = made(entry, here, fit, {"nic_GBps", "matches", "all_to_all", "unseen_fabrics"});
      table["fitted_at_nic_GBps"] = nic;
      for (const char* key : {"matches", "all_to_all", "unseen_fabrics"})
        if (entry.contains(key)) table[key] = entry[key];
      profile_["tables"]["collective"]["networks"][item.key()] = std::move(table);
    }
  }

  const json& recipe_;
  std::string where_;
  const SampleSet& samples_;
  json profile_;
  double sms_ = 1;
  Provenance kind_ = Provenance::published;
};

}  // namespace

bool selects(const json& selector, const Labels& labels) {
  for (const auto& item : selector.items()) {
    std::string key = item.key();
    const bool part = key.size() > 4 && key.ends_with("_has");
    if (part) key.resize(key.size() - 4);
    if (!text_matches(item.value(), label(labels, key), part)) return false;
  }
  return true;
}

void take_measurement(json& recipe, const std::string& where, const json& measured) {
  if (!recipe.is_object()) return;  // make_profile reports it
  const json facts = recipe.value("measured_facts", json::array());
  const auto is_text = [](const json& fact) { return fact.is_string(); };
  if (!facts.is_array() || !std::all_of(facts.begin(), facts.end(), is_text))
    refuse_field(recipe, "measured_facts", where, "a list of names");
  recipe.erase("measured_facts");
  const json device = measured.is_object() ? measured.value("device", json::object()) : json::object();
  for (const json& fact : facts) {
    const auto name = fact.get<std::string>();
    if (!(device.value(name, 0.0) > 0))
      throw UserError(where, ".measured_facts: no .json file of samples says what ", name, " is");
    recipe["device"][name] = device.at(name);
    recipe["device"]["sources"][name] =
        "measured by this program on " + device.value("name", std::string("this device"));
  }
  if (!measured.is_object() || facts.empty()) return;  // a profile of public tables has no measured fact
  if (measured.contains("software")) recipe["software"] = measured["software"];
  // The samples file lists every check; a profile keeps the worst of each op.
  if (measured.contains("checks") && measured["checks"].contains("summary"))
    recipe["checks"] = measured["checks"]["summary"];
}

json make_profile(const json& recipe, const std::string& where, const SampleSet& samples) {
  if (!recipe.is_object()) throw UserError(where, ": expected a JSON object");
  refuse_unknown_keys(recipe,
                      {"schema", "name", "summary", "device", "software", "power", "checks", "measured",
                       "attention", "gemm", "elementwise", "collective"},
                      where);
  return Maker(recipe, where, samples).make();
}

// A table is chosen by labels that every sample of `profile` has. Rows of a public table may lack them.
static const std::string& label_of(const Labels& labels, const std::string& key) {
  const auto it = labels.find(key);
  if (it == labels.end() || it->second.empty())
    throw UserError(
        "--recipe: needed with these .csv samples, to say which rows make which table: they have no '", key,
        "'");
  return it->second;
}

// Adds one table per kind inside a node, and one for the fabric between nodes if it has samples.
static void add_collectives(json& recipe, const SampleSet& samples, const std::string& network) {
  std::set<std::string> kinds;
  bool between = false;
  for (const CollectiveSample& sample : samples.collective) {
    const std::string& kind = label_of(sample.labels, "op");
    if (sample.between_nodes())
      between = true;
    else
      kinds.insert(kind);
  }
  for (const std::string& kind : kinds) recipe["collective"]["node"][kind] = {{"fit", {{"op", kind}}}};
  if (!between) return;
  const double nic = recipe["device"].value("nic_GBps", 0.0);
  if (!(nic > 0))
    throw UserError(
        "--nic-GBps: needed, the rate of one GPU's NIC in one direction: there are samples between nodes, "
        "and a network is fitted as a share of it");
  if (kinds.size() < kCollectiveNames.size())
    throw UserError("samples: expected all of ", joined(kCollectiveNames),
                    " inside a node besides those between nodes, found ",
                    kinds.empty() ? "none" : joined(std::vector<std::string>(kinds.begin(), kinds.end())),
                    "; or --base, a profile whose links inside a node are borrowed");
  recipe["collective"]["networks"][network] = {{"nic_GBps", nic}, {"fit", json::object()}};
  recipe["collective"]["default_network"] = network;
}

json recipe_of_samples(const json& file, const std::string& name, const SampleSet& samples,
                       const std::string& network) {
  json recipe = {{"name", name}, {"measured", true}, {"device", file.value("device", json::object())}};
  recipe["summary"] = file.value("summary", "measured by this program on " +
                                                recipe["device"].value("name", std::string("this machine")));
  for (const char* key : {"software", "checks"})
    if (file.contains(key)) recipe[key] = file[key];
  if (recipe.contains("checks") && recipe["checks"].contains("summary"))
    recipe["checks"] = nlohmann::json(recipe["checks"]["summary"]);

  for (const AttentionSample& sample : samples.attention) {
    const std::string& kernel = label_of(sample.labels, "kernel");
    if (!recipe.contains("attention")) recipe["attention"]["default"] = kernel;
    json& table = recipe["attention"]["kernels"][kernel][sample.pass];
    table = {{"fit", {{"kernel", kernel}}}};
    if (kernel == "cudnn" && sample.pass == "backward") table["document_mask"] = "square-causal";
  }
  // The simulator asks for bf16. A device that computes in another type answers with the times of that type.
  for (const GemmSample& sample : samples.gemm)
    recipe["gemm"][gemm_table_of(sample.labels)] = {
        {"fit", {{"dtype", label_of(sample.labels, "dtype")}, {"kernel", label(sample.labels, "kernel")}}}};
  // A short run may have too few samples of an op to fit; the profile then has no table of it.
  std::map<std::pair<std::string, std::string>, std::size_t> ops;
  for (const ElementwiseSample& sample : samples.elementwise)
    ops[{label_of(sample.labels, "op"), label_of(sample.labels, "pass")}] += 1;
  for (const auto& [key, count] : ops) {
    const auto& [op, pass] = key;
    const std::string table = op + std::string(pass == "backward" ? kernels::kBackwardSuffix : "");
    if (count >= kFolds) recipe["elementwise"][table] = {{"fit", {{"op", op}, {"pass", pass}}}};
  }
  add_collectives(recipe, samples, network.empty() ? "measured" : network);
  return recipe;
}

}  // namespace equipoise

#include "sim/report/sweep_finding.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string_view>

#include "policies/base/text.h"

namespace equipoise {
namespace {

constexpr double kFlat = 0.01;  // a smaller move is none
constexpr std::ptrdiff_t kMostKeys = 3;

struct Effect {
  std::string value, against;  // of the key
  double low = 0, high = 0;    // rate over that of `against`, - 1
  // By how much it moves the rate, whichever way.
  [[nodiscard]] double size() const { return std::max(std::abs(low), std::abs(high)); }
};

std::pair<std::string, std::string> key_and_value(const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  return {assignment.substr(0, equals), assignment.substr(std::min(assignment.size(), equals + 1))};
}

struct KeyName {
  std::string_view key;
  std::string name, unit;
};
// "CP" of parallel.context, else the key's last part.
KeyName name_of_key(const std::string& key) {
  static const KeyName kNames[] = {
      {"parallel.tensor", "TP", ""},   {"parallel.context", "CP", ""},
      {"parallel.pipeline", "PP", ""}, {"parallel.data", "DP", ""},
      {"parallel.expert", "EP", ""},   {"cluster.network.nic_GBps", "NIC", " GB/s"}};
  const auto known = std::ranges::find(kNames, key, &KeyName::key);
  return known != std::end(kNames) ? *known : KeyName{key, key.substr(key.rfind('.') + 1), ""};
}

// The value of the key in this place that moves the rate most; none where nothing can be compared.
std::optional<Effect> largest_effect(const std::vector<SweptCase>& cases, std::size_t place) {
  std::map<std::vector<std::string>, const SweptCase*> first_of;  // by the other keys
  const std::string first = key_and_value(cases.front().assignments[place]).second;
  const auto others = [&](const SweptCase& one) {
    std::vector<std::string> rest = one.assignments;
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(place));
    return rest;
  };
  for (const SweptCase& one : cases)
    if (key_and_value(one.assignments[place]).second == first) first_of[others(one)] = &one;
  std::map<std::string, Effect> effects;
  for (const SweptCase& one : cases) {
    const std::string value = key_and_value(one.assignments[place]).second;
    const auto base = first_of.find(others(one));
    if (value == first || base == first_of.end()) continue;
    const double moved = one.rate / base->second->rate - 1;
    const auto [known, is_new] = effects.try_emplace(value, Effect{value, first, moved, moved});
    known->second.low = std::min(known->second.low, moved);
    known->second.high = std::max(known->second.high, moved);
  }
  if (effects.empty()) return std::nullopt;
  return std::ranges::max_element(effects, {}, [](const auto& one) { return one.second.size(); })->second;
}

std::string range_text(double low, double high, int digits) {
  const std::string a = fixed(100 * low, digits), b = fixed(100 * high, digits);
  return (a == b ? a : a + " to " + b) + " %";
}

// "CP 4 costs 31 to 41 % a GPU against 1".
std::string effect_text(const KeyName& key, const Effect& effect) {
  const int digits = effect.size() < 0.1 ? 1 : 0;
  const std::string subject = key.name + " " + effect.value + key.unit,
                    against = " a GPU against " + effect.against;
  if (effect.low >= 0) return subject + " adds " + range_text(effect.low, effect.high, digits) + against;
  if (effect.high <= 0) return subject + " costs " + range_text(-effect.high, -effect.low, digits) + against;
  return subject + " costs up to " + fixed(-100 * effect.low, digits) + " % and adds up to " +
         fixed(100 * effect.high, digits) + " %" + against;
}

}  // namespace

std::string case_name(const std::vector<std::string>& assignments) {
  std::vector<std::string> names;
  for (const std::string& assignment : assignments)
    names.push_back(name_of_key(key_and_value(assignment).first).name);
  return all_joined(assignments, ", ", [&](const std::string& assignment) {
    const auto [key, value] = key_and_value(assignment);
    const KeyName name = name_of_key(key);
    return (std::ranges::count(names, name.name) > 1 ? key : name.name) + ' ' + value + name.unit;
  });
}

std::string sweep_finding(std::vector<SweptCase> cases) {
  if (std::ranges::any_of(cases, &SweptCase::runs)) std::erase_if(cases, std::not_fn(&SweptCase::runs));
  std::vector<std::pair<KeyName, Effect>> effects;
  for (std::size_t place = 0; !cases.empty() && place < cases.front().assignments.size(); ++place)
    if (const std::optional<Effect> effect = largest_effect(cases, place))
      effects.emplace_back(name_of_key(key_and_value(cases.front().assignments[place]).first), *effect);
  if (effects.empty()) return "";
  std::ranges::stable_sort(effects, std::ranges::greater{}, [](const auto& e) { return e.second.size(); });
  const auto is_flat = [](const auto& e) { return e.second.size() < kFlat; };
  if (is_flat(effects.front()))
    return all_joined(effects, " and ", [](const auto& e) { return e.first.name; }) +
           (effects.size() == 1 ? " moves" : " move") + " tokens/s/GPU by less than 1 %";
  std::erase_if(effects, is_flat);
  if (std::ssize(effects) > kMostKeys) effects.erase(effects.begin() + kMostKeys, effects.end());
  return all_joined(effects, "; ", [](const auto& e) { return effect_text(e.first, e.second); });
}

}  // namespace equipoise

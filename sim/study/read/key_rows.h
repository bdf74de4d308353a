// Rows of keys: what a key of a study file is, its range, its help, when it acts, and where its value goes.
// From these rows come the reader (study.cpp), the JSON Schema (`equipoise list schema`), the keys that an
// error lists, and the notes about keys that have no effect. The tables of an object's rows are in
// study_keys.h, parallel_keys.h and framework_keys.h; a policy's keys are rows of the same kind next to the
// policy (policies/parameter.h).
//
// To add a key: a field in the struct that it belongs to, and its row,
//
//   integer<&Layout::tensor>("tensor", 1, kMostGpus, "TP; sequence parallelism is always on with it"),
//
// where the struct's own initial value is the default. A key that is no plain value (an object, a list) has a
// row with its schema, and code that reads it.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "policies/base/text.h"
#include "policies/parameter.h"
#include "sim/study/read/study.h"
#include "traces/json_object.h"

namespace equipoise {

// What a user should know of a key in this study, even if the file does not state it: that it has no effect.
using KeyNote = void (*)(std::string_view key, bool stated, const Study& study, Notes& notes);

template <class Target>
struct Key : Parameter<Target> {
  nlohmann::ordered_json (*schema)() = nullptr;  // for values that code reads
  std::string_view required = {};                // what an error expects of a missing key; empty if optional
  KeyNote note = nullptr;
  bool (*acts_in)(const Study&) = nullptr;  // whether it has an effect (Parameter::acts_when) in a study
  bool is_count = false;                    // an integer in digits, not a size such as 8K

  [[nodiscard]] constexpr Key must_be(std::string_view expected) const {
    Key made = *this;
    made.required = expected;
    return made;
  }
  [[nodiscard]] constexpr Key noting(KeyNote what) const {
    Key made = *this;
    made.note = what;
    return made;
  }
  [[nodiscard]] constexpr Key acting(std::string_view when, bool (*where)(const Study&)) const {
    Key made = *this;
    made.acts_when = when;
    made.acts_in = where;
    return made;
  }
  [[nodiscard]] constexpr Key or_words(std::span<const std::string_view> other) const {
    Key made = *this;
    made.words = other;
    return made;
  }
  [[nodiscard]] constexpr Key counted() const {
    Key made = *this;
    made.is_count = true;
    return made;
  }
};

// Reads the value of a key that is there, as its row demands. Throws UserError.
template <class Target>
ParameterValue read_value(JsonObject& object, const Parameter<Target>& row) {
  switch (row.kind) {
    case ParameterKind::integer:
      return object.integer(row.key, 0, row.least, row.most, row.words);
    case ParameterKind::number:
      return object.number(row.key, 0, row.lowest, row.highest);
    case ParameterKind::flag:
      return object.flag(row.key, false);
    case ParameterKind::choice:
      return static_cast<std::int64_t>(object.choice(row.key, 0, row.choices));
    case ParameterKind::integers:
      return object.integers(row.key, row.least, row.most);
    case ParameterKind::text:
      break;
  }
  if (row.pattern.empty()) return object.text(row.key, "");
  if (!object.find(row.key)->is_string()) object.fail(row.key, "a string of " + std::string(row.help));
  return object.text(row.key, "");
}

// Puts the object's values into `target`. Keys without a `set` now count as known; others read them.
template <class Row, class Target>
void read_keys(JsonObject& object, std::span<const Row> rows, Target& target) {
  for (const Row& row : rows) {
    const nlohmann::json* const node = object.find(row.key);
    if (node == nullptr || row.set == nullptr) continue;
    if (row.is_count && node->is_string())
      object.fail(row.key, "an integer in " + std::to_string(row.least) + ".." + std::to_string(row.most));
    row.set(target, read_value(object, row));
  }
}

// Throws UserError if a required key is missing.
template <class Target>
void require_keys(const JsonObject& object, std::span<const Key<Target>> rows) {
  for (const Key<Target>& row : rows)
    if (!row.required.empty() && !object.has(row.key)) object.fail(row.key, std::string(row.required));
}

// Adds the rows' notes on a study whose file has `object` (or null) at their place, "framework.".
template <class Target>
void note_keys(std::string_view place, std::span<const Key<Target>> rows, const nlohmann::json* object,
               const Study& study, Notes& notes) {
  for (const Key<Target>& row : rows) {
    const bool stated = object != nullptr && object->is_object() && object->contains(std::string(row.key));
    if (stated && row.acts_in != nullptr && !row.acts_in(study))
      notes.push_back(no_effect(std::string(place).append(row.key), row.acts_when));
    if (row.note != nullptr) row.note(row.key, stated, study, notes);
  }
}

namespace keys {

using nlohmann::ordered_json;

inline constexpr std::int64_t kMostLayers = 100000;  // of a model
template <class Member>
struct MemberOf;
template <class Held, class Struct>
struct MemberOf<Held Struct::*> {
  using Target = Struct;
};

// The place of a key's value: a member, or a member of a member. `Owner` is the target, or a const one.
template <auto First, auto... Rest>
struct Place {
  using Target = typename MemberOf<decltype(First)>::Target;
  template <class Owner, class Put>
  static void reach(Owner& target, const Put& put) {
    if constexpr (sizeof...(Rest) == 0)
      put(target.*First);
    else
      Place<Rest...>::reach(target.*First, put);
  }
};
// Framework options exist twice (framework.h), and what a study says holds on any GPU.
template <auto Member, auto... Rest>
requires std::is_same_v<typename MemberOf<decltype(Member)>::Target, FrameworkOptions>
struct Place<Member, Rest...> {
  using Target = Framework;
  template <class Owner, class Put>
  static void reach(Owner& framework, const Put& put) {
    for (auto* options : {&framework.in_training, &framework.alone})
      if constexpr (sizeof...(Rest) == 0)
        put(options->*Member);
      else
        Place<Rest...>::reach(options->*Member, put);
  }
};

template <class Field>
struct Inside {
  using type = Field;
};
template <class Held>
struct Inside<std::optional<Held>> {
  using type = Held;
};

// The value of a field; an empty text for an optional without a value.
template <class Held, class Field>
ParameterValue held_by(const Field& field) {
  if constexpr (std::is_same_v<Field, typename Inside<Field>::type>)
    return static_cast<Held>(field);
  else
    return field ? ParameterValue(static_cast<Held>(*field)) : ParameterValue(std::string());
}

template <class Held, auto... Path>
constexpr auto row(ParameterKind kind, std::string_view key, std::string_view help) {
  using Target = typename Place<Path...>::Target;
  Key<Target> made;
  made.key = key;
  made.help = help;
  made.kind = kind;
  made.set = [](Target& target, const ParameterValue& value) {
    Place<Path...>::reach(target, [&]<class Field>(Field& field) {
      field = static_cast<typename Inside<Field>::type>(std::get<Held>(value));
    });
  };
  if constexpr (!std::is_same_v<Target, Framework>)  // since a preset has those
    made.get = [](const Target& target) {
      ParameterValue value;
      Place<Path...>::reach(target, [&](const auto& field) { value = held_by<Held>(field); });
      return value;
    };
  return made;
}
template <auto... Path>
constexpr auto integer(std::string_view key, std::int64_t least, std::int64_t most, std::string_view help) {
  auto made = row<std::int64_t, Path...>(ParameterKind::integer, key, help);
  made.least = least;
  made.most = most;
  return made;
}
template <auto... Path>
constexpr auto number(std::string_view key, double lowest, double highest, std::string_view help) {
  auto made = row<double, Path...>(ParameterKind::number, key, help);
  made.lowest = lowest;
  made.highest = highest;
  return made;
}
template <auto... Path>
constexpr auto flag(std::string_view key, std::string_view help) {
  return row<bool, Path...>(ParameterKind::flag, key, help);
}
template <auto... Path>
constexpr auto choice(std::string_view key, std::span<const std::string_view> names, std::string_view help) {
  auto made = row<std::int64_t, Path...>(ParameterKind::choice, key, help);
  made.choices = names;
  return made;
}
template <auto... Path>
constexpr auto text(std::string_view key, std::string_view help) {
  return row<std::string, Path...>(ParameterKind::text, key, help);
}
// A key whose value code reads.
template <class Target>
constexpr Key<Target> other(std::string_view key, ordered_json (*schema)(), std::string_view help) {
  Key<Target> made;
  made.key = key;
  made.help = help;
  made.schema = schema;
  return made;
}

inline ordered_json text_schema() {
  return {{"type", "string"}};
}
inline ordered_json described_text(const char* description) {
  return {{"description", description}, {"type", "string"}};
}

// The JSON Schema of a value, and of an object with these keys and no others.
inline ordered_json size_schema(std::int64_t least, std::int64_t most,
                                std::span<const std::string_view> words = {}) {
  std::string pattern = "^[0-9]+[KkMm]?$";
  for (const std::string_view word : words) pattern.append("|^").append(word).append("$");
  return {{"type", {"integer", "string"}}, {"minimum", least}, {"maximum", most}, {"pattern", pattern}};
}

// A bound without a fraction is written as an integer.
inline ordered_json bound_schema(double bound) {
  const auto whole = static_cast<std::int64_t>(bound);
  return static_cast<double>(whole) == bound ? ordered_json(whole) : ordered_json(bound);
}

template <class Target>
ordered_json value_schema(const Parameter<Target>& row) {
  switch (row.kind) {
    case ParameterKind::integer:
      return size_schema(row.least, row.most, row.words);
    case ParameterKind::number:
      return {
          {"type", "number"}, {"minimum", bound_schema(row.lowest)}, {"maximum", bound_schema(row.highest)}};
    case ParameterKind::flag:
      return {{"type", "boolean"}};
    case ParameterKind::choice:
      return {{"enum", row.choices}};
    case ParameterKind::integers:
      return {{"type", "array"}, {"items", size_schema(row.least, row.most)}};
    case ParameterKind::text:
      break;
  }
  if (row.pattern.empty()) return {{"type", "string"}};
  return {{"type", "string"}, {"pattern", row.pattern}};
}

inline std::string acting_help(std::string help, std::string_view acts_when) {
  return acts_when.empty() ? help : help.append("; acts only ").append(acts_when);
}

// The value of a missing key. Null if there is none, or if it is outside the range, which means what the help
// says: from the window, from memory.
template <class Target>
ordered_json default_of(const Parameter<Target>& row, const Target& defaults) {
  const ParameterValue value = row.get(defaults);
  if (const auto* number = std::get_if<std::int64_t>(&value);
      number != nullptr && row.kind != ParameterKind::choice)
    if (*number < row.least || *number > row.most) {
      if (!row.words.empty()) return row.words[at(-*number)];
      return nullptr;
    }
  if (const auto* number = std::get_if<double>(&value);
      number != nullptr && (*number < row.lowest || *number > row.highest))
    return nullptr;
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value); list != nullptr && list->empty())
    return nullptr;
  if (const auto* text = std::get_if<std::string>(&value); text != nullptr && text->empty()) return nullptr;
  if (row.kind == ParameterKind::choice) return row.choices[at(std::get<0>(value))];
  if (const auto* number = std::get_if<double>(&value)) return bound_schema(*number);
  return std::visit([](const auto& held) { return ordered_json(held); }, value);
}

// Puts the default into the key's schema, unless the key is required or its help says more than a value.
template <class Target>
void add_default(const Parameter<Target>& row, const Target& defaults, ordered_json& property) {
  if (row.get == nullptr || row.help.find("by default") != std::string_view::npos) return;
  if (ordered_json value = default_of(row, defaults); !value.is_null())
    property["default"] = std::move(value);
}

template <class Target>
void add_properties(std::span<const Key<Target>> rows, ordered_json& properties) {
  for (const Key<Target>& row : rows) {
    ordered_json& property = properties[std::string(row.key)] = ordered_json::object();
    if (!row.help.empty()) property["description"] = acting_help(std::string(row.help), row.acts_when);
    property.update(row.schema != nullptr ? row.schema() : value_schema(row));
    if (row.required.empty()) add_default(row, Target(), property);
    if (!row.is_count) continue;
    property["type"] = "integer";
    property.erase("pattern");
  }
}

template <class Target>
ordered_json object_schema(std::span<const Key<Target>> rows) {
  ordered_json schema = {
      {"type", "object"}, {"additionalProperties", false}, {"properties", ordered_json::object()}};
  add_properties(rows, schema["properties"]);
  for (const Key<Target>& row : rows)
    if (!row.required.empty()) schema["required"].push_back(row.key);
  return schema;
}
// The schema of a key that is an object: schema_of<cluster_keys>.
template <auto keys>
ordered_json schema_of() {
  return object_schema(keys());
}

}  // namespace keys

}  // namespace equipoise

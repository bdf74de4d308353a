// A key that a user can set for a policy: its name, its allowed values, and the option that it sets. The
// reader of studies, the command line, the JSON Schema, `equipoise list policies` and the notes on keys
// without effect all read these definitions; there is no second list.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "policies/options.h"

namespace equipoise {

// The largest value of a size, 2^31 tokens.
inline constexpr std::int64_t kLongestSize = std::int64_t{1} << 31;

enum class ParameterKind { integer, number, flag, choice, integers, text };

// The value's type follows from the kind. A choice is its index in `choices`.
using ParameterValue = std::variant<std::int64_t, double, bool, std::vector<std::int64_t>, std::string>;

// Options: PackOptions (packing policies) or ShardOptions (sharding rules).
template <class Options>
struct Parameter {
  std::string_view key;   // name in a study's policy entry; the command line writes it with dashes
  std::string_view help;  // one line, without the policies' names
  ParameterKind kind = ParameterKind::flag;
  std::int64_t least = 0, most = 0;           // integer, integers: inclusive
  double lowest = 0, highest = 0;             // number: inclusive
  std::span<const std::string_view> choices;  // choice
  std::string_view pattern;                   // text: its pattern in the JSON Schema
  ParameterValue (*get)(const Options&) = nullptr;
  // Sets the option. Throws UserError for a malformed text or list of integers, without naming the key.
  void (*set)(Options&, const ParameterValue&) = nullptr;
  bool rising = false;             // integers: each must be above the one before
  std::string_view excludes = {};  // another key that excludes this one
  std::string_view flag = {};      // name on the command line, if it is not --key or --no-key
  // The condition under which the key has an effect, such as "with search". Elsewhere a note says that it has
  // none. Null: always.
  std::string_view acts_when = {};
  bool (*acts)(const Options&) = nullptr;
  std::span<const std::string_view> words = {};  // integer: words for 0, -1, ... instead of a number
};

using PackParameter = Parameter<PackOptions>;
using ShardParameter = Parameter<ShardOptions>;

namespace parameter {

template <class Member>
struct MemberTraits;
template <class Value, class Owner>
struct MemberTraits<Value Owner::*> {
  using value = Value;
  using owner = Owner;
};
template <auto Member>
using ValueOf = typename MemberTraits<decltype(Member)>::value;
template <auto Member>
using OwnerOf = typename MemberTraits<decltype(Member)>::owner;
// Finds the options that a member belongs to: a sharding rule's, or a policy's own in PackOptions.
template <auto Member>
using OptionsOf =
    std::conditional_t<std::is_same_v<OwnerOf<Member>, ShardOptions>, ShardOptions, PackOptions>;

template <auto Member, class Options>
auto& field(Options& options) {
  if constexpr (std::is_same_v<std::remove_const_t<Options>, OwnerOf<Member>>)
    return options.*Member;
  else
    return options.template of<OwnerOf<Member>>().*Member;
}

// Reads and writes a member whose value is stored as `Held`.
template <auto Member, class Held>
constexpr Parameter<OptionsOf<Member>> define(ParameterKind kind, std::string_view key,
                                              std::string_view help) {
  using Options = OptionsOf<Member>;
  Parameter<Options> made;
  made.key = key;
  made.help = help;
  made.kind = kind;
  made.get = [](const Options& o) { return ParameterValue(static_cast<Held>(field<Member>(o))); };
  made.set = [](Options& o, const ParameterValue& value) {
    field<Member>(o) = static_cast<ValueOf<Member>>(std::get<Held>(value));
  };
  return made;
}

template <auto Member>
constexpr auto integer(std::string_view key, std::int64_t least, std::int64_t most, std::string_view help) {
  auto made = define<Member, std::int64_t>(ParameterKind::integer, key, help);
  made.least = least;
  made.most = most;
  return made;
}

template <auto Member>
constexpr auto number(std::string_view key, double lowest, double highest, std::string_view help) {
  auto made = define<Member, double>(ParameterKind::number, key, help);
  made.lowest = lowest;
  made.highest = highest;
  return made;
}

template <auto Member>
constexpr auto flag(std::string_view key, std::string_view help) {
  return define<Member, bool>(ParameterKind::flag, key, help);
}

template <auto Member>
constexpr auto choice(std::string_view key, std::span<const std::string_view> names, std::string_view help) {
  auto made = define<Member, std::int64_t>(ParameterKind::choice, key, help);
  made.choices = names;
  return made;
}

template <auto Member>
constexpr auto integers(std::string_view key, std::int64_t least, std::int64_t most, std::string_view help) {
  auto made = define<Member, std::vector<std::int64_t>>(ParameterKind::integers, key, help);
  made.least = least;
  made.most = most;
  return made;
}

}  // namespace parameter

template <class Key, std::size_t... Sizes>
constexpr auto join(const Key (&... lists)[Sizes]) {
  std::array<Key, (Sizes + ...)> all;
  std::size_t next = 0;
  const auto append = [&](const auto& list) {
    for (const Key& item : list) all[next++] = item;
  };
  (append(lists), ...);
  return all;
}

// Keys that several policies use.
inline constexpr PackParameter kMicroBatches = parameter::integer<&PackOptions::micro_batches>(
    "micro_batches", 1, 1 << 24, "Micro-batches of a step over all lanes");
inline constexpr PackParameter kOversize = parameter::choice<&PackOptions::oversize>(
    "oversize", kOversizeNames,
    "What happens to a document above the policy's limit; error: the row is refused; drop: it is dropped; "
    "truncate: the tokens above are; split: it is cut into documents of the limit");
inline constexpr PackParameter kSeed =
    parameter::integer<&PackOptions::seed>("seed", 0, INT64_MAX, "Seed of shuffles");
inline constexpr PackParameter kShuffle =
    parameter::flag<&PackOptions::shuffle>("shuffle", "false keeps data order, and packs as created");

inline constexpr PackParameter kMaxTokens = parameter::integer<&PackOptions::max_tokens>(
    "max_tokens", 1, kLongestSize, "L_max, most tokens of a micro-batch; from the memory model by default");
// Used by packing and sharding. With "best", more memory is never slower. With "memory" it may be, since the
// largest size keeps documents whole on one rank while the others wait.
inline constexpr std::string_view kBucketSizeHelp =
    "tokens of a CP rank; best (default of gds, skrull, skrull-solver, round-robin): the fastest up to what "
    "memory allows; memory: all that it allows, the paper's rule";
inline constexpr std::string_view kBucketSizeWords[] = {"best", "memory"};
inline constexpr std::string_view kRollbackHelp = "false distributes the document at hand instead";
constexpr PackParameter bucket_size_parameter() {
  PackParameter size =
      parameter::integer<&PackOptions::bucket_size>("bucket_size", 1, kLongestSize, kBucketSizeHelp);
  size.words = kBucketSizeWords;
  size.get = [](const PackOptions& o) {
    return ParameterValue(o.bucket_size > 0 ? o.bucket_size : std::int64_t{o.best_bucket ? 0 : -1});
  };
  size.set = [](PackOptions& o, const ParameterValue& value) {
    const std::int64_t given = std::get<std::int64_t>(value);
    o.bucket_size = given > 0 ? given : 0;
    o.best_bucket = given == 0;
  };
  return size;
}
inline constexpr PackParameter kBucketSize = bucket_size_parameter();
inline constexpr PackParameter kRollback = parameter::flag<&PackOptions::rollback>("rollback", kRollbackHelp);
// A size that a study finds by trials.
inline constexpr std::string_view kAutoWord[] = {"auto"};
constexpr PackParameter or_auto(PackParameter size) {
  size.words = kAutoWord;
  return size;
}
inline constexpr PackParameter kKeep = or_auto(parameter::integer<&PackOptions::keep>(
    "keep", 1, 1 << 20,
    "K, chunks of a dependent group that keep activations; auto: as many as make chunkflow the fastest; 1 by "
    "default, of chunkflow auto in a study whose row has no chunk_size either"));
inline constexpr PackParameter kStrictKeep = parameter::flag<&PackOptions::strict_keep>(
    "strict_keep", "state-aware-1f1b never holds K + 1 chunks of a group");

// What make_plan does around any policy.
inline constexpr PackParameter kOfEveryPolicy[] = {
    parameter::choice<&PackOptions::order>(
        "order", kOrderNames,
        "Order of the micro-batches in a lane; as-packed: as the policy has them; "
        "descending: most work first; bell: the most work in the middle"),
    parameter::flag<&PackOptions::verify>("verify", "Check the finished plan")};

}  // namespace equipoise

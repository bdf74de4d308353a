// What the standard library of emscripten 3.1.6 (libc++ 13) lacks of C++20: the algorithms of std::ranges
// that this project uses, std::bit_cast and std::make_unique_for_overwrite. The preset `web` includes it
// before every file. With a newer library it has nothing.
#pragma once

#include <version>
#if defined(__EMSCRIPTEN__) && _LIBCPP_VERSION < 15000

#include <algorithm>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <ranges>
#include <type_traits>
#include <utility>

// Adding to namespace std is what a standard library does, whose place this file takes.
namespace std {

template <class To, class From>
requires(sizeof(To) == sizeof(From) && is_trivially_copyable_v<To> && is_trivially_copyable_v<From>) To
    bit_cast(const From& from)
noexcept {
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

template <class Array>
unique_ptr<Array> make_unique_for_overwrite(size_t size) {
  return unique_ptr<Array>(new remove_extent_t<Array>[size]);
}

namespace ranges {

template <class T>
struct min_max_result {
  T min, max;
};

// Each takes a range, its own arguments, and a projection, which comes last.

// A predicate of elements, applied to their projections; for two of them, a comparison.
template <class Predicate, class Projection>
auto projected_predicate(Predicate& predicate, Projection& projection) {
  return [&predicate, &projection](auto&&... elements) -> bool {
    return std::invoke(predicate, std::invoke(projection, std::forward<decltype(elements)>(elements))...);
  };
}

template <class Range, class Predicate, class Projection = identity>
bool any_of(Range&& range, Predicate predicate, Projection projection = {}) {
  return std::any_of(begin(range), end(range), projected_predicate(predicate, projection));
}
template <class Range, class Predicate, class Projection = identity>
bool all_of(Range&& range, Predicate predicate, Projection projection = {}) {
  return std::all_of(begin(range), end(range), projected_predicate(predicate, projection));
}
template <class Range, class Predicate, class Projection = identity>
bool none_of(Range&& range, Predicate predicate, Projection projection = {}) {
  return std::none_of(begin(range), end(range), projected_predicate(predicate, projection));
}
template <class Range, class Predicate, class Projection = identity>
auto find_if(Range&& range, Predicate predicate, Projection projection = {}) {
  return std::find_if(begin(range), end(range), projected_predicate(predicate, projection));
}
template <class Range, class Value, class Projection = identity>
auto find(Range&& range, const Value& value, Projection projection = {}) {
  return ranges::find_if(
      range, [&](const auto& element) { return element == value; }, projection);
}
template <class Range, class Predicate, class Projection = identity>
auto count_if(Range&& range, Predicate predicate, Projection projection = {}) {
  return std::count_if(begin(range), end(range), projected_predicate(predicate, projection));
}
template <class Range, class Value, class Projection = identity>
auto count(Range&& range, const Value& value, Projection projection = {}) {
  return ranges::count_if(
      range, [&](const auto& element) { return element == value; }, projection);
}
template <class Range, class Compare = equal_to, class Projection = identity>
auto adjacent_find(Range&& range, Compare compare = {}, Projection projection = {}) {
  return std::adjacent_find(begin(range), end(range), projected_predicate(compare, projection));
}
template <class Range, class Other, class Compare = equal_to>
bool equal(Range&& range, Other&& other, Compare compare = {}) {
  return std::equal(begin(range), end(range), begin(other), end(other), compare);
}

template <class Range, class Compare = less, class Projection = identity>
void sort(Range&& range, Compare compare = {}, Projection projection = {}) {
  std::sort(begin(range), end(range), projected_predicate(compare, projection));
}
template <class Range, class Compare = less, class Projection = identity>
void stable_sort(Range&& range, Compare compare = {}, Projection projection = {}) {
  std::stable_sort(begin(range), end(range), projected_predicate(compare, projection));
}
template <class Range, class Iterator, class Compare = less, class Projection = identity>
void partial_sort(Range&& range, Iterator middle, Compare compare = {}, Projection projection = {}) {
  std::partial_sort(begin(range), middle, end(range), projected_predicate(compare, projection));
}
template <class Range, class Iterator, class Compare = less, class Projection = identity>
void nth_element(Range&& range, Iterator nth, Compare compare = {}, Projection projection = {}) {
  std::nth_element(begin(range), nth, end(range), projected_predicate(compare, projection));
}
template <class Range, class Compare = less, class Projection = identity>
bool is_sorted(Range&& range, Compare compare = {}, Projection projection = {}) {
  return std::is_sorted(begin(range), end(range), projected_predicate(compare, projection));
}
template <class Range, class Value, class Compare = less, class Projection = identity>
auto lower_bound(Range&& range, const Value& value, Compare compare = {}, Projection projection = {}) {
  return std::lower_bound(begin(range), end(range), value, [&](const auto& element, const Value& sought) {
    return std::invoke(compare, std::invoke(projection, element), sought);
  });
}
template <class Range, class Value, class Compare = less, class Projection = identity>
auto upper_bound(Range&& range, const Value& value, Compare compare = {}, Projection projection = {}) {
  return std::upper_bound(begin(range), end(range), value, [&](const Value& sought, const auto& element) {
    return std::invoke(compare, sought, std::invoke(projection, element));
  });
}

template <class Range, class Compare = less, class Projection = identity>
auto max_element(Range&& range, Compare compare = {}, Projection projection = {}) {
  return std::max_element(begin(range), end(range), projected_predicate(compare, projection));
}
template <class Iterator, class Compare = less, class Projection = identity>
auto max_element(Iterator from, Iterator to, Compare compare, Projection projection) {
  return std::max_element(from, to, projected_predicate(compare, projection));
}
template <class Range, class Compare = less, class Projection = identity>
auto min_element(Range&& range, Compare compare = {}, Projection projection = {}) {
  return std::min_element(begin(range), end(range), projected_predicate(compare, projection));
}
template <class Range, class Compare = less, class Projection = identity>
auto minmax_element(Range&& range, Compare compare = {}, Projection projection = {}) {
  const auto found = std::minmax_element(begin(range), end(range), projected_predicate(compare, projection));
  return min_max_result<decltype(found.first)>{found.first, found.second};
}
template <class Range, class Compare = less, class Projection = identity>
auto max(Range&& range, Compare compare = {}, Projection projection = {}) {
  return *ranges::max_element(range, compare, projection);
}
template <class Range, class Compare = less, class Projection = identity>
auto minmax(Range&& range, Compare compare = {}, Projection projection = {}) {
  const auto found = ranges::minmax_element(range, compare, projection);
  return min_max_result<remove_cvref_t<decltype(*found.min)>>{*found.min, *found.max};
}
template <class T>
min_max_result<T> minmax(initializer_list<T> values) {
  const auto [least, most] = std::minmax(values);
  return {least, most};
}

template <class Range, class Out>
void copy(Range&& range, Out out) {
  std::copy(begin(range), end(range), out);
}
template <class Range, class Out, class Predicate, class Projection = identity>
void copy_if(Range&& range, Out out, Predicate predicate, Projection projection = {}) {
  std::copy_if(begin(range), end(range), out, projected_predicate(predicate, projection));
}
template <class Range, class Out>
void move(Range&& range, Out out) {
  std::move(begin(range), end(range), out);
}
// The elements after those that are kept.
template <class Range, class Compare = equal_to, class Projection = identity>
auto unique(Range&& range, Compare compare = {}, Projection projection = {}) {
  const auto kept = std::unique(begin(range), end(range), projected_predicate(compare, projection));
  return subrange(kept, end(range));
}
template <class Range, class Out, class Function, class Projection = identity>
void transform(Range&& range, Out out, Function function, Projection projection = {}) {
  std::transform(begin(range), end(range), out, [&](const auto& element) {
    return std::invoke(function, std::invoke(projection, element));
  });
}
template <class Range, class Value>
void fill(Range&& range, const Value& value) {
  std::fill(begin(range), end(range), value);
}
template <class Range, class Value>
void replace(Range&& range, const Value& old, const Value& value) {
  std::replace(begin(range), end(range), old, value);
}
template <class Range>
void reverse(Range&& range) {
  std::reverse(begin(range), end(range));
}

}  // namespace ranges
}  // namespace std

#endif

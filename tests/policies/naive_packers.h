// The packers once more, as plainly as they can be written: lists, linear scans, O(n^2). Oracles for the fast
// ones; nothing is shared with the library but the random stream. A pack is a list of positions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <vector>

#include "policies/base/random.h"
#include "policies/plan.h"

namespace equipoise::naive {

using Lengths = std::vector<std::int64_t>;
using Pack = std::vector<std::size_t>;

inline std::vector<std::size_t> data_order(const Lengths& lengths) {
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

inline std::vector<std::size_t> shuffled(const Lengths& lengths, SplitMix64* random) {
  std::vector<std::size_t> order = data_order(lengths);
  for (std::size_t i = order.size(); random != nullptr && i-- > 1;) {
    std::swap(order[i], order[static_cast<std::size_t>(random->next() % (i + 1))]);
  }
  return order;
}

inline std::vector<std::size_t> descending(const Lengths& lengths) {
  std::vector<std::size_t> order = data_order(lengths);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });
  return order;
}

inline std::int64_t tokens(const Pack& pack, const Lengths& lengths) {
  std::int64_t sum = 0;
  for (const std::size_t d : pack) sum += lengths[d];
  return sum;
}

inline std::vector<Pack> next_fit(const Lengths& lengths, const std::vector<std::size_t>& order,
                                  std::int64_t capacity) {
  std::vector<Pack> packs;
  for (const std::size_t d : order) {
    if (packs.empty() || tokens(packs.back(), lengths) + lengths[d] > capacity) packs.emplace_back();
    packs.back().push_back(d);
  }
  return packs;
}

inline std::vector<Pack> first_fit(const Lengths& lengths, const std::vector<std::size_t>& order,
                                   std::int64_t capacity) {
  std::vector<Pack> packs;
  for (const std::size_t d : order) {
    std::size_t p = 0;
    while (p < packs.size() && tokens(packs[p], lengths) + lengths[d] > capacity) ++p;
    if (p == packs.size()) packs.emplace_back();
    packs[p].push_back(d);
  }
  return packs;
}

inline std::vector<Pack> best_fit(const Lengths& lengths, const std::vector<std::size_t>& order,
                                  std::int64_t capacity) {
  std::vector<Pack> packs;
  for (const std::size_t d : order) {
    std::size_t best = packs.size();
    for (std::size_t p = 0; p < packs.size(); ++p) {
      const std::int64_t held = tokens(packs[p], lengths);
      if (held + lengths[d] > capacity) continue;
      if (best == packs.size() || held > tokens(packs[best], lengths)) best = p;
    }
    if (best == packs.size()) packs.emplace_back();
    packs[best].push_back(d);
  }
  return packs;
}

inline std::vector<Pack> spfhp(const Lengths& lengths, std::int64_t capacity) {
  std::map<std::int64_t, std::vector<std::size_t>> histogram;
  for (std::size_t d = 0; d < lengths.size(); ++d) histogram[lengths[d]].push_back(d);
  std::vector<Pack> packs;
  for (auto entry = histogram.rbegin(); entry != histogram.rend(); ++entry) {
    const auto& [length, copies] = *entry;
    std::size_t next = 0;
    for (; next < copies.size(); ++next) {
      std::size_t emptiest = packs.size();
      for (std::size_t p = 0; p < packs.size(); ++p) {
        if (emptiest == packs.size() || tokens(packs[p], lengths) < tokens(packs[emptiest], lengths))
          emptiest = p;
      }
      if (emptiest == packs.size() || tokens(packs[emptiest], lengths) + length > capacity) break;
      packs[emptiest].push_back(copies[next]);
    }
    for (; next < copies.size(); ++next) packs.push_back({copies[next]});
  }
  return packs;
}

inline std::vector<Pack> isf(const Lengths& lengths, std::int64_t capacity, int rounds,
                             std::int64_t threshold, SplitMix64* random) {
  std::vector<Pack> kept;
  std::vector<std::size_t> pool = data_order(lengths);
  for (int round = 1; round <= rounds; ++round) {
    if (random != nullptr) shuffle(pool, *random);
    std::vector<std::size_t> back;
    for (const Pack& pack : next_fit(lengths, pool, capacity)) {
      if (round == rounds || tokens(pack, lengths) >= threshold) {
        kept.push_back(pack);
      } else {
        back.insert(back.end(), pack.begin(), pack.end());
      }
    }
    pool = back;
  }
  return kept;
}

// Loads of LPT on a prefix; the packs if it fits, nothing if not.
inline std::vector<Pack> lpt_within(const Lengths& lengths, std::size_t first, std::size_t count,
                                    std::int64_t capacity, std::size_t lanes) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), first);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });
  std::vector<Pack> packs(lanes);
  for (const std::size_t d : order) {
    std::size_t least = 0;
    for (std::size_t p = 1; p < lanes; ++p) {
      if (tokens(packs[p], lengths) < tokens(packs[least], lengths)) least = p;
    }
    if (tokens(packs[least], lengths) + lengths[d] > capacity) return {};
    packs[least].push_back(d);
  }
  return packs;
}

inline std::vector<Pack> multipack(const Lengths& lengths, std::int64_t capacity, std::size_t lanes) {
  std::vector<Pack> packs;
  for (std::size_t first = 0; first < lengths.size();) {
    std::size_t good = 1;
    std::size_t bad = lengths.size() - first + 1;
    while (bad - good > 1) {
      const std::size_t probe = (good + bad) / 2;
      (lpt_within(lengths, first, probe, capacity, lanes).empty() ? bad : good) = probe;
    }
    for (const Pack& pack : lpt_within(lengths, first, good, capacity, lanes)) {
      if (!pack.empty()) packs.push_back(pack);
    }
    first += good;
  }
  return packs;
}

inline std::vector<Pack> dp_balanced(const Lengths& lengths, std::int64_t capacity, std::size_t lanes) {
  std::vector<Pack> packs = next_fit(lengths, data_order(lengths), capacity);
  for (std::size_t p = packs.size(); p-- > 0;) {
    while (packs.size() % lanes != 0 && packs[p].size() > 1) {
      const std::size_t moved = packs[p].back();
      packs[p].pop_back();
      packs.push_back({moved});
    }
  }
  return packs;
}

// A balancer's steps as document ids, and what each step carries.
struct NaiveStep {
  std::vector<std::vector<Slice>> bins;
  std::vector<Slice> carried;
};

inline double squares(const std::vector<Slice>& bin) {
  double sum = 0;
  for (const Slice& s : bin) sum += static_cast<double>(s.tokens()) * static_cast<double>(s.tokens());
  return sum;
}

inline std::int64_t tokens(const std::vector<Slice>& bin) {
  std::int64_t sum = 0;
  for (const Slice& s : bin) sum += s.tokens();
  return sum;
}

inline void sort_longest_first(std::vector<Slice>& documents) {
  std::stable_sort(documents.begin(), documents.end(),
                   [](const Slice& a, const Slice& b) { return a.tokens() > b.tokens(); });
}

// Algorithm 1 of WLB-LLM with W = len^2.
inline std::vector<NaiveStep> wlb(const std::vector<std::vector<Slice>>& batches, std::size_t bins,
                                  std::int64_t max_tokens, const std::vector<std::int64_t>& thresholds) {
  std::vector<NaiveStep> steps;
  std::vector<Slice> carried;
  std::vector<std::vector<Slice>> queues(thresholds.size());
  const auto pack = [&](std::vector<Slice> documents) {
    sort_longest_first(documents);
    NaiveStep step;
    step.bins.resize(bins);
    carried.clear();
    for (const Slice& d : documents) {
      std::size_t by_work = 0;
      std::size_t by_tokens = 0;
      for (std::size_t b = 1; b < bins; ++b) {
        if (squares(step.bins[b]) < squares(step.bins[by_work])) by_work = b;
        if (tokens(step.bins[b]) < tokens(step.bins[by_tokens])) by_tokens = b;
      }
      if (tokens(step.bins[by_work]) + d.tokens() <= max_tokens) {
        step.bins[by_work].push_back(d);
      } else if (tokens(step.bins[by_tokens]) + d.tokens() <= max_tokens) {
        step.bins[by_tokens].push_back(d);
      } else {
        carried.push_back(d);
      }
    }
    step.carried = carried;
    for (const auto& queue : queues) step.carried.insert(step.carried.end(), queue.begin(), queue.end());
    steps.push_back(step);
  };
  for (const std::vector<Slice>& batch : batches) {
    std::vector<Slice> documents = carried;
    for (const Slice& d : batch) {
      std::size_t passed = 0;
      for (const std::int64_t threshold : thresholds) passed += d.tokens() >= threshold ? 1U : 0U;
      (passed == 0 ? documents : queues[passed - 1]).push_back(d);
    }
    for (std::vector<Slice>& queue : queues) {
      if (queue.size() < bins) continue;
      const auto end = queue.begin() + static_cast<std::ptrdiff_t>(bins);
      documents.insert(documents.end(), queue.begin(), end);
      queue.erase(queue.begin(), end);
    }
    pack(documents);
  }
  for (;;) {
    std::vector<Slice> documents = carried;
    for (std::vector<Slice>& queue : queues) {
      documents.insert(documents.end(), queue.begin(), queue.end());
      queue.clear();
    }
    if (documents.empty()) return steps;
    pack(documents);
  }
}

// Fixed-length greedy of WLB-LLM; without what is carried.
inline std::vector<NaiveStep> fixed_greedy(const std::vector<std::vector<Slice>>& batches,
                                           std::size_t per_step, std::int64_t window,
                                           std::size_t pack_window) {
  std::vector<NaiveStep> steps;
  std::vector<Slice> held;
  for (std::size_t first = 0; first < batches.size() || !held.empty(); first += pack_window) {
    std::vector<Slice> documents = held;
    const std::size_t last = std::min(batches.size(), first + pack_window);
    for (std::size_t b = first; b < last; ++b) {
      documents.insert(documents.end(), batches[b].begin(), batches[b].end());
    }
    const std::size_t count = first < last ? last - first : 1;
    sort_longest_first(documents);
    std::vector<std::vector<Slice>> bins(count * per_step);
    held.clear();
    for (const Slice& d : documents) {
      std::vector<Slice>* best = nullptr;
      for (std::vector<Slice>& bin : bins) {
        if (tokens(bin) + d.tokens() > window) continue;
        if (best == nullptr || squares(bin) < squares(*best)) best = &bin;
      }
      (best == nullptr ? held : *best).push_back(d);
    }
    for (std::size_t s = 0; s < count; ++s) {
      const auto begin = bins.begin() + static_cast<std::ptrdiff_t>(s * per_step);
      steps.push_back({{begin, begin + static_cast<std::ptrdiff_t>(per_step)}, {}});
    }
  }
  return steps;
}

}  // namespace equipoise::naive

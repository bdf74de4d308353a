#include "kernels/cuda/attention_call.h"

#include <iterator>
#include <map>

namespace equipoise::kernels::cuda {
namespace {

// Key ranges taken in a round: begin -> end.
class Taken {
 public:
  bool take(const Piece& piece) {
    const std::int64_t begin = piece.key_begin;
    const std::int64_t end = piece.key_begin + piece.keys;
    const auto next = ranges_.lower_bound(begin);
    if (next != ranges_.end() && next->first < end) return false;
    if (next != ranges_.begin() && std::prev(next)->second > begin) return false;
    ranges_.emplace(begin, end);
    return true;
  }

 private:
  std::map<std::int64_t, std::int64_t> ranges_;
};

}  // namespace

std::vector<std::vector<Piece>> disjoint_rounds(std::span<const Piece> pieces) {
  std::vector<std::vector<Piece>> rounds;
  std::vector<Taken> taken;
  for (const Piece& piece : pieces) {
    std::size_t round = 0;
    while (round < taken.size() && !taken[round].take(piece)) ++round;
    if (round == taken.size()) {
      taken.emplace_back().take(piece);
      rounds.emplace_back();
    }
    rounds[round].push_back(piece);
  }
  return rounds;
}

}  // namespace equipoise::kernels::cuda

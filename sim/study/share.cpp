#include "sim/study/share.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "policies/base/error.h"

namespace equipoise {

constexpr int kMostShares = 1 << 20;

static std::optional<int> number_of(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

static std::optional<int> variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? std::nullopt : number_of(text);
}

// A batch script has SLURM_NTASKS, too, though its one process is no rank. Only a step has this count.
constexpr const char* kRanks[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                     {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
                                     {"PMI_RANK", "PMI_SIZE"},
                                     {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};

// The process's rank and the number of ranks from the environment of mpirun (Open MPI, MPICH and its
// relatives) or srun. Nothing for a single process.
static std::optional<Share> share_of_ranks() {
  for (const auto& [rank, size] : kRanks) {
    const auto index = variable(rank), count = variable(size);
    if (index && count && *count > 1 && *index >= 0 && *index < *count) return Share{*index, *count};
  }
  return std::nullopt;
}

std::string Share::folder() const {
  return concatenated("shard-", index, "-of-", count);
}

Share parse_share(const std::string& text, const std::string& where) {
  const std::size_t slash = text.find('/');
  if (slash != std::string::npos) {
    const auto index = number_of(std::string_view(text).substr(0, slash));
    const auto count = number_of(std::string_view(text).substr(slash + 1));
    if (index && count && *count >= 1 && *count <= kMostShares && *index >= 0 && *index < *count)
      return {*index, *count};
  }
  throw UserError(where, ": expected i/n with i from 0 to n - 1, as 0/4, found ", text);
}

Share chosen_share(const std::string& text) {
  return text.empty() ? share_of_ranks().value_or(Share{}) : parse_share(text, "--shard");
}

}  // namespace equipoise

#include "sim/execution/context_attention.h"

#include "sim/execution/attention_forms.h"

namespace equipoise::execution {

std::unique_ptr<ContextAttention> make_context_attention(const RankContext& rank, const AttentionRows& rows,
                                                         const MicroBatchRows& all, int index,
                                                         ChunkStates& chunks) {
  if (rows.rows.ranks.size() > 1) {
    // A ring goes round even where nothing is shared; the other forms have nothing to exchange then.
    if (rank.layout.context_comm == ContextComm::ring) return make_ring_attention(rank, rows, index, chunks);
    if (rows.rows.exchanges() && rank.layout.context_comm == ContextComm::ulysses)
      return make_ulysses_attention(rank, rows, all, index, chunks);
  }
  return make_gathered_attention(rank, rows, index, chunks);
}

}  // namespace equipoise::execution

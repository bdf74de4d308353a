// The checks and timed calls of the row ops on tokens and on heads; rows.cpp collects them with the others.
#pragma once

#include "kernels/checks.h"
#include "kernels/row_ops.h"

namespace equipoise::kernels {

void check_embedding(Checker& checker, const Rows& shape);
void fill(Embedding& call, const Rows& shape, RowTensors& tensors);
void fill(EmbeddingBackward& call, const Rows& shape, RowTensors& tensors);

void check_attention_merge(Checker& checker, const Rows& shape);
void fill(AttentionMerge& call, const Rows& shape, RowTensors& tensors);

}  // namespace equipoise::kernels

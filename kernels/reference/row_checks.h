// The checks and timed calls of row ops that have a file of their own; rows.cpp gathers them with the others.
#pragma once

#include <string>

#include "kernels/checker.h"
#include "kernels/reference/row_tensors.h"

namespace equipoise::kernels {

void check_embedding(Checker& checker, const Rows& shape);
void fill(Embedding& call, const Rows& shape, RowTensors& tensors);
void fill(EmbeddingBackward& call, const Rows& shape, RowTensors& tensors);

void check_attention_merge(Checker& checker, const Rows& shape);
void fill(AttentionMerge& call, const Rows& shape, RowTensors& tensors);

inline std::string text_of(const Rows& shape) {
  return std::to_string(shape.rows) + " x " + std::to_string(shape.columns);
}

}  // namespace equipoise::kernels

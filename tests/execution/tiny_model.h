// A LLaMA small enough to differentiate number by number, with every kind of tensor in an unlike shape.
#pragma once

#include "sim/workload/model.h"

namespace equipoise::testing {

inline ModelShape tiny_llama(bool tied = false) {
  ModelShape m;
  m.name = "tiny";
  m.layers = 2;
  m.hidden = 12;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 6;  // heads * head_dim is not hidden
  m.ffn = 10;
  m.vocab = 17;
  m.tied_embeddings = tied;
  return m;
}

}  // namespace equipoise::testing

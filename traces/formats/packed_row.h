// The documents of a row of tokenised data. A row may be a pack: further fields of it say where its documents
// begin, in the form of the library that packed it.
//
//   lengths    seq_lengths of TRL, seq_lens of torchtune            [5, 3]
//   borders    cu_seqlens of FlashAttention and Transformer Engine  [0, 5, 8]
//   starts     seq_start_id of NeMo, whose last document ends with the row   [0, 5]
//   positions  position_ids that begin again                        [0, 1, 2, 3, 4, 0, 1, 2]
//   segments   a number for each document: segment_ids (0: padding), seq_idx (0: a document), and an
//              attention_mask that counts documents (axolotl)       [1, 1, 1, 1, 1, 2, 2, 2]
//
// Tokens that an attention_mask has as 0 are padding. A field that disagrees with the row is refused.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "traces/formats/lines.h"

namespace equipoise::formats {

// Whether the fields of a row tell which documents it holds, so that `add_documents` can read it.
bool has_token_fields(const nlohmann::json& row);

void add_documents(const nlohmann::json& row, const std::string& where, Lengths& lengths);

// Adds the documents of a list with this name, such as --column seq_lengths. A name of token ids is read with
// the row's other fields, any other alone. Throws UserError for a list that may mean anything.
void add_documents_of(const nlohmann::json& row, std::string_view field, const nlohmann::json& list,
                      const std::string& where, Lengths& lengths);

}  // namespace equipoise::formats

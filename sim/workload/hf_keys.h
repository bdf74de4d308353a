// What the keys of a Hugging Face config.json are to a simulation, beside those that model_hf.cpp reads.
#pragma once

#include <string>
#include <string_view>

namespace equipoise {

// Neither parameters nor FLOPs nor bytes that we count hang on the key: token numbers, dtypes, positions,
// dropout, what routers and losses are scaled with, what generation takes. (Biases and norms beside those of
// Q, K, V and the two of a layer are below a thousandth of a model and not counted.)
bool shapes_nothing(std::string_view key);

// Why a key that does shape the model is refused; empty for a key that is not known at all.
std::string_view why_key_is_refused(std::string_view key);
// Why a model_type is, whatever else its config says; empty for all others.
std::string_view why_type_is_refused(std::string_view model_type);

// Activations that read and write what a SiLU does. `known_activations`: all of them, for a message.
bool is_known_activation(std::string_view name);
std::string known_activations();

}  // namespace equipoise

// Modules are this program's shared libraries that it opens when it first needs them. The libraries that they
// link (a solver with its BLAS, MPI, oneDNN, CUDA) would slow down every start of the program, and some start
// threads.
#pragma once

#include <string>

namespace equipoise {

enum class ModuleSymbols { own, for_all };  // for_all: plugins of its libraries need its symbols

// A symbol of the module in `file`, which stays open; null where there is none, and `reason` says why. The
// file is searched next to the calling code (a Python package), in the program's library folder (bin/../lib)
// and in the build's, but never in a place that the environment or the current folder decides. `absent`: the
// reason where there is no such file.
void* module_symbol(const char* file, const char* symbol, const std::string& absent, std::string& reason,
                    ModuleSymbols symbols = ModuleSymbols::own);

}  // namespace equipoise

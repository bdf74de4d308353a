// Modules: shared libraries of ours that the program opens when it first needs them. What they link (a solver
// with its BLAS, MPI, oneDNN, CUDA) would cost every start of the program time, and some start threads.
#pragma once

#include <string>

namespace equipoise {

enum class ModuleSymbols { own, for_all };  // for_all: plugins of what it links look for its symbols

// A symbol of the module in `file`, which stays open; else null, and `reason` says why. Looked for beside the
// code that asks (a Python package), in the program's library folder (bin/../lib) and where the build put it, and
// nowhere that an environment or a current folder decides. `absent`: the reason where there is no such file.
void* module_symbol(const char* file, const char* symbol, const std::string& absent, std::string& reason,
                    ModuleSymbols symbols = ModuleSymbols::own);

}  // namespace equipoise

// Solves a mixed integer program with CBC, a module of this program (cbc.cpp), or with HiGHS, if its library
// is installed. Distributions often lack HiGHS, and its Python package (highspy) has the library but no
// headers, so the library is loaded at run time and called over its C interface, whose names and types have
// not changed since version 1.6. The program tries the system's libhighs, then that of the highspy that the
// build found. Where EQUIPOISE_HIGHS names a file, it tries only that one, since an error is better than
// silently using another library.
#include "policies/solver/mixed_program.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/module.h"

namespace equipoise {
namespace {

constexpr int kRowWise = 2;
constexpr int kMinimise = 1;
constexpr int kContinuous = 0;
constexpr int kInteger = 1;
constexpr int kOptimal = 7;           // a value of Highs_getModelStatus
constexpr int kFeasible = 2;          // a value of primal_solution_status
constexpr int kMipInterrupt = 6;      // callback that is polled between nodes
constexpr int kSimplexInterrupt = 1;  // callback that is polled while the root relaxation is solved

using Callback = void (*)(int type, const char* message, const void* data_out, void* data_in, void* user);

// The functions that are called. HighsInt is int in every published library.
struct Highs {
  void* (*create)() = nullptr;
  void (*destroy)(void*) = nullptr;
  int (*set_bool)(void*, const char*, int) = nullptr;
  int (*set_int)(void*, const char*, int) = nullptr;
  int (*set_double)(void*, const char*, double) = nullptr;
  int (*pass_mip)(void*, int columns, int rows, int nonzeros, int format, int sense, double offset,
                  const double* cost, const double* lower, const double* upper, const double* row_lower,
                  const double* row_upper, const int* start, const int* index, const double* value,
                  const int* integrality) = nullptr;
  int (*set_solution)(void*, const double*, const double*, const double*, const double*) = nullptr;
  int (*set_callback)(void*, Callback, void*) = nullptr;
  int (*start_callback)(void*, int) = nullptr;
  int (*run)(void*) = nullptr;
  int (*status)(const void*) = nullptr;
  int (*get_int)(const void*, const char*, int*) = nullptr;
  int (*get_double)(const void*, const char*, double*) = nullptr;
  int (*solution)(const void*, double*, double*, double*, double*) = nullptr;
  int (*size_of_int)(const void*) = nullptr;
  bool complete = false;
  std::string fault;  // why the library cannot be used
};

template <class Function>
bool look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

Highs load_highs() {
  Highs h;
  void* library = nullptr;
  if (const char* const named = std::getenv("EQUIPOISE_HIGHS"); named != nullptr && *named != '\0') {
    library = dlopen(named, RTLD_NOW | RTLD_LOCAL);
    const char* const reason = library == nullptr ? dlerror() : nullptr;
    h.fault = std::string("EQUIPOISE_HIGHS: ") + (reason != nullptr ? reason : named);
  } else {
    for (const char* path : {"libhighs.so.1", EQUIPOISE_HIGHSPY_LIBRARY})
      if (library == nullptr && *path != '\0') library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    h.fault =
        "solver: HiGHS was not found; install it or its Python package highspy, or name the library in "
        "EQUIPOISE_HIGHS, or use cbc";
  }
  if (library == nullptr) return h;
  h.complete = look_up(library, "Highs_create", h.create) && look_up(library, "Highs_destroy", h.destroy) &&
               look_up(library, "Highs_setBoolOptionValue", h.set_bool) &&
               look_up(library, "Highs_setIntOptionValue", h.set_int) &&
               look_up(library, "Highs_setDoubleOptionValue", h.set_double) &&
               look_up(library, "Highs_passMip", h.pass_mip) &&
               look_up(library, "Highs_setSolution", h.set_solution) &&
               look_up(library, "Highs_setCallback", h.set_callback) &&
               look_up(library, "Highs_startCallback", h.start_callback) &&
               look_up(library, "Highs_run", h.run) && look_up(library, "Highs_getModelStatus", h.status) &&
               look_up(library, "Highs_getIntInfoValue", h.get_int) &&
               look_up(library, "Highs_getDoubleInfoValue", h.get_double) &&
               look_up(library, "Highs_getSolution", h.solution) &&
               look_up(library, "Highs_getSizeofHighsInt", h.size_of_int);
  if (!h.complete) {
    h.fault = "solver: the HiGHS library that was found lacks calls of its C interface (callbacks need 1.6)";
    return h;
  }
  void* const model = h.create();
  h.complete = h.size_of_int(model) == static_cast<int>(sizeof(int));
  h.destroy(model);
  if (!h.complete) h.fault = "solver: the HiGHS library that was found counts in 64-bit integers, not 32-bit";
  return h;
}

const Highs& highs() {
  static const Highs loaded = load_highs();
  return loaded;
}

// The interrupt flag is the first member of the structure that a callback may write.
void stop_on_request(int, const char*, const void*, void* data_in, void* user) {
  const auto* cancel = static_cast<const std::atomic<bool>*>(user);
  if (data_in != nullptr && cancel->load(std::memory_order_relaxed)) *static_cast<int*>(data_in) = 1;
}

class Model {
 public:
  Model() : model_(highs().create()) {}
  ~Model() { highs().destroy(model_); }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  [[nodiscard]] void* get() const { return model_; }

 private:
  void* model_;
};

void pass(const MixedProgram& program, void* model) {
  std::vector<int> integrality(program.column_cost.size(), kInteger);
  std::fill_n(integrality.begin(), program.continuous, kContinuous);
  highs().pass_mip(model, program.columns(), program.rows(), static_cast<int>(program.value.size()), kRowWise,
                   kMinimise, 0, program.column_cost.data(), program.column_lower.data(),
                   program.column_upper.data(), program.row_lower.data(), program.row_upper.data(),
                   program.row_begin.data(), program.column.data(), program.value.data(), integrality.data());
}

bool highs_available() {
  return highs().complete;
}

const std::string& highs_fault() {
  return highs().fault;
}

SearchEnd search_with_highs(const MixedProgram& program, const SolverLimits& limits,
                            std::vector<double> start) {
  const Highs& h = highs();
  const Model model;
  h.set_bool(model.get(), "output_flag", 0);
  if (limits.nodes > 0)
    h.set_int(model.get(), "mip_max_nodes",
              static_cast<int>(std::min<std::int64_t>(limits.nodes, INT32_MAX)));
  else
    h.set_double(model.get(), "time_limit", limits.seconds);
  h.set_double(model.get(), "mip_rel_gap", 0);
  h.set_double(model.get(), "mip_abs_gap", 1e-9);
  pass(program, model.get());
  if (limits.cancel != nullptr) {
    h.set_callback(model.get(), stop_on_request, const_cast<std::atomic<bool>*>(limits.cancel));
    for (const int type : {kMipInterrupt, kSimplexInterrupt}) h.start_callback(model.get(), type);
  }
  h.set_solution(model.get(), start.data(), nullptr, nullptr, nullptr);
  h.run(model.get());

  SearchEnd end;
  int feasible = 0;
  h.get_int(model.get(), "primal_solution_status", &feasible);
  if (feasible == kFeasible) {
    std::vector<double> rows(static_cast<std::size_t>(program.rows()));
    std::vector<double> column_dual(start.size()), row_dual(rows.size());
    h.solution(model.get(), start.data(), column_dual.data(), rows.data(), row_dual.data());
    end.columns = std::move(start);
  }
  end.proven = h.status(model.get()) == kOptimal;
  double bound = 0;
  if (h.get_double(model.get(), "mip_dual_bound", &bound) == 0) end.best_possible = bound;
  return end;
}

struct CbcModule {
  cbc::Search search = nullptr;
  std::string reason;
};

const CbcModule& cbc_module() {
  static const CbcModule opened = [] {
    CbcModule made;
    made.search = reinterpret_cast<cbc::Search>(module_symbol(
        cbc::kFile, cbc::kSearch,
        "this program was built without CBC; install the CBC development files (Debian: coinor-libcbc-dev) "
        "and configure again, or HiGHS, or use a policy that needs no solver",
        made.reason));
    return made;
  }();
  return opened;
}

bool cbc_available() {
  return cbc_module().search != nullptr;
}

}  // namespace

bool solver_available(MilpSolver solver) {
  if (solver == MilpSolver::cbc) return cbc_available();
  if (solver == MilpSolver::highs) return highs_available();
  return cbc_available() || highs_available();
}

SearchEnd search_program(const MixedProgram& program, const SolverLimits& limits,
                         const std::vector<double>& start, double objective) {
  const bool choose_highs = limits.solver == MilpSolver::highs ||
                            (limits.solver == MilpSolver::automatic && !cbc_available() && highs_available());
  if (choose_highs) {
    if (!highs_available()) throw UserError(highs_fault());
    return search_with_highs(program, limits, start);
  }
  if (!cbc_available()) throw UserError("solver: ", cbc_module().reason);
  SearchEnd end;
  cbc_module().search(program, limits, start, objective, end);
  return end;
}

}  // namespace equipoise

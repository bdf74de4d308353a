// A study: documents, a model, a cluster, a layout, and the policies to compare on them. The keys of its
// file are rows of study_keys.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/note.h"
#include "policies/loader.h"
#include "policies/policy.h"
#include "policies/sharding/sharding.h"
#include "profiler/profile/cost_models.h"
#include "sim/metrics/metrics.h"
#include "sim/study/read/framework.h"
#include "sim/topology/fabric.h"
#include "sim/workload/layout.h"
#include "sim/workload/model.h"

namespace equipoise {

struct TraceSource {
  std::string file;  // one of file, uniform, distribution, mixture
  std::int64_t uniform = 0;
  std::string distribution;
  std::string column;
  std::int64_t documents = 0;  // 0: as many as the study needs (uniform, distribution), all (file)
  std::uint64_t seed = 0;
  bool shuffle = false;  // of files: their order is drawn by the seed
  bool repeat = false;
  struct Component {
    std::string file;
    std::string distribution;
    double weight = 1;
  };
  std::vector<Component> mixture;

  [[nodiscard]] bool has_files() const {
    return !file.empty() || std::ranges::any_of(mixture, [](const Component& c) { return !c.file.empty(); });
  }
  // Whether the seed decides its documents or their order.
  [[nodiscard]] bool is_drawn() const {
    return !distribution.empty() || mixture.size() > 1 || (mixture.size() == 1 && mixture[0].file.empty()) ||
           (shuffle && has_files());
  }
};

// What a paper printed for a row. Nothing here feeds back into a simulation: the figures are read, carried
// and shown next to ours. A figure is known by the key that the same quantity has in summary.json, so
// equal quantities are next to each other. Figures of one source for one row:
struct Published {
  struct Figure {
    std::string metric;  // key of summary.json's metrics, or bucket_size
    double value = 0;
  };
  std::string source;   // "arXiv 2503.17924, Table 2"
  std::string against;  // label of the row that a speed-up is over; empty: the study's baseline
  std::optional<bool> out_of_memory;
  std::vector<Figure> figures;
};

// One row of the comparison.
struct PolicyRun {
  std::string label;               // as shown; the name unless the study says otherwise
  std::string name;                // packing policy
  std::string shard;               // sharding rule
  std::string schedule;            // empty: the study's
  bool schedule_auto = false;      // the fastest is to be chosen; until then it has the one without the key
  bool schedule_chosen = false;    // it was
  std::optional<int> virtual_pipeline;         // empty: the layout's
  bool virtual_pipeline_auto = false;          // as with the schedule
  bool virtual_pipeline_chosen = false;        // also where it is 1 since the row's schedule takes no more
  std::vector<const TriedSize*> open_sizes;    // of its policy, that are auto; until then the least tried
  std::vector<std::string_view> chosen_sizes;  // keys of those that were chosen
  std::optional<CostKind> cost;    // empty: what the policy's paper uses (cost_kind)
  std::vector<std::string> typed;  // keys that the study gives; the others may be derived
  // Empty: the layout's.
  std::optional<ContextComm> context_comm;
  PackOptions pack;
  ShardOptions sharding;
  bool has_recompute = false;  // overrides the layout's
  Recompute recompute = Recompute::none;
  int recompute_layers = 0;
  RecomputeModules recompute_modules = 0;
  bool recompute_by_stage = false;        // recompute auto: for each stage and micro-batch (InfiniPipe)
  bool asks_stage_exchange = false;       // its entry or its preset does
  bool stage_attention_exchange = false;  // and its layout can
  bool recompute_chosen = false;          // by memory: recompute auto, or the row's own rule (hbp's groups)
  std::vector<Published> published;       // a paper's figures for this row
  std::vector<std::string> idle_keys;     // of its entry, without effect
  std::string plan_file;                  // name "plan": where the plan was made elsewhere (plan_file.h)
  std::string plan_name;                  // which of the file's plans; empty: its only one
  std::shared_ptr<const Plan> plan;       // what the file says, once it is read

  // Whether trials choose some of its keys (row/pipeline.h).
  [[nodiscard]] bool leaves_open() const {
    return schedule_auto || virtual_pipeline_auto || !open_sizes.empty();
  }
  [[nodiscard]] bool has_plan_file() const { return !plan_file.empty(); }
  [[nodiscard]] const Policy& policy() const;
  // What prices a row's documents for packing: what it says, else what its policy takes (specs: Skrull's Eq.
  // 13 for Skrull's, the profile for all others).
  [[nodiscard]] CostKind cost_kind() const;
  // Whether its policy is to choose its groups, and with them what each recomputes (hbp's Algorithm 1).
  [[nodiscard]] bool chooses_groups() const;
  [[nodiscard]] const ShardPolicy& rule() const { return sharding_policy(shard); }
  [[nodiscard]] bool says(std::string_view key) const { return std::ranges::find(typed, key) != typed.end(); }
};

struct Cluster {
  std::string profile = "h100-sxm";
  std::int64_t gpus = 0;  // of the whole run, from which parallel.data follows; 0: as many as the layout has
  int gpus_per_node = 0;  // 0: the profile's
  NetworkRates network;
  Wiring wiring = Wiring::rail;
  double oversubscription = 1;
  double memory_GB = 0;             // of a GPU, where it is not the profile's; 0: the profile's
  double memory_headroom = 0.06;    // share of that which the program's own choices leave free
  double dollars_per_gpu_hour = 0;  // 0: not stated
  PowerDraw watts{};                // of a GPU, where it is not the profile's
};

struct Study {
  std::string name;
  std::string file;       // for messages
  std::string directory;  // paths are relative to it
  TraceSource trace;
  ModelShape model;
  Cluster cluster;
  Layout layout;
  Framework framework;
  PackOptions batch;  // the shape of a step, copied into every policy
  std::int64_t steps = 100;
  LoaderTail loader = LoaderTail::carry;
  std::string schedule = "1f1b";
  // Whether the file says what otherwise follows from the layout: schedule, parallel.zero,
  // batch.sequences_per_step.
  bool says_schedule = false, says_zero = false, says_sequences = false;
  std::vector<PolicyRun> policies;
  std::string baseline;    // label
  std::string export_row;  // label of the row that `export` takes; empty: the fastest
  Notes notes;             // keys that cannot affect the result
  std::string settings;    // the file's JSON as it was run, --set in it
  std::string impossible;  // parse_case: why its keys, each allowed, do not go together; else empty
};

// Reads a study. Throws UserError naming file and key. `overrides` are "key.path=value" (--set); a value is
// JSON or a bare word.
Study read_study(const std::string& path, const std::vector<std::string>& overrides);
Study parse_study(const nlohmann::json& file, const std::string& path);
// The same for a case of a sweep: keys that are allowed one by one and do not go together are no error but
// `impossible`, since other cases may run.
Study parse_case(const nlohmann::json& file, const std::string& path);
// The study as its file would be read with the keys of another layout, in a small part of the time: a search
// asks for thousands. Its notes and settings are those of the file.
Study laid_out(Study study, const Layout& layout);

// Sets a dotted path ("policies.0.queues" too) in a study file's JSON. Throws UserError for a bad path.
void set_study_key(nlohmann::json& file, const std::string& assignment);
// The same for each, in their order. Where one of them is cluster.gpus, the file's own parallel.data does not
// count any more: the number of replicas follows from the layout of each case.
void set_study_keys(nlohmann::json& file, const std::vector<std::string>& assignments);

}  // namespace equipoise

// A study: documents, a model, a cluster, a layout, and the policies to compare on them. Its file's keys are
// rows of study_keys.h.
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
  std::string file;  // one of file, uniform, distribution and mixture is set
  std::int64_t uniform = 0;
  std::string distribution;
  std::string column;
  std::int64_t documents = 0;  // 0: as many as the study needs (uniform, distribution), or all (file)
  std::uint64_t seed = 0;
  bool shuffle = false;  // for files: the seed draws their order
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
  // Whether the seed decides the documents or their order.
  [[nodiscard]] bool is_drawn() const {
    return !distribution.empty() || mixture.size() > 1 || (mixture.size() == 1 && mixture[0].file.empty()) ||
           (shuffle && has_files());
  }
};

// The figures that one source printed for a row. Nothing here feeds back into a simulation: the figures are
// read, carried and shown next to ours. A figure has the key of the same quantity in summary.json, so that
// equal quantities are next to each other.
struct Published {
  struct Figure {
    std::string metric;  // a key of summary.json's metrics, or bucket_size
    double value = 0;
  };
  std::string source;   // "arXiv 2503.17924, Table 2"
  std::string against;  // label of the row that a speed-up is over; the study's baseline if empty
  std::optional<bool> out_of_memory;
  std::vector<Figure> figures;
};

// One row of the comparison.
struct PolicyRun {
  std::string label;               // as shown; the policy's name unless the study says otherwise
  std::string name;                // packing policy
  std::string shard;               // sharding rule
  std::string schedule;            // the study's if empty
  bool schedule_auto = false;      // whether trials choose the fastest; until then it is the default
  bool schedule_chosen = false;    // it was
  std::optional<int> virtual_pipeline;         // the layout's if empty
  bool virtual_pipeline_auto = false;          // whether trials choose it, as for the schedule
  bool virtual_pipeline_chosen = false;        // also set if its schedule takes only 1
  std::vector<const TriedSize*> open_sizes;    // the policy's sizes that are auto; the smallest until chosen
  std::vector<std::string_view> chosen_sizes;  // keys of sizes that were chosen
  std::optional<CostKind> cost;                // if empty, the kind that the policy's paper uses (cost_kind)
  std::vector<std::string> typed;              // keys that the study gives; others may be derived
  // The layout's if empty.
  std::optional<ContextComm> context_comm;
  PackOptions pack;
  ShardOptions sharding;
  bool has_recompute = false;  // whether it overrides the layout's
  Recompute recompute = Recompute::none;
  int recompute_layers = 0;
  RecomputeModules recompute_modules = 0;
  bool recompute_by_stage = false;        // recompute auto chooses for each stage and micro-batch
                                          // (InfiniPipe)
  bool asks_stage_exchange = false;       // whether its entry or its preset asks for it
  bool stage_attention_exchange = false;  // whether it asks and its layout can run it
  bool recompute_chosen = false;          // chosen by memory: recompute auto, or the row's own rule (hbp's
                                          // groups)
  std::vector<Published> published;       // a paper's figures for this row
  std::vector<std::string> idle_keys;     // keys of its entry without effect
  std::string plan_file;                  // for the name "plan": where it was made elsewhere (plan_file.h)
  std::string plan_name;                  // which of the file's plans; the only one if empty
  std::shared_ptr<const Plan> plan;       // the file's contents, once it is read

  // Whether trials choose some of its keys (row/pipeline.h).
  [[nodiscard]] bool leaves_open() const {
    return schedule_auto || virtual_pipeline_auto || !open_sizes.empty();
  }
  // Whether packing simulates or solves, so that the row takes as long as many others.
  [[nodiscard]] bool packs_slowly() const;
  [[nodiscard]] bool has_plan_file() const { return !plan_file.empty(); }
  [[nodiscard]] const Policy& policy() const;
  // The cost that prices a row's documents for packing: its own, else its policy's (specs: Skrull's Eq. 13
  // for Skrull's, the profile for all others).
  [[nodiscard]] CostKind cost_kind() const;
  // Whether its policy chooses its groups, and with them what each recomputes (hbp's Algorithm 1).
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
  double memory_GB = 0;             // per GPU; the profile's if 0
  double memory_headroom = 0.06;    // share of memory that the program's own choices leave free
  double dollars_per_gpu_hour = 0;  // 0: not stated
  PowerDraw watts{};                // per GPU, if it differs from the profile's
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
  PackOptions batch;  // the shape of a step, copied into every policy's options
  std::int64_t steps = 100;
  LoaderTail loader = LoaderTail::carry;
  std::string schedule = "1f1b";
  // Whether the file states what otherwise follows from the layout: schedule, parallel.zero,
  // batch.sequences_per_step.
  bool says_schedule = false, says_zero = false, says_sequences = false;
  std::vector<PolicyRun> policies;
  std::string baseline;    // label
  std::string export_row;  // label of the row that `export` takes; the fastest if empty
  double max_delay = 1;    // iterations: the largest mean delay of a row that is called fastest
  Notes notes;             // on keys that cannot affect the result
  std::string settings;    // the file's JSON as it ran, with --set
  std::string impossible;  // set by parse_case: why valid keys do not go together; else empty
};

// Reads a study. Throws UserError, which names file and key. `overrides` are "key.path=value" (--set), where
// a value is JSON or a bare word.
Study read_study(const std::string& path, const std::vector<std::string>& overrides);
Study parse_study(const nlohmann::json& file, const std::string& path);
// Reads a case of a sweep. Keys that are allowed one by one and do not go together are no error but set
// `impossible`, since other cases may run.
Study parse_case(const nlohmann::json& file, const std::string& path);
// The study as its file would be read with the keys of another layout, in a small part of the time, since a
// search needs thousands. Its notes and settings are the file's.
Study laid_out(Study study, const Layout& layout);

// Sets a dotted path ("policies.0.queues" too) in a study file's JSON. Throws UserError for a bad path.
void set_study_key(nlohmann::json& file, const std::string& assignment);
// Sets each assignment in order. If one of them is cluster.gpus, the file's parallel.data has no effect: the
// number of replicas follows from each case's layout.
void set_study_keys(nlohmann::json& file, const std::vector<std::string>& assignments);

}  // namespace equipoise

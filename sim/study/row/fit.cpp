#include "sim/study/row/fit.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "policies/policy.h"
#include "sim/cost/check_layout.h"
#include "sim/workload/stage_layers.h"
#include "traces/json_object.h"

namespace equipoise {
namespace {

struct Change {
  std::string key;  // the study's key, by which a second change of it is recognized
  Note note;
  std::function<void(Study&, PolicyRun&)> apply;
};

Change set_key(const std::string& key, NoteValue value, std::function<void(Study&, PolicyRun&)> apply) {
  return {key, change_note(key, std::move(value)), std::move(apply)};
}

class Search {
 public:
  Search(const FailedRow& row, const TryRow& try_row) : row_(row), try_row_(try_row) {}

  [[nodiscard]] bool runs(const std::vector<Change>& changes) const {
    Study study = row_.study;
    PolicyRun run = row_.run;
    for (const Change& change : changes) change.apply(study, run);
    // Layers that are recomputed whole leave nothing to copy to the host.
    if (study.layout.activation_offload > 0 && run.recompute == Recompute::layers) return false;
    try {
      leaves_out_exchange(run, exchange_fault(study, run, study.file));
      check_layout(study.model, layout_of(study, run), study.file);
      const RowEnd end = try_row_(study, run);
      note_tried(changes);
      if (end.status == RowStatus::ok) seconds_.emplace_back(notes_of(changes), end.seconds_per_token);
      return end.status == RowStatus::ok;
    } catch (const UserError&) {
      return false;  // the model or the cluster does not allow this layout
    }
  }

  static Notes notes_of(const std::vector<Change>& changes) { return each_of(changes, &Change::note); }

  // The values of a key from the one that asks least to the one that asks most; what runs with one is taken
  // to run with all that ask more, and the one named has run itself. Empty if not even the last runs.
  [[nodiscard]] Notes first_that_runs(std::int64_t least, std::int64_t most,
                                      const std::function<Change(std::int64_t)>& change) const {
    if (least > most || !runs({change(most)})) return {};
    while (least < most) {
      const std::int64_t middle = least + (most - least) / 2;
      if (runs({change(middle)}))
        most = middle;
      else
        least = middle + 1;
    }
    return {change(most).note};
  }

  // Tries sets of changes; each entry is made together.
  [[nodiscard]] Notes first_of(const std::vector<std::vector<Change>>& choices) const {
    for (const std::vector<Change>& changes : choices)
      if (runs(changes)) return notes_of(changes);
    return {};
  }

  [[nodiscard]] const FailedRow& row() const { return row_; }
  // The time per token with these changes, which ran.
  [[nodiscard]] double seconds_per_token(const Notes& changes) const {
    const auto with = [&](const auto& ran) { return ran.first == changes; };
    return std::ranges::find_if(seconds_, with)->second;
  }
  // All keys that were changed in vain, with the last value tried.
  [[nodiscard]] Notes in_vain() const { return notes_of(tried_); }

 private:
  void note_tried(const std::vector<Change>& changes) const {
    for (const Change& change : changes) {
      const auto known = std::ranges::find(tried_, change.key, &Change::key);
      if (known == tried_.end())
        tried_.push_back(change);
      else
        *known = change;
    }
  }

  const FailedRow& row_;
  const TryRow& try_row_;
  mutable std::vector<Change> tried_;
  mutable std::vector<std::pair<Notes, double>> seconds_;  // by changes
};

std::string quoted(std::string_view word) {
  return concatenated('"', word, '"');
}

// Whether memory derives the key's value, since the study does not give it.
bool is_derived(const PolicyRun& run, std::string_view key) {
  const Derives derives = run.policy().derives;
  return !run.says(key) && key == key_of(derives) && derives != Derives::groups;
}

Change recompute_layers(std::int64_t layers) {
  return set_key("recompute", "{\"layers\": " + std::to_string(layers) + "}",
                 [layers](Study&, PolicyRun& run) {
                   run.has_recompute = true;
                   run.recompute = Recompute::layers;
                   run.recompute_layers = static_cast<int>(layers);
                 });
}

Notes more_recompute(const Search& search) {
  const FailedRow& row = search.row();
  Layout layout = row.study.layout;
  if (row.run.has_recompute) {
    layout.recompute = row.run.recompute;
    layout.recompute_layers = row.run.recompute_layers;
  }
  const int layers = row.study.model.all_layers();
  return search.first_that_runs(checkpointed_layers(layout, layers) + 1, layers, recompute_layers);
}

// A smaller value of a size of the policy, the largest that runs of those tried: of a count every one down to
// 1, of tokens 15/16, 14/16 .. 1/16 of it.
Notes smaller_size(const Search& search, const PackParameter& size) {
  constexpr std::int64_t kMostCounted = 64;
  const auto now = std::get<std::int64_t>(size.get(search.row().run.pack));
  const std::int64_t parts = now <= kMostCounted ? now : 16;
  const auto value = [now, parts](std::int64_t less) {
    return std::max<std::int64_t>(1, now - now * less / parts);
  };
  return search.first_that_runs(1, parts - 1, [&](std::int64_t less) {
    return set_key(std::string(size.key), value(less),
                   [&size, smaller = value(less)](Study&, PolicyRun& run) { size.set(run.pack, smaller); });
  });
}

Notes smaller_policy_sizes(const Search& search) {
  const PolicyRun& run = search.row().run;
  const std::span<const std::string_view> own = run.policy().sizes;
  std::vector<std::string_view> keys(own.begin(), own.end());
  const bool known = std::find(keys.begin(), keys.end(), "bucket_size") != keys.end();
  if (run.rule().places_documents && run.says("bucket_size") && !known) keys.push_back("bucket_size");
  for (const std::string_view key : keys) {
    if (is_derived(run, key)) continue;
    const PackParameter& size = *pack_parameter(key);
    if (std::get<std::int64_t>(size.get(run.pack)) < 2) continue;
    if (Notes found = smaller_size(search, size); !found.empty()) return found;
  }
  return {};
}

Change zero(int level) {
  return set_key("parallel.zero", level, [level](Study& s, PolicyRun&) { s.layout.zero = level; });
}

// Shards states more, alone and with all layers recomputed, the least demanding level first.
std::vector<std::vector<Change>> more_sharding(const Study& study, const Change& full) {
  std::vector<std::vector<Change>> choices;
  for (int level = study.layout.zero + 1; level <= 3; ++level) choices.push_back({zero(level)});
  for (int level = study.layout.zero + 1; level <= 3; ++level) choices.push_back({zero(level), full});
  return choices;
}

// The optimizer's states to the host, the smallest quarter that does, alone and with all layers recomputed.
Notes offloaded_optimizer(const Search& search, const Change& full) {
  constexpr int kQuarters = 4;
  const auto offload = [](std::int64_t quarters) {
    const double share = static_cast<double>(quarters) / kQuarters;
    return set_key("parallel.optimizer_offload", share,
                   [share](Study& s, PolicyRun&) { s.layout.optimizer_offload = share; });
  };
  const auto held = static_cast<std::int64_t>(search.row().study.layout.optimizer_offload * kQuarters);
  Notes found = search.first_that_runs(held + 1, kQuarters, offload);
  if (found.empty() && held < kQuarters) found = search.first_of({{offload(kQuarters), full}});
  return found;
}

// Changes what follows from the degrees, too.
void set_degrees(Study& study, PolicyRun& run, int context, int data) {
  study.layout.context = context;
  study.layout.data = data;
  for (PackOptions* options : {&study.batch, &run.pack}) {
    options->context = context;
    options->lanes = data;
    options->gpus = std::int64_t{data} * context;
  }
}

enum class Gpus { as_many, more };  // whether CP ranks replace replicas or are added
constexpr int kMostContextFactor = 8;

std::vector<std::vector<Change>> more_context(const Study& study, const Change& full, Gpus gpus) {
  std::vector<std::vector<Change>> choices;
  if (gpus == Gpus::more && study.cluster.gpus > 0) return choices;  // the study fixes their number
  for (int factor = 2; factor <= kMostContextFactor; factor *= 2) {
    const int context = study.layout.context * factor;
    if (gpus == Gpus::as_many && study.layout.data % factor != 0) break;
    const int data = gpus == Gpus::as_many ? study.layout.data / factor : study.layout.data;
    const Change wider{
        "parallel.context",
        gpus == Gpus::as_many
            ? Note{"context_for_data", "", {{"context", context}, {"data", data}}}
            : Note{"context_on_gpus", "", {{"context", context}, {"gpus", study.layout.gpus() * factor}}},
        [context, data](Study& s, PolicyRun& r) { set_degrees(s, r, context, data); }};
    choices.push_back({wider});
    choices.push_back({wider, full});
    for (std::vector<Change>& sharded : more_sharding(study, full)) {
      sharded.insert(sharded.begin(), wider);
      choices.push_back(std::move(sharded));
    }
  }
  return choices;
}

// Puts hbp's groups on more ranks each; the study's CP degree does not change them.
Notes wider_groups(const Search& search) {
  const PolicyRun& run = search.row().run;
  const std::vector<Group>& typed = run.pack.groups;
  if (run.policy().derives != Derives::groups || typed.empty()) return {};
  const Change full = recompute_layers(search.row().study.model.all_layers());
  for (int factor = 2; factor <= run.pack.gpus; factor *= 2) {
    std::vector<Group> groups = typed;
    for (Group& g : groups)
      g.context = static_cast<int>(std::min<std::int64_t>(run.pack.gpus, std::int64_t{factor} * g.context));
    PackOptions options;
    options.groups = groups;
    const Change wider =
        set_key("groups", '"' + std::get<std::string>(pack_parameter("groups")->get(options)) + '"',
                [groups](Study&, PolicyRun& r) { r.pack.groups = groups; });
    if (Notes found = search.first_of({{wider}, {wider, full}}); !found.empty()) return found;
  }
  return {};
}

Notes when_out_of_memory(const Search& search) {
  const Study& study = search.row().study;
  const Change full = recompute_layers(study.model.all_layers());
  Notes found = more_recompute(search);
  if (found.empty()) found = smaller_policy_sizes(search);
  if (found.empty()) found = wider_groups(search);
  if (found.empty()) found = search.first_of(more_sharding(study, full));
  if (found.empty()) found = search.first_of(more_context(study, full, Gpus::as_many));
  if (found.empty()) found = offloaded_optimizer(search, full);
  if (found.empty()) found = search.first_of(more_context(study, full, Gpus::more));
  return found;
}

// The policy's own change that makes room for the longest document.
std::vector<std::vector<Change>> room_for_longest(const FailedRow& row) {
  const PolicyRun& run = row.run;
  if (run.policy().room_for == nullptr) return {};
  const Room room = run.policy().room_for(run.pack, row.longest_document);
  if (is_derived(run, room.key)) return {};  // memory derives it, so a larger value would be overwritten
  return {{{std::string(room.key), room.change, [options = room.options](Study& s, PolicyRun& r) {
              r.pack = options;
              s.batch.context_window = options.context_window;
            }}}};
}

Change oversize(Oversize kind, const char* name) {
  return set_key("oversize", quoted(name), [kind](Study&, PolicyRun& run) { run.pack.oversize = kind; });
}

Notes when_unplaceable(const Search& search) {
  const Study& study = search.row().study;
  Notes found = search.first_of(room_for_longest(search.row()));
  if (found.empty()) found = more_recompute(search);  // because memory derives L_max and BucketSize
  for (const Gpus gpus : {Gpus::as_many, Gpus::more})
    if (found.empty())
      found = search.first_of(more_context(study, recompute_layers(study.model.all_layers()), gpus));
  if (found.empty())
    found = search.first_of({{oversize(Oversize::split, "split")}, {oversize(Oversize::drop, "drop")}});
  return found;
}

Notes when_refused(const Search& search) {
  const Study& study = search.row().study;
  const Layout& layout = study.layout;
  std::vector<std::vector<Change>> changes;
  // The next multiple of the stages as the number of micro-batches per lane.
  const std::int64_t per_round = std::int64_t{layout.pipeline} * layout.data * study.batch.micro_batch_size;
  const std::int64_t sequences = (study.batch.sequences_per_step / per_round + 1) * per_round;
  if (study.batch.sequences_per_step % per_round != 0)
    changes.push_back({set_key("batch.sequences_per_step", sequences, [sequences](Study& s, PolicyRun& r) {
      s.batch.sequences_per_step = r.pack.sequences_per_step = sequences;
    })});
  changes.push_back(
      {set_key("pad", quoted("tail"), [](Study&, PolicyRun& r) { r.sharding.pad = Pad::tail; })});
  for (const char* schedule : {"1f1b", "state-aware-1f1b"}) {
    changes.push_back(
        {set_key("schedule", quoted(schedule), [schedule](Study&, PolicyRun& r) { r.schedule = schedule; })});
    if (layout_of(study, search.row().run).virtual_pipeline > 1)
      changes.back().push_back(
          set_key("virtual_pipeline", 1, [](Study& s, PolicyRun& r) { set_virtual_pipeline(s, 1, r); }));
  }
  changes.push_back(
      {set_key("shard", quoted("per-document"), [](Study&, PolicyRun& r) { r.shard = "per-document"; })});
  return search.first_of(changes);
}

// How much slower the row is with the changes than with enough memory; empty if either is unknown.
Notes cost_of(const Search& search, const Notes& changes) {
  if (!search.row().with_enough_memory) return {};
  const double seconds = search.seconds_per_token(changes), without = search.row().with_enough_memory();
  if (seconds <= 0 || without <= 0) return {};
  return {{"times_enough_memory", "", {{"ratio", seconds / without}}}};
}

}  // namespace

std::optional<Note> smallest_change(const FailedRow& row, const TryRow& try_row) {
  const Search search(row, try_row);
  Notes found;
  if (row.status == RowStatus::oom) found = when_out_of_memory(search);
  if (row.status == RowStatus::unplaceable) found = when_unplaceable(search);
  if (row.status == RowStatus::refused) found = when_refused(search);
  if (!found.empty() && row.status == RowStatus::oom)
    return Note{"fits_with", "", {{"changes", found}, {"cost", cost_of(search, found)}}};
  if (!found.empty()) return Note{"runs_with", "", {{"changes", found}}};
  const Notes tried = search.in_vain();
  if (row.status != RowStatus::oom || tried.empty()) return {};
  return Note{tried.size() > 1 ? "none_would_fit" : "one_would_not_fit", "", {{"tried", tried}}};
}

}  // namespace equipoise

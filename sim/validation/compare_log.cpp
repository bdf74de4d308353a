#include "sim/validation/compare_log.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/names.h"
#include "sim/validation/log_kinds.h"

namespace equipoise {
namespace {

constexpr int kOpNames = static_cast<int>(OpName::optimizer) + 1;

// Names that a log's op may have: those of the simulator, and kinds of them.
std::vector<std::string> known_ops() {
  std::vector<std::string> names(log_kinds().begin(), log_kinds().end());
  for (int op = 0; op < kOpNames; ++op)
    if (const std::string name = name_of(static_cast<OpName>(op));
        std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  return names;
}

double op_seconds(const SimulatedStep& step, const std::string& kind, bool all_reduces) {
  double sum = 0;
  for (const SimulatedOp& op : step.ops)
    if (name_of(op.op) == kind || kind_of_op(op.op, all_reduces) == kind) sum += op.seconds;
  return sum;
}

class Comparison {
 public:
  Comparison(const MeasuredLog& log, const std::vector<SimulatedPolicy>& policies)
      : log_(log), policies_(policies) {}

  Validation run(const ValidationLimits& limits) {
    Validation out;
    out.limits = limits;
    out.device = log_.form + " " + log_.name;
    out.notes = log_.notes;
    for (const SimulatedPolicy& policy : policies_) {
      if (!in_log(policy)) {
        out.notes.push_back(policy.label + " is not in " + log_.name + " and not compared");
        continue;
      }
      out.policies.push_back(pair_steps(policy, out.notes));
      pair_ops(policy, out);
    }
    check_policies();
    return out;
  }

 private:
  [[nodiscard]] bool is_of(const std::string& logged, const SimulatedPolicy& policy) const {
    return logged.empty() || logged == policy.label;
  }
  [[nodiscard]] bool in_log(const SimulatedPolicy& policy) const {
    return std::any_of(log_.steps.begin(), log_.steps.end(),
                       [&](const LoggedSteps& entry) { return is_of(entry.policy, policy); });
  }

  // Every entry has to belong to one policy.
  void check_policies() const {
    std::vector<std::string> labels;
    for (const SimulatedPolicy& policy : policies_) labels.push_back(policy.label);
    const auto check = [&](const std::string& logged) {
      if (logged.empty() && labels.size() > 1)
        throw UserError(log_.name + ": expected a column policy, since the study has " + joined(labels) +
                        ", or one policy of them, found a log of one run");
      if (!logged.empty() && std::find(labels.begin(), labels.end(), logged) == labels.end())
        throw UserError(log_.name + ": policy: expected one of " + joined(labels) + ", found " + logged);
    };
    for (const LoggedSteps& entry : log_.steps) check(entry.policy);
    for (const LoggedOp& op : log_.ops) check(op.policy);
  }

  static bool has_steps(const SimulatedPolicy& policy, std::int64_t first, std::int64_t count) {
    const auto steps = static_cast<std::int64_t>(policy.steps.size());
    return first < steps && count <= steps - first;
  }

  static StepPair mean_of(const SimulatedPolicy& policy, std::int64_t first, std::int64_t count) {
    StepPair pair;
    pair.step = first;
    for (std::int64_t i = first; i < first + count; ++i) {
      const SimulatedStep& step = policy.steps[at(i)];
      pair.predicted_seconds += step.seconds / static_cast<double>(count);
      pair.tokens += step.tokens / count;
    }
    return pair;
  }

  PolicyPairs pair_steps(const SimulatedPolicy& policy, std::vector<std::string>& notes) const {
    std::map<std::pair<std::int64_t, std::int64_t>, StepPair> pairs;
    std::vector<double> elsewhere;
    for (const LoggedSteps& entry : log_.steps) {
      if (!is_of(entry.policy, policy)) continue;
      if (!has_steps(policy, entry.step, entry.count)) {
        elsewhere.push_back(entry.seconds);
        continue;
      }
      const auto [pair, fresh] = pairs.try_emplace({entry.step, entry.count});
      if (fresh) pair->second = mean_of(policy, entry.step, entry.count);
      pair->second.measured_seconds.push_back(entry.seconds);
      if (entry.tokens > 0 && pair->second.tokens > 0 && entry.tokens != pair->second.tokens)
        throw UserError(log_.name + ": step " + std::to_string(entry.step) + " of " + policy.label +
                        ": expected " + std::to_string(pair->second.tokens) +
                        " tokens, as simulated, found " + std::to_string(entry.tokens));
    }
    PolicyPairs out;
    out.label = policy.label;
    for (auto& [steps, pair] : pairs) out.steps.push_back(std::move(pair));
    const std::string last = std::to_string(policy.steps.size());
    if (out.steps.empty() && !policy.steps.empty()) {
      out.steps.push_back(mean_of(policy, 0, static_cast<std::int64_t>(policy.steps.size())));
      out.steps.back().measured_seconds = std::move(elsewhere);
      notes.push_back(policy.label + ": the log has none of the " + last +
                      " simulated steps: its median is compared with their mean");
    } else if (!elsewhere.empty()) {
      notes.push_back(policy.label + ": " + std::to_string(elsewhere.size()) + " entries beyond the " + last +
                      " simulated steps are left out");
    }
    return out;
  }

  void pair_ops(const SimulatedPolicy& policy, Validation& out) const {
    static const std::vector<std::string> kKnown = known_ops();
    std::map<std::pair<std::int64_t, std::string>, OpPair> pairs;
    bool left_out = false;
    for (const LoggedOp& logged : log_.ops) {
      if (std::find(kKnown.begin(), kKnown.end(), logged.kind) == kKnown.end())
        throw UserError(log_.name + ": op: expected one of " + joined(kKnown) + ", found " + logged.kind);
      if (!is_of(logged.policy, policy)) continue;
      if (!has_steps(policy, logged.step, 1) || policy.steps[at(logged.step)].ops.empty()) {
        left_out = true;
        continue;
      }
      OpPair& pair = pairs[{logged.step, logged.kind}];
      pair.op = logged.kind;
      pair.label = policy.label;
      pair.step = logged.step;
      pair.predicted_seconds = op_seconds(policy.steps[at(logged.step)], logged.kind, policy.all_reduces);
      pair.measured_seconds.push_back(logged.seconds);
    }
    for (auto& [key, pair] : pairs) out.ops.push_back(std::move(pair));
    if (left_out)
      out.notes.push_back(policy.label + ": op times of steps without simulated ops are left out");
  }

  const MeasuredLog& log_;
  const std::vector<SimulatedPolicy>& policies_;
};

}  // namespace

Validation compare_with_log(const MeasuredLog& log, const std::vector<SimulatedPolicy>& policies,
                            const ValidationLimits& limits) {
  return Comparison(log, policies).run(limits);
}

}  // namespace equipoise

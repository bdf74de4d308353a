#include "sim/tune/candidate_text.h"

#include "policies/base/text.h"

namespace equipoise {

std::string layout_text(const Layout& layout) {
  std::string text = "TP " + std::to_string(layout.tensor) + ", CP " + std::to_string(layout.context);
  if (layout.context > 1 && layout.context_comm != Layout{}.context_comm)
    text.append(" ").append(name_of(layout.context_comm));
  if (layout.context > 1 && facts_of(layout.context_comm).nested)
    text += " " + std::to_string(layout.context_inner) + " x " +
            std::to_string(layout.context / layout.context_inner);
  if (layout.context > 1 && facts_of(layout.context_comm).casts)
    text += " (block " + std::to_string(layout.block) + ", stages " + std::to_string(layout.cast_stages) +
            (layout.cast_once_per_node ? ", once a node)" : ")");
  if (layout.nano_batches_of(layout.context) > 1) text += " (2 nano-batches)";
  text += ", PP " + std::to_string(layout.pipeline);
  if (layout.virtual_pipeline > 1) text += " x " + std::to_string(layout.virtual_pipeline);
  text += ", DP " + std::to_string(layout.data);
  if (layout.expert > 1) text += ", EP " + std::to_string(layout.expert);
  return text;
}

std::string recompute_text(const Layout& layout) {
  const bool some = layout.recompute == Recompute::layers;
  return some ? counted(layout.recompute_layers, "layer") : std::string(name_of(layout.recompute));
}

std::string layout_and_recompute(const Layout& l) {
  return layout_text(l) + (l.recompute == Recompute::none ? "" : ", recompute " + recompute_text(l));
}

std::string candidate_text(const std::string& label, const Layout& layout) {
  return label + " on " + layout_and_recompute(layout);
}

std::string candidate_text(const Candidates& candidates, Point point) {
  return candidate_text(candidates.rows[point.row].label, candidates.layouts[point.layout].layout);
}

}  // namespace equipoise

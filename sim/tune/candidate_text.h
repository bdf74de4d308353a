// How messages and tables name a layout or a candidate.
#pragma once

#include <string>

#include "sim/tune/candidates.h"

namespace equipoise {

std::string layout_text(const Layout& layout);  // "TP 8, CP 2 ring, PP 4 x 2, DP 1"
// The same, followed by ", recompute auto" unless it is none.
std::string layout_and_recompute(const Layout& layout);
std::string recompute_text(const Layout& layout);  // "8 layers"
// "wlb, queues 2, adaptive on TP 8, CP 2, PP 4 x 2, DP 1, recompute 8 layers"
std::string candidate_text(const std::string& label, const Layout& layout);
std::string candidate_text(const Candidates& candidates, Point point);

}  // namespace equipoise

// Processes by their parents, from /proc.
#pragma once

#include <string>
#include <vector>

namespace equipoise::execution {

std::vector<int> children_of(int pid);

// Kills and reaps all children of this process, those they leave behind included. For a process that is their
// subreaper; returns when none is left, or after a few seconds for what the kernel does not let go of.
void kill_children();

// The rank that a launcher gave the process; "?" where its environment cannot be read.
std::string rank_of_process(int pid);

}  // namespace equipoise::execution

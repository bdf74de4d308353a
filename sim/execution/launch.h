// Starting ranks as processes.
#pragma once

#include <string>
#include <vector>

namespace equipoise::execution {

// Whether mpirun or srun started this process.
bool under_launcher();

// Starts this program as so many ranks and returns their exit status.
int run_ranks(int ranks, const std::vector<std::string>& arguments);

}  // namespace equipoise::execution

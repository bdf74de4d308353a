// Reads the output of nccl-tests (all_reduce_perf and the others) as samples of collectives.
//
// Ranks, nodes and the GPU follow from the lines "# Rank 0 Group 0 Pid 7 on host device 0 [0x10] NVIDIA
// H100", the columns from the header line. Old versions write that line without `root` and with `error` for
// `#wrong`. New versions name the collective ("# Collective test starting: all_reduce_perf"). Otherwise a
// line or the file's name contains the program's name, or the rows tell: busbw / algbw is the collective's
// bus factor, sums have a redop, and in-place results of alltoall are not checked. A file whose rows fit two
// collectives is refused, and the error asks for a telling file name.
//
// Times are out of place, or in place where the file has no others. Sizes are those of nccl-tests: the buffer
// of an all_reduce, the total over ranks of all_gather, reduce_scatter and alltoall. The ring of a sendrecv
// is taken as a pair of neighbours, on two nodes where the run has several. A file may hold several runs.
// Prefixes of mpirun (--tag-output) and srun (-l) are skipped.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "profiler/fit/foreign_file.h"
#include "profiler/fit/samples.h"

namespace equipoise {

bool looks_like_nccl_tests(std::string_view text);
bool looks_like_nccl_tests(const nlohmann::json& file);  // Recognizes the JSON that -J writes.

// The samples get the labels op, gpu, inter_node_network = `network`, software, and source = `name`. Throws
// UserError with file and line.
ForeignFile add_nccl_tests(std::string_view text, const std::string& name, const std::string& network,
                           SampleSet& set);
ForeignFile add_nccl_tests(const nlohmann::json& file, const std::string& name, const std::string& network,
                           SampleSet& set);

}  // namespace equipoise

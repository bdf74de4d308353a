// What nccl-tests prints (all_reduce_perf and its kin), as samples of collectives.
//
// Ranks, nodes and the GPU follow from the lines "# Rank 0 Group 0 Pid 7 on host device 0 [0x10] NVIDIA
// H100"; the columns from the header line, which old versions write without `root` and with `error` for
// `#wrong`. Which collective ran stands in new versions' "# Collective test starting: all_reduce_perf", else
// in a line or a file name that has the program's name, else in the rows: busbw / algbw is the collective's
// bus factor, sums have a redop, and alltoall's in-place results are not checked. Where two are possible the
// file is refused and asks for its name.
//
// Times are those out of place (in place where only they are there). Sizes are nccl-tests' own: the buffer of
// an all_reduce, the total over ranks of all_gather, reduce_scatter and alltoall. sendrecv's ring of ranks is
// a pair of neighbours, of two nodes where there are several. Several runs may follow each other in one file.
// Prefixes of mpirun
// (--tag-output) and srun (-l) are skipped.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "profiler/fit/foreign_files.h"
#include "profiler/fit/samples.h"

namespace equipoise {

bool looks_like_nccl_tests(std::string_view text);
bool looks_like_nccl_tests(const nlohmann::json& file);  // as -J writes it

// Labels of the samples: op, gpu, inter_node_network = `network`, software, source = `name`. Throws UserError
// with file and line.
ForeignFile add_nccl_tests(std::string_view text, const std::string& name, const std::string& network,
                           SampleSet& set);
ForeignFile add_nccl_tests(const nlohmann::json& file, const std::string& name, const std::string& network,
                           SampleSet& set);

}  // namespace equipoise

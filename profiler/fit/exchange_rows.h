// Rows of public tables about exchanges of tokens: what each of them moved, and in what time.
#pragma once

#include <optional>
#include <string>

#include "profiler/fit/samples.h"

namespace equipoise {

// The sample of a row, nothing where the row is about something else; `reason` says what a row lacks that is
// about an exchange. A row without a time gives a sample with seconds 0.
//
// "alltoall point-to-point RDMA (…)": NICs that stream messages of size_bytes at algbw_GBps: the time of one.
// "alltoall (EP dispatch)", "(EP combine)", by DeepEP's normal kernels: a bandwidth and no size. The
// benchmark (github.com/deepseek-ai/DeepEP, docs/legacy.md and tests/test_internode.py, test_intranode.py)
// says both: 4,096 tokens a rank, 7,168 wide, 8 of 256 experts on at most 4 nodes, FP8 with a scale of 4
// bytes for each 128 elements there, bf16 back. Its bandwidth is logical: between nodes it counts every node
// that a token goes to, inside a node every rank, the own ones included. "alltoall low latency (…)": 128
// tokens a rank, and the time; every copy sent.
std::optional<ExchangeSample> exchange_row(const CsvTable& table, std::size_t row, std::string& reason);

}  // namespace equipoise

// How far repeated measurements leave their median open.
#pragma once

#include <optional>
#include <vector>

namespace equipoise {

// Of a list in any order; 0 where it is empty.
double median(std::vector<double> values);

// Half the width of the median's 95% interval by order statistics, which asks nothing of the distribution:
// from the k-th smallest to the k-th largest value, k the largest with P(Binomial(n, 1/2) < k) <= 2.5%. Below
// 6 values no interval of theirs reaches 95%: then half their range. Nothing below 2 values.
std::optional<double> median_noise(std::vector<double> values);

}  // namespace equipoise

// The quantile function of the standard normal distribution, for inverse-CDF sampling that gives the same
// lengths with every compiler (std::normal_distribution does not promise that).
#pragma once

namespace equipoise {

// z with P(Z < z) = share, for share in (0, 1). Relative error below 1.2e-9 (P. Acklam's rational
// approximations).
double normal_quantile(double share);

}  // namespace equipoise

"""The atlas: which policy is fastest where, why, and how far from the bound."""

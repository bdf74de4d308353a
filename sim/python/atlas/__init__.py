"""The atlas: which policy where, why, and how far from the bound."""

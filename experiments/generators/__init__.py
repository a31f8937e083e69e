"""Exact and approximate inference in simulators: constrained HMC on their fibres, and ABC near them."""

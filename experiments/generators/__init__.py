"""Exact and approximate inference in simulators: constrained HMC on the manifold of their inputs, and ABC."""

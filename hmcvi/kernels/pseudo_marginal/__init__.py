"""Markov kernels for densities that can only be estimated."""
